package vfiouser

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// codec is one message format, for the tests that all of them share.
type codec struct {
	name  string
	parse func([]byte) (appender, int, error)
}

type appender interface{ Append([]byte) []byte }

// as makes a parser generic; a zero value with an error and the reverse are
// what the callers rely on.
func as[T appender](name string, parse func([]byte) (T, int, error)) codec {
	return codec{name, func(b []byte) (appender, int, error) {
		v, n, err := parse(b)
		if err != nil && !reflect.ValueOf(v).IsZero() {
			return v, n, fmt.Errorf("%s: error with a value: %+v: %w", name, v, err)
		}
		if err == nil && (n < 0 || n > len(b)) || err != nil && n != 0 {
			panic(fmt.Sprintf("%s: consumed %d of %d, %v", name, n, len(b), err))
		}
		if err != nil {
			return nil, 0, err
		}
		return v, n, nil
	}}
}

var codecs = []codec{
	as("header", ParseHeader), as("version", ParseVersion), as("dma map", ParseDMAMap), as("dma unmap", ParseDMAUnmap),
	as("dma access", ParseDMAAccess), as("device info", ParseDeviceInfo), as("region info", ParseRegionInfo),
	as("region access", ParseRegionAccess), as("multi write", ParseMultiWrite), as("irq info", ParseIRQInfo),
	as("irq set", ParseIRQSet), as("feature", ParseFeature), as("region io fds", ParseRegionIOFDs),
}

// golden are messages written down by hand from the specification.
var golden = map[string][]struct{ hex, value string }{
	"header": {
		{"3412 0900 20000000 00000000 00000000", "{ID:4660 Command:REGION_READ Size:32 Flags:0 Errno:0}"},
		{"ffff 0200 10000000 21000000 11000000", "{ID:65535 Command:DMA_MAP Size:16 Flags:33 Errno:17}"},
	},
	"version": {{
		"0000 0100 7b226361706162696c6974696573223a7b226d61785f6d73675f666473223a387d7d00",
		"{Major:0 Minor:1 Caps:{MaxMsgFDs:8 MaxDataXferSize:0 MaxDMAMaps:0 WriteMultiple:false TwinSocket:<nil>}}",
	}},
	"dma map":       {{"20000000 03000000 0000008000000000 0000000001000000 0000008000000000", "{ArgSize:32 Flags:3 Offset:2147483648 Addr:4294967296 Size:2147483648}"}},
	"dma unmap":     {{"18000000 02000000 0000000000000000 0000000000000000", "{ArgSize:24 Flags:2 Addr:0 Size:0}"}},
	"dma access":    {{"0010e0fe00000000 0400000000000000", "{Addr:4276097024 Count:4}"}},
	"device info":   {{"10000000 03000000 09000000 05000000", "{ArgSize:16 Flags:3 Regions:9 IRQs:5}"}},
	"region access": {{"0400000000000000 07000000 02000000", "{Offset:4 Region:7 Count:2}"}},
	"region info": {
		{"20000000 03000000 07000000 00000000 0010000000000000 0000000000000000", "{ArgSize:32 Flags:3 Index:7 Size:4096 Offset:0 Sparse:[]}"},
		{
			"40000000 0f000000 00000000 20000000 0000010000000000 0020000000000000 0100 0100 00000000 01000000 00000000 0010000000000000 0030000000000000",
			"{ArgSize:64 Flags:15 Index:0 Size:65536 Offset:8192 Sparse:[{Offset:4096 Size:12288}]}",
		},
	},
	"multi write":   {{"0800000000000000 02000000 04000000 0102030405060708", "{Offset:8 Region:2 Count:4 Data:[1 2 3 4 5 6 7 8]}"}},
	"irq info":      {{"10000000 01000000 02000000 40000000", "{ArgSize:16 Flags:1 Index:2 Count:64}"}},
	"irq set":       {{"16000000 22000000 01000000 03000000 02000000 0100", "{ArgSize:22 Flags:34 Index:1 Start:3 Count:2 Bools:[1 0]}"}},
	"feature":       {{"0a000000 01000500 beef", "{ArgSize:10 Flags:327681 Data:[190 239]}"}},
	"region io fds": {{"10000000 00000000 02000000 00000000", "{ArgSize:16 Flags:0 Index:2 Count:0}"}},
}

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	for _, c := range codecs {
		if len(golden[c.name]) == 0 {
			t.Errorf("%s has no golden vector", c.name)
		}
		for _, g := range golden[c.name] {
			b := unhex(t, g.hex)
			v, n, err := c.parse(b)
			if err != nil || n != len(b) || fmt.Sprintf("%+v", v) != g.value {
				t.Errorf("%s: %+v, %d of %d bytes, %v\nwant %s", c.name, v, n, len(b), err, g.value)
				continue
			}
			if again := v.Append([]byte("x")); !bytes.Equal(again[1:], b) {
				t.Errorf("%s: % x, want % x", c.name, again[1:], b)
			}
		}
	}
}

func TestTruncation(t *testing.T) {
	for _, c := range codecs {
		for _, g := range golden[c.name] {
			b := unhex(t, g.hex)
			whole := len(b)
			switch c.name { // whose tail may be absent
			case "version":
				whole = versionSize
			case "feature":
				whole = featureSize
			}
			for n := range whole {
				if v, _, err := c.parse(b[:n:n]); err == nil {
					t.Errorf("%s of %d bytes: %+v", c.name, n, v)
				}
			}
		}
	}
}

func TestParsersRefuse(t *testing.T) {
	sparse := golden["region info"][1].hex
	for name, s := range map[string]struct{ codec, hex string }{
		"size below a header":         {"header", "0000 0100 0f000000 00000000 00000000"},
		"type 2":                      {"header", "0000 0100 10000000 02000000 00000000"},
		"argsz of a map":              {"dma map", "1f000000 03000000 0000000000000000 0000000000000000 0010000000000000"},
		"no size":                     {"dma map", "20000000 03000000 0000000000000000 0000000000000000 0000000000000000"},
		"range that wraps":            {"dma map", "20000000 03000000 0000000000000000 ffffffffffffffff 0200000000000000"},
		"unmap that wraps":            {"dma unmap", "18000000 00000000 ffffffffffffffff 0200000000000000"},
		"argsz of an unmap":           {"dma unmap", "17000000 00000000 0000000000000000 0000000000000000"},
		"access that wraps":           {"dma access", "ffffffffffffffff 0200000000000000"},
		"capability before the end":   {"region info", strings.Replace(sparse, "00000000 20000000", "00000000 1f000000", 1)},
		"capability behind the end":   {"region info", strings.Replace(sparse, "00000000 20000000", "00000000 39000000", 1)},
		"capability that loops":       {"region info", strings.Replace(sparse, "0100 0100 00000000", "0100 0100 20000000", 1)},
		"more areas than bytes":       {"region info", strings.Replace(sparse, "01000000 00000000 0010", "02000000 00000000 0010", 1)},
		"areas that overflow":         {"region info", strings.Replace(sparse, "01000000 00000000 0010", "ffffffff 00000000 0010", 1)},
		"data longer than its field":  {"multi write", "0000000000000000 00000000 09000000 0000000000000000"},
		"vectors that wrap":           {"irq set", "14000000 24000000 02000000 ffffffff 01000000"},
		"two kinds of data":           {"irq set", "14000000 23000000 02000000 00000000 00000000"},
		"no action":                   {"irq set", "14000000 01000000 02000000 00000000 00000000"},
		"booleans missing":            {"irq set", "16000000 22000000 01000000 03000000 03000000 0100"},
		"argsz of a feature":          {"feature", "07000000 01000500"},
		"argsz of device information": {"device info", "0f000000 00000000 00000000 00000000"},
		"text that is not JSON":       {"version", "0000 0000 7b00"},
	} {
		for _, c := range codecs {
			if c.name != s.codec {
				continue
			}
			if v, _, err := c.parse(unhex(t, s.hex)); err == nil {
				t.Errorf("%s: %+v", name, v)
			}
		}
	}
}

// checkRoundTrip is what holds for any bytes: no panic, and what was parsed is
// parsed again from what it appends.
func checkRoundTrip(t *testing.T, c codec, b []byte) {
	v, _, err := c.parse(b)
	if err != nil {
		return
	}
	again, _, err := c.parse(v.Append(nil))
	if err != nil || !reflect.DeepEqual(v, again) {
		t.Errorf("%s: %+v becomes %+v, %v", c.name, v, again, err)
	}
}

func fuzzCodec(f *testing.F, name string) {
	for _, c := range codecs {
		if c.name != name {
			continue
		}
		for _, g := range golden[name] {
			f.Add(unhex(f, g.hex))
		}
		f.Fuzz(func(t *testing.T, b []byte) { checkRoundTrip(t, c, b) })
	}
}

func FuzzHeader(f *testing.F)       { fuzzCodec(f, "header") }
func FuzzVersion(f *testing.F)      { fuzzCodec(f, "version") }
func FuzzDMAMap(f *testing.F)       { fuzzCodec(f, "dma map") }
func FuzzDMAUnmap(f *testing.F)     { fuzzCodec(f, "dma unmap") }
func FuzzDMAAccess(f *testing.F)    { fuzzCodec(f, "dma access") }
func FuzzDeviceInfo(f *testing.F)   { fuzzCodec(f, "device info") }
func FuzzRegionInfo(f *testing.F)   { fuzzCodec(f, "region info") }
func FuzzRegionAccess(f *testing.F) { fuzzCodec(f, "region access") }
func FuzzMultiWrite(f *testing.F)   { fuzzCodec(f, "multi write") }
func FuzzIRQInfo(f *testing.F)      { fuzzCodec(f, "irq info") }
func FuzzIRQSet(f *testing.F)       { fuzzCodec(f, "irq set") }
func FuzzFeature(f *testing.F)      { fuzzCodec(f, "feature") }
func FuzzRegionIOFDs(f *testing.F)  { fuzzCodec(f, "region io fds") }

// FuzzMultiCount checks that the count agrees with the bytes.
func FuzzMultiCount(f *testing.F) {
	f.Add(le(uint64(1), access(0, 0, 4, make([]byte, 8)...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		count, n, err := ParseMultiCount(b)
		if (err == nil) != (n == multiCountSize) || err == nil && n+count*multiEntrySize != len(b) {
			t.Errorf("%d writes, %d bytes, %v of %d", count, n, err, len(b))
		}
	})
}

// FuzzHideMSIX changes at most one byte, an 0x11 into 0x09, in any image.
func FuzzHideMSIX(f *testing.F) {
	f.Add(testConfigSpace())
	loop := testConfigSpace()
	loop[0x50], loop[0x61] = 5, 0x40
	f.Add(loop)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := bytes.Clone(b)
		hideMSIX(c)
		changed := 0
		for i := range b {
			if b[i] != c[i] {
				changed++
				if b[i] != cfgspace.CapMSIX || c[i] != cfgspace.CapVendor {
					t.Errorf("byte %#x: %#x became %#x", i, b[i], c[i])
				}
			}
		}
		if changed > 1 {
			t.Errorf("%d bytes changed", changed)
		}
	})
}

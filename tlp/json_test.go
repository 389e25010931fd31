package tlp_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/tlp"
)

func TestJSONRoundTripOfGoldenPackets(t *testing.T) {
	var all []tlp.Packet
	var want []byte
	for _, c := range golden {
		b := unhex(t, c.hex)
		p, _, err := tlp.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		want = append(want, b...)
		if got := throughJSON(t, all[len(all)-1:]); !bytes.Equal(got, b) {
			t.Errorf("%s\n got %x\nwant %x", c.name, got, b)
		}
	}
	if got := throughJSON(t, all); !bytes.Equal(got, want) {
		t.Errorf("the array of all packets\n got %x\nwant %x", got, want)
	}
}

func throughJSON(t *testing.T, packets []tlp.Packet) []byte {
	t.Helper()
	var text bytes.Buffer
	if err := tlp.WriteJSON(&text, packets); err != nil {
		t.Fatal(err)
	}
	doc := text.String()
	again, err := tlp.ReadJSON(&text)
	if err != nil {
		t.Fatalf("%v reading\n%s", err, doc)
	}
	var b []byte
	for i := range again {
		b = again[i].Append(b)
	}
	return b
}

func TestWriteJSON(t *testing.T) {
	p, _, err := tlp.Parse(unhex(t, goldenHex(t, "CplD with digest, poisoned")))
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := tlp.WriteJSON(&got, []tlp.Packet{p}); err != nil {
		t.Fatal(err)
	}
	const want = `{
  "type": "CplD",
  "tc": 0,
  "attr": [],
  "th": false,
  "ep": true,
  "at": 0,
  "length": 2,
  "requester": "01:00.0",
  "tag": 5,
  "completer": "00:1f.3",
  "status": "SC",
  "bcm": false,
  "byte_count": 8,
  "lower_addr": "0x0",
  "data": "01264b7095badf04",
  "digest": "`
	if !strings.HasPrefix(got.String(), want) {
		t.Errorf("got %s", cmp.Diff(want, got.String()))
	}
}

func TestReadJSONLiberally(t *testing.T) {
	for _, c := range []struct{ name, json, want string }{
		{"defaults of a read", `{"type":"MRd","addr":"0xfee01000"}`, "00000001 0000000f fee01000"},
		{"64-bit address makes 4 DW", `{"type":"mrd","addr":"0x100000000","length":2}`, "20000002 000000ff 00000001 00000000"},
		{"4 DW on demand", `{"type":"MRd","addr":4096,"dw4":true}`, "20000001 0000000f 00000000 00001000"},
		{"length from the data", `{"type":"MWr","addr":"0x1000","data":"0x00010203 04:05:06:07"}`, "40000002 000000ff 00001000 0001020304050607"},
		{"byte enables from the address", `{"type":"MRd","addr":"0x1003"}`, "00000001 00000008 00001000"},
		{"numbers as text", `{"type":"MRD","addr":"4096","tag":"0x3ff","first_be":"0b0011","requester":"0x0108"}`, "00880001 0108ff03 00001000"},
		{"attributes by name", `{"type":"MRd","addr":"0x1000","attr":["No_Snoop","id_ordering"]}`, "00041001 0000000f 00001000"},
		{"attributes by number", `{"type":"MRd","addr":"0x1000","attr":2}`, "00002001 0000000f 00001000"},
		{"steering tag", `{"type":"MRd","addr":"0x1000","th":true,"ph":2,"st":"0xad","length":4}`, "00010004 000000ad 00001002"},
		{"config", `{"type":"cfgrd0","target":"02:00.0","register":"0x10"}`, "04000001 0000000f 02000010"},
		{"completion by abbreviation", `{"type":"Cpl","status":"crs","requester":"01:00.0","completer":"00:01.0","tag":7}`, "0a000000 00084004 01000700"},
		{"completion with data", `{"type":"CplD","data":"deadbeef"}`, "4a000001 00000004 00000000 deadbeef"},
		{"message by name", `{"type":"Msg","code":"assert_inta","routing":"local"}`, "34000000 00000020 0000000000000000"},
		{"message by number", `{"type":"Msg","code":32,"routing":4}`, "34000000 00000020 0000000000000000"},
		{"FetchAdd", `{"type":"FetchAdd","addr":"0x1000","data":"01000000"}`, "4c000001 00000000 00001000 01000000"},
		{"prefix", `{"type":"MRd","addr":"0x1000","prefixes":["91012345"]}`, "91012345 00000001 0000000f 00001000"},
		{"null is absent", `{"type":"MRd","addr":"0x1000","length":null}`, "00000001 0000000f 00001000"},
		{"array", `[{"type":"MRd"},{"type":"IORd"}]`, "00000001 0000000f 00000000 02000001 0000000f 00000000"},
		{"one after the other", `{"type":"MRd"} {"type":"IORd"}`, "00000001 0000000f 00000000 02000001 0000000f 00000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			packets, err := tlp.ReadJSON(strings.NewReader(c.json))
			if err != nil {
				t.Fatal(err)
			}
			var b []byte
			for i := range packets {
				b = packets[i].Append(b)
			}
			if want := unhex(t, c.want); !bytes.Equal(b, want) {
				t.Errorf("got %x, want %x", b, want)
			}
		})
	}
}

func TestReadJSONDigest(t *testing.T) {
	packets, err := tlp.ReadJSON(strings.NewReader(`{"type":"MRd","addr":"0x1000","digest":"auto"}`))
	if err != nil {
		t.Fatal(err)
	}
	if p := packets[0]; !p.HasDigest || !p.CheckECRC() {
		t.Errorf("digest %08x is wrong", p.Digest)
	}
}

func TestReadJSONErrorsNameTheField(t *testing.T) {
	for _, c := range []struct {
		name, json string
		want       []string
	}{
		{"nothing", ``, []string{"no packet"}},
		{"no JSON", `{`, []string{"not JSON"}},
		{"a number", `5`, []string{"JSON object"}},
		{"no type", `{}`, []string{"type", "missing", "MRd"}},
		{"unknown type", `{"type":"MRead"}`, []string{"type", "MRead", "CplDLk"}},
		{"unknown field", `{"type":"MRd","adr":1}`, []string{"adr: no such field", "addr"}},
		{"tag too large", `{"type":"MRd","tag":1024}`, []string{"tag: 1024 does not fit", "1023"}},
		{"length far too large", `{"type":"MRd","length":65537}`, []string{"length", "does not fit"}},
		{"no number", `{"type":"MRd","tag":"x"}`, []string{"tag", `"x" is not a number`}},
		{"negative", `{"type":"MRd","tag":-1}`, []string{"tag", "-1"}},
		{"bool as number", `{"type":"MRd","th":1}`, []string{"th", "true or false"}},
		{"bad bus address", `{"type":"MRd","requester":"1:2"}`, []string{"requester", "BUS:DEVICE.FUNCTION"}},
		{"odd digits", `{"type":"MWr","data":"123"}`, []string{"data", "odd number"}},
		{"data of another length", `{"type":"MWr","length":2,"data":"00000000"}`, []string{"data", "4 bytes of payload, want 8"}},
		{"data in a read", `{"type":"MRd","data":"00000000"}`, []string{"data"}},
		{"field of another type", `{"type":"MRd","status":"UR"}`, []string{"status", "MRd"}},
		{"unknown status", `{"type":"Cpl","status":"OK"}`, []string{"status", "SC, UR, RRS, CA"}},
		{"unknown attribute", `{"type":"MRd","attr":["fast"]}`, []string{"attr", "fast", "no_snoop"}},
		{"unknown routing", `{"type":"Msg","routing":"home"}`, []string{"routing", "to_root_complex"}},
		{"unknown code", `{"type":"Msg","code":"INTX"}`, []string{"code", "Assert_INTA"}},
		{"short message header", `{"type":"Msg","msg_header":"00"}`, []string{"msg_header", "1 bytes, want 8"}},
		{"short prefix", `{"type":"MRd","prefixes":["91"]}`, []string{"prefixes", "1 bytes, want 4"}},
		{"bad digest", `{"type":"MRd","digest":"12"}`, []string{"digest", "auto"}},
		{"across 4 KiB", `{"type":"MRd","addr":"0xffc","length":2}`, []string{"length", "4 KiB", "2.2.7"}},
		{"the second packet", `[{"type":"MRd"},{"type":"MRd","tc":9}]`, []string{"packet 2", "tc"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			packets, err := tlp.ReadJSON(strings.NewReader(c.json))
			if err == nil || packets != nil {
				t.Fatalf("ReadJSON = %v, %v; want an error", packets, err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestParseHex(t *testing.T) {
	for _, c := range []struct {
		name, in, want string // want "" for an error
	}{
		{"plain", "00ffAB", "00ffab"},
		{"groups", " 00:ff\n0xab, 0Xcd-ef_01\t", "00ffabcdef01"},
		{"odd group", "0x1 0x23 4", ""},
		{"no hex", "0g", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := tlp.ParseHex(c.in)
			if (err != nil) != (c.want == "") || hex.EncodeToString(got) != c.want {
				t.Errorf("ParseHex = %x, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestParseGroups(t *testing.T) {
	const read, write = "000000010000000f00001000", "40000002 000000ff 00001000 0001020304050607"
	for _, c := range []struct {
		name   string
		groups []string
		header bool
		n      int
		err    string
	}{
		{"one", []string{read}, false, 1, ""},
		{"two groups", []string{read, write}, false, 2, ""},
		{"two in one group", []string{read + write}, false, 2, ""},
		{"one in several groups", strings.Fields(write), false, 1, ""},
		{"empty lines", []string{"", read, "", write, ""}, false, 2, ""},
		{"header only", []string{"40000002 000000ff 00001000"}, true, 1, ""},
		{"nothing", nil, false, 0, "no packet"},
		{"second is cut short", []string{read, write[:20]}, false, 0, "input 2 of 2"},
		{"second in a group is malformed", []string{read + "ff0000000000000000000000"}, false, 0, "packet 2 at byte 12"},
	} {
		t.Run(c.name, func(t *testing.T) {
			packets, err := tlp.ParseGroups(c.groups, c.header)
			if len(packets) != c.n || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%d packets, %v; want %d, %q", len(packets), err, c.n, c.err)
			}
		})
	}
}

// The fields cover each bit of the header exactly once.
func TestFieldsTileThePacket(t *testing.T) {
	for _, c := range golden {
		b := unhex(t, c.hex)
		p, _, err := tlp.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		seen := make([]int, len(b)*8)
		for _, f := range p.Fields() {
			last := (f.Offset+f.Size)*8 - 1 - f.Lo
			for bit := last - (f.Hi - f.Lo); bit <= last; bit++ {
				seen[bit]++
			}
			if f.Name == "digest" && !strings.Contains(f.Meaning, "correct") {
				t.Errorf("%s: %s", c.name, f.Meaning)
			}
		}
		for bit, n := range seen {
			if n != 1 {
				t.Errorf("%s: bit %d of byte %d is in %d fields", c.name, 7-bit%8, bit/8, n)
			}
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, c := range golden {
		p, _, err := tlp.Parse(unhex(f, c.hex))
		if err != nil {
			f.Fatal(err)
		}
		var text bytes.Buffer
		if err := tlp.WriteJSON(&text, []tlp.Packet{p}); err != nil {
			f.Fatal(err)
		}
		f.Add(text.Bytes())
		f.Add(unhex(f, c.hex))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// The input as bytes of a packet: encode reads the output of decode.
		if p, n, err := tlp.Parse(b); err == nil {
			if got := throughJSON(t, []tlp.Packet{p}); !bytes.Equal(got, b[:n]) {
				t.Fatalf("through JSON\n got %x\nwant %x", got, b[:n])
			}
			p.Fields()
		}
		// The input as JSON: decode reads the output of encode.
		packets, err := tlp.ReadJSON(bytes.NewReader(b))
		if (err != nil) != (packets == nil) {
			t.Fatalf("ReadJSON = %v, %v", packets, err)
		}
		for i := range packets {
			wire := packets[i].Append(nil)
			p, n, err := tlp.Parse(wire)
			if err != nil || n != len(wire) {
				t.Fatalf("encoded packet %x: %d, %v", wire, n, err)
			}
			if got := p.Append(nil); !bytes.Equal(got, wire) {
				t.Fatalf("encoded packet %x comes back as %x", wire, got)
			}
		}
	})
}

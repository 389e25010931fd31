package tlp_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/tlp"
)

func TestSetMemoryAndByteRange(t *testing.T) {
	for _, c := range []struct {
		name        string
		addr        uint64
		n           int
		length      uint16
		first, last uint8
	}{
		{"zero-length", 0x1000, 0, 1, 0, 0},
		{"one byte", 0x1003, 1, 1, 8, 0},
		{"two bytes in the middle", 0x1001, 2, 1, 6, 0},
		{"a double word", 0x1000, 4, 1, 15, 0},
		{"across a double word", 0x1003, 2, 2, 8, 1},
		{"7 bytes", 0x1001, 7, 2, 14, 15},
		{"8 bytes unaligned", 0x1002, 8, 3, 12, 3},
		{"page", 0x1000, 4096, 1024, 15, 15},
		{"page but the ends", 0x1001, 4094, 1024, 14, 7},
		{"above 4 GiB", 1<<32 + 5, 3, 1, 14, 0},
		{"end of the address space", ^uint64(0), 1, 1, 8, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := tlp.Packet{Type: tlp.MRd}
			p.SetMemory(c.addr, c.n)
			if p.Length != c.length || p.FirstBE != c.first || p.LastBE != c.last || p.DW4 != (c.addr>>32 != 0) {
				t.Errorf("length %d first %#x last %#x dw4 %v", p.Length, p.FirstBE, p.LastBE, p.DW4)
			}
			if err := p.Validate(); err != nil {
				t.Error(err)
			}
			if addr, n := p.ByteRange(); addr != c.addr || n != c.n {
				t.Errorf("ByteRange = %#x, %d; want %#x, %d", addr, n, c.addr, c.n)
			}
		})
	}
}

// Table 2-42 gives Byte Count and table 2-41 Lower Address for each pattern of
// byte enables.
func TestCompletionBytes(t *testing.T) {
	for _, c := range []struct {
		name  string
		p     tlp.Packet
		count int
		lower uint8
	}{
		{"1xx1", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b1001, Addr: 0x1040}, 4, 0x40},
		{"01x1", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b0111, Addr: 0x1040}, 3, 0x40},
		{"1x10", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b1010, Addr: 0x1040}, 3, 0x41},
		{"0011", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b0011, Addr: 0x1040}, 2, 0x40},
		{"0110", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b0110, Addr: 0x1040}, 2, 0x41},
		{"1100", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b1100, Addr: 0x1040}, 2, 0x42},
		{"0001", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b0001, Addr: 0x1040}, 1, 0x40},
		{"1000", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b1000, Addr: 0x1040}, 1, 0x43},
		{"0000", tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 0b0000, Addr: 0x1040}, 1, 0x40},
		{"xxx1 1xxx", tlp.Packet{Type: tlp.MRd, Length: 4, FirstBE: 15, LastBE: 15, Addr: 0x107c}, 16, 0x7c},
		{"xx10 01xx", tlp.Packet{Type: tlp.MRd, Length: 4, FirstBE: 14, LastBE: 7, Addr: 0x1000}, 14, 1},
		{"x100 001x", tlp.Packet{Type: tlp.MRd, Length: 4, FirstBE: 12, LastBE: 3, Addr: 0x1000}, 12, 2},
		{"1000 0001", tlp.Packet{Type: tlp.MRd, Length: 4, FirstBE: 8, LastBE: 1, Addr: 0x1000}, 10, 3},
		{"4096 bytes", tlp.Packet{Type: tlp.MRd, Length: 1024, FirstBE: 15, LastBE: 15, Addr: 0x1000}, 4096, 0},
		{"configuration", tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 2, Register: 0x44}, 4, 0},
		{"FetchAdd64", tlp.Packet{Type: tlp.FetchAdd, Length: 2, Addr: 0x1008}, 8, 0},
		{"CAS32", tlp.Packet{Type: tlp.CAS, Length: 2, Addr: 0x1004}, 4, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if count, lower := c.p.CompletionBytes(); count != c.count || lower != c.lower {
				t.Errorf("CompletionBytes = %d, %#x; want %d, %#x", count, lower, c.count, c.lower)
			}
		})
	}
}

func TestSplitExamples(t *testing.T) {
	for _, c := range []struct {
		name    string
		addr    uint64
		n, size int
		want    []tlp.Chunk
	}{
		{"nothing", 0x1000, 0, 128, nil},
		{"one", 0x1000, 128, 128, []tlp.Chunk{{0x1000, 128}}},
		{"one more", 0x1000, 129, 128, []tlp.Chunk{{0x1000, 128}, {0x1080, 1}}},
		{"unaligned takes a double word more", 0x1002, 128, 128, []tlp.Chunk{{0x1002, 126}, {0x1080, 2}}},
		{"page boundary", 0x1fc0, 256, 256, []tlp.Chunk{{0x1fc0, 64}, {0x2000, 192}}},
		{"size below a double word", 0x1003, 2, 0, []tlp.Chunk{{0x1003, 1}, {0x1004, 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := slices.Collect(tlp.SplitRead(c.addr, c.n, c.size)); !slices.Equal(got, c.want) {
				t.Errorf("got %#x, want %#x", got, c.want)
			}
		})
	}
}

func TestSplitCoversTheRangeLegally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Uint64Range(0, 1<<40).Draw(t, "addr")
		n := rapid.IntRange(0, 20000).Draw(t, "n")
		size := 128 << rapid.IntRange(0, 5).Draw(t, "size")
		next := addr
		for c := range tlp.SplitWrite(addr, n, size) {
			p := tlp.Packet{Type: tlp.MRd}
			p.SetMemory(c.Addr, c.Len)
			if err := p.Validate(); err != nil {
				t.Fatal(err)
			}
			if c.Addr != next || int(p.Length)*4 > size {
				t.Fatalf("chunk %+v of %d DW, want it at %#x", c, p.Length, next)
			}
			next += uint64(c.Len)
		}
		if next != addr+uint64(n) {
			t.Fatalf("ends at %#x, want %#x", next, addr+uint64(n))
		}
	})
}

// Section 2.3.1.1: all completions but the last end at a multiple of RCB.
func TestSplitCompletionsLegally(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Uint64Range(0, 1<<20).Draw(t, "addr")
		n := rapid.IntRange(1, 4096).Draw(t, "n")
		rcb := rapid.SampledFrom([]int{64, 128}).Draw(t, "rcb")
		mps := 128 << rapid.IntRange(0, 5).Draw(t, "mps")
		next, left := addr, n
		for c := range tlp.SplitCompletions(addr, n, rcb, mps) {
			end := c.Addr + uint64(c.Len)
			if c.Addr != next || c.ByteCount != left || c.LowerAddr != uint8(next&0x7f) {
				t.Fatalf("%+v, want address %#x and %d bytes left", c, next, left)
			}
			if int(c.Addr%4)+c.Len > mps {
				t.Fatalf("%+v exceeds %d", c, mps)
			}
			if c.Len < left && end%uint64(rcb) != 0 {
				t.Fatalf("%+v does not end at a multiple of %d", c, rcb)
			}
			next, left = end, left-c.Len
		}
		if left != 0 {
			t.Fatalf("%d bytes left", left)
		}
	})
}

package reg_test

import (
	"encoding/hex"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

func TestCommandGolden(t *testing.T) {
	tests := []struct {
		name string
		cmd  reg.Command
		hex  string
	}{
		{"nop", reg.Nop(0x01020304), "0000000004030201" + zeros(56)},
		{
			"copy to VRAM", reg.CopyToVRAM(1, 0x1000, 0x200000000, 0x3000).WithSegments(3),
			"0105000001000000" + "0010000000000000" + "0000000002000000" + "0030000000000000" + "03000000" + zeros(28),
		},
		{
			"copy from VRAM", reg.CopyFromVRAM(1, 0x200000000, 0x1000, 1),
			"0102000001000000" + "0000000002000000" + "0010000000000000" + "0100000000000000" + zeros(32),
		},
		{"fill", reg.Fill(2, 8, 0xdeadbeef, 4), "0200000002000000" + "0800000000000000" + "efbeadde00000000" + "0400000000000000" + zeros(32)},
		{"fence", reg.Fence(3, 0x10, 7).WithInterrupt(5), "0403050003000000" + "1000000000000000" + "0700000000000000" + zeros(40)},
		{"signal", reg.Signal(3, 2, 7), "0404000003000000" + zeros(8) + "0700000000000000" + zeros(8) + "02000000" + zeros(28)},
		{"wait", reg.Wait(3, 2, 7), "0500000003000000" + zeros(8) + "0700000000000000" + zeros(8) + "02000000" + zeros(28)},
		{"delay", reg.Delay(3, 0x10), "0700000003000000" + zeros(8) + "1000000000000000" + zeros(40)},
		{"delay since", reg.DelaySinceStart(3, 0x10), "0701000003000000" + zeros(8) + "1000000000000000" + zeros(40)},
		{"time", reg.StampTime(3, 0x10), "0600000003000000" + "1000000000000000" + zeros(48)},
		{
			"kernel", reg.Kernel(4, reg.Launch{
				Kernel: reg.KernelGEMM, Type: reg.FP64, Flags: reg.KernelTransB, A: 1, B: 2, C: 3, M: 4, N: 5, K: 6, Alpha: 1, Beta: -2,
			}),
			"0312010004000000" + "0100000000000000" + "0200000000000000" + "0300000000000000" +
				"04000000" + "05000000" + "06000000" + "00000000" + "000000000000f03f" + "00000000000000c0",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.cmd.Append(nil)
			if diff := cmp.Diff(tt.hex, hex.EncodeToString(b)); diff != "" {
				t.Error(diff)
			}
			got, n, err := reg.ParseCommand(append(b, 1, 2, 3))
			if err != nil || n != reg.CommandSize || got != tt.cmd {
				t.Errorf("ParseCommand = %+v, %d, %v", got, n, err)
			}
		})
	}
}

func zeros(n int) string { return hex.EncodeToString(make([]byte, n)) }

func TestTruncation(t *testing.T) {
	for n := range reg.CommandSize {
		if c, m, err := reg.ParseCommand(make([]byte, n)); err == nil || m != 0 || c != (reg.Command{}) {
			t.Errorf("command of %d bytes: %v, %d, %v", n, c, m, err)
		}
	}
	for n := range reg.SegmentSize {
		if s, m, err := reg.ParseSegment(make([]byte, n)); err == nil || m != 0 || s != (reg.Segment{}) {
			t.Errorf("segment of %d bytes: %v, %d, %v", n, s, m, err)
		}
	}
	for n := range reg.StatusBlockSize {
		if s, m, err := reg.ParseStatusBlock(make([]byte, n)); err == nil || m != 0 || s != (reg.StatusBlock{}) {
			t.Errorf("status block of %d bytes: %v, %d, %v", n, s, m, err)
		}
	}
}

func TestRoundTrips(t *testing.T) {
	s := reg.Segment{Addr: 0x123456789abcdef0, Length: 4096}
	if got, _, err := reg.ParseSegment(s.Append(nil)); err != nil || got != s || len(s.Append(nil)) != reg.SegmentSize {
		t.Errorf("segment %+v, %v", got, err)
	}
	b := reg.StatusBlock{State: reg.QueueHalted, Error: reg.ErrRange, ID: 5, Head: 6}
	if got, _, err := reg.ParseStatusBlock(b.Append(nil)); err != nil || got != b || len(b.Append(nil)) != reg.StatusBlockSize {
		t.Errorf("status block %+v, %v", got, err)
	}
}

// A parsed structure appends to the same bytes, except the reserved ones.
func FuzzParseCommand(f *testing.F) {
	f.Add(reg.Fence(1, 2, 3).Append(nil))
	f.Add(reg.Kernel(1, reg.Launch{Kernel: reg.KernelFFT, M: 8}).Append(nil))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, n, err := reg.ParseCommand(b)
		if err != nil {
			return
		}
		want := append([]byte(nil), b[:n]...)
		copy(want[44:48], []byte{0, 0, 0, 0})
		if diff := cmp.Diff(want, c.Append(nil)); diff != "" {
			t.Error(diff)
		}
	})
}

func TestHalf(t *testing.T) {
	// Every half widens and narrows to itself.
	for h := range 1 << 16 {
		f := reg.HalfToFloat(uint16(h))
		back := reg.FloatToHalf(f)
		if math.IsNaN(float64(f)) {
			if back&0x7c00 != 0x7c00 || back&0x3ff == 0 {
				t.Fatalf("NaN %#x became %#x", h, back)
			}
			continue
		}
		if back != uint16(h) {
			t.Fatalf("%#x -> %v -> %#x", h, f, back)
		}
	}
	for f, want := range map[float32]uint16{
		1: 0x3c00, -2: 0xc000, 65504: 0x7bff, 65519: 0x7bff, 65520: 0x7c00, 1e9: 0x7c00, 5.9604645e-8: 1, 2.9802322e-8: 0, 2.99e-8: 1,
		6.1035156e-5: 0x0400, 6.0975552e-5: 0x03ff, 1.0004883: 0x3c00, 1.0014648: 0x3c02, 0.1: 0x2e66,
	} {
		if got := reg.FloatToHalf(f); got != want {
			t.Errorf("%v -> %#x, want %#x", f, got, want)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		f := rapid.Float32Range(-65000, 65000).Draw(rt, "f")
		h := reg.FloatToHalf(f)
		err := math.Abs(float64(reg.HalfToFloat(h)) - float64(f))
		for _, d := range []uint16{h - 1, h + 1} { // no neighbor is nearer
			if n := float64(reg.HalfToFloat(d)); !math.IsNaN(n) && !math.IsInf(n, 0) && math.Abs(n-float64(f)) < err {
				rt.Fatalf("%v -> %#x, but %#x is nearer", f, h, d)
			}
		}
	})
}

package session

import (
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// FuzzPacket reads the variable parts of packets. The result never holds more
// than the packet, and reading ends.
func FuzzPacket(f *testing.F) {
	word := func(v ...uint32) (b []byte) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		return b
	}
	f.Add(uint16(3), append(word(1, 2, 1, 0), append(make([]byte, 72), word(reg.ArgValue, 4, 7, 0, 0, 0)...)...))
	f.Add(uint16(0), word(1, 3, reg.MaxArgs+1, 0))
	f.Add(uint16(0), word(1, 1<<31, 1, 0))
	f.Add(uint16(0), append(word(1, 1, 1, 0), append(make([]byte, 72), word(reg.ArgBuffer, 0xffffffff)...)...))
	f.Add(uint16(0), word(reg.MaxWaits, 0, 1, 0))
	f.Add(uint16(flagShared), append(word(1, 1, 0, 3), append(make([]byte, 72), word(7, 8, 9, 0)...)...))
	f.Add(uint16(flagShared), append(word(1, 1, 0, 0xffffffff), make([]byte, 80)...))
	f.Fuzz(func(t *testing.T, flags uint16, b []byte) {
		c := &cursor{b: b}
		l := c.launch(flags)
		if 4*len(l.shared) > len(b) || len(l.shared) > reg.MaxShared {
			t.Errorf("%d bytes gave %d regions", len(b), len(l.shared))
		}
		size := 0
		for _, a := range l.args {
			size += 8 + len(a.value)
			if a.kind == reg.ArgLocal && a.value != nil {
				t.Error("local memory with a value")
			}
		}
		if size > len(b) || len(l.global) > 3 || len(l.args) > reg.MaxArgs {
			t.Errorf("%d bytes gave %d arguments of %d bytes", len(b), len(l.args), size)
		}
		if waits, must := c.waits(); 8*len(waits) > len(b) || int(must) > len(waits) || c.bad && waits != nil {
			t.Errorf("%d bytes gave %d waits", len(b), len(waits))
		}
		if c.bad && (c.u32() != 0 || c.u64() != 0) {
			t.Error("a bad packet goes on")
		}
	})
}

// FuzzWithin compares the check of a box with the exact one.
func FuzzWithin(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(8), uint64(8), uint64(8), uint64(512))
	f.Add(uint64(1)<<63, uint64(1)<<40, uint64(1)<<40, uint64(1)<<40, uint64(1)<<40, uint64(8), uint64(8), uint64(8), uint64(512))
	f.Add(uint64(7), uint64(1), uint64(1), uint64(16), uint64(64), uint64(1), uint64(3), uint64(7), uint64(512))
	f.Fuzz(func(t *testing.T, x, y, z, row, slice, w, h, d, size uint64) {
		region := [3]uintptr{uintptr(w), uintptr(h), uintptr(d)}
		if _, ok := volume(region); !ok || size > 1<<40 {
			return
		}
		r := cl.Rect{Origin: [3]uintptr{uintptr(x), uintptr(y), uintptr(z)}, RowPitch: uintptr(row), Slice: uintptr(slice)}
		if !within(r, region, size) {
			return
		}
		if row == 0 {
			row = w
		}
		if slice == 0 {
			slice = row * h
		}
		// Accepted: no term overflows, because each is at most size.
		for _, term := range [][2]uint64{{x, 1}, {y, row}, {h - 1, row}, {z, slice}, {d - 1, slice}} {
			if term[1] != 0 && term[0] > size/term[1] {
				t.Fatalf("%+v of %v is within %d", r, region, size)
			}
		}
		if end := x + y*row + z*slice + (d-1)*slice + (h-1)*row + w; end > size {
			t.Errorf("%+v of %v ends at %d of %d", r, region, end, size)
		}
	})
}

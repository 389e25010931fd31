package cfgspace_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

func physical(t *testing.T, v cfgspace.SRIOV) (*cfgspace.Space, error) {
	t.Helper()
	return cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0xd9b0, Class: 0x120000}).SRIOV(v).Build()
}

// "VF Enable controls the assignment of VFs": none exist before, and NumVFs is bounded by
// TotalVFs.
func TestVirtualFunctions(t *testing.T) {
	bars := [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.Memory32, Size: 1 << 16}, 2: {Kind: cfgspace.Memory64, Size: 1 << 20, Prefetchable: true}}
	s, err := physical(t, cfgspace.SRIOV{Total: 16, First: 1, Stride: 2, Device: 0xd9b0, BARs: bars})
	if err != nil {
		t.Fatal(err)
	}
	at := s.SRIOVOffset()
	want := func(n int) {
		t.Helper()
		if got := s.VirtualFunctions(); got != n {
			t.Errorf("%d virtual functions, want %d", got, n)
		}
	}
	s.Write(at+cfgspace.OffSRIOVNum, 2, 4)
	want(0)
	s.Write(at+cfgspace.OffSRIOVControl, 2, cfgspace.SRIOVEnable)
	want(4)
	s.Write(at+cfgspace.OffSRIOVNum, 2, 0xffff)
	want(16)
	s.Write(at+cfgspace.OffSRIOVTotal, 2, 99) // read-only
	want(16)
	if id := s.VirtualFunction(pcie.NewBDF(1, 0, 0), 4); id != pcie.NewBDF(1, 1, 1) {
		t.Errorf("the fifth virtual function is %v", id)
	}
	// Software finds the size of the VF BARs by writing ones.
	s.Write(at+cfgspace.OffSRIOVBAR0, 4, 0xffffffff)
	s.Write(at+cfgspace.OffSRIOVBAR0+8, 4, 0xffffffff)
	if lo, wide := s.Read(at+cfgspace.OffSRIOVBAR0, 4), s.Read(at+cfgspace.OffSRIOVBAR0+8, 4); lo != 0xffff0000 || wide != 0xfff0000c {
		t.Errorf("VF BARs %#x and %#x", lo, wide)
	}
	if d := cfgspace.Describe(s.Bytes()); !strings.Contains(d, "SR-IOV: 65535 of 16 virtual functions, enable 1, offset 1, stride 2, device d9b0") {
		t.Errorf("described as\n%s", d)
	}
	s.Reset(true)
	want(0)
}

func TestSRIOVRefuses(t *testing.T) {
	for name, v := range map[string]cfgspace.SRIOV{
		"none":          {First: 1, Stride: 1},
		"on itself":     {Total: 2, Stride: 1},
		"on each other": {Total: 2, First: 1},
		"I/O":           {Total: 1, First: 1, BARs: [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.IO, Size: 16}}},
		"too wide":      {Total: 1, First: 1, BARs: [pcie.MaxBARs]cfgspace.BAR{5: {Kind: cfgspace.Memory64, Size: 1 << 20}}},
		"odd size":      {Total: 1, First: 1, BARs: [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.Memory32, Size: 100}}},
	} {
		if _, err := physical(t, v); err == nil {
			t.Errorf("%s: built", name)
		}
	}
	s, err := cfgspace.NewEndpoint(cfgspace.Identity{}).Build()
	if err != nil {
		t.Fatal(err)
	}
	if s.SRIOVOffset() != 0 || s.VirtualFunctions() != 0 || s.VirtualFunction(7, 3) != 7 {
		t.Error("a function without the capability has virtual functions")
	}
}

// sriovRegisters describes the capability of physical with VF BARs of 64 KiB and 1 MiB.
func sriovRegisters(at int) []register {
	return []register{
		{0x04, rw, 0x0547},
		{0x04, rw1c, 0xf900 << 16},
		{0x0c, rw, 0xff},
		{0x3c, rw, 0xff},
		{at + 0x08, rw, 9},
		{at + 0x10, rw, 0xffff},
		{at + 0x20, rw, 0x553},
		{at + 0x24, rw, 0xffff0000},
		{at + 0x2c, rw, 0xfff00000},
		{at + 0x30, rw, 0xffffffff},
	}
}

// Random accesses and resets leave the virtual functions that section 9.2.1.2 describes,
// each with a routing ID of its own.
func TestSRIOVFollowsTheModel(t *testing.T) {
	bars := [pcie.MaxBARs]cfgspace.BAR{0: {Kind: cfgspace.Memory32, Size: 1 << 16}, 2: {Kind: cfgspace.Memory64, Size: 1 << 20, Prefetchable: true}}
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 7))
		v := cfgspace.SRIOV{Total: uint16(1 + r.IntN(600)), First: uint16(1 + r.IntN(600)), Stride: uint16(1 + r.IntN(3)), Device: 0xd9b0, BARs: bars}
		s, err := physical(t, v)
		if err != nil {
			t.Fatal(err)
		}
		at := s.SRIOVOffset()
		m := newModel(s, sriovRegisters(at))
		m.pm, m.express = 0x400, 0x400 // none: these bytes are zero
		for step := range 300 {
			off, x := at+r.IntN(0x40), r.Uint32()>>(r.IntN(5)*7)
			switch b := []byte{byte(x), byte(x >> 8), byte(x >> 16), byte(x >> 24)}; r.IntN(8) {
			case 0:
				keep := r.IntN(2) == 0
				s.Reset(keep)
				m.restart(keep)
			case 1:
				off, x, b = at+0x08, uint32(b[0]&1), []byte{b[0] & 1, 0}
				s.Write(off, 2, x)
				m.write(off, b)
			case 2, 3:
				be := uint8(r.IntN(16))
				s.WriteBE(uint16(off), be, x)
				m.enabled(off&^3, be, b)
			default:
				width := 1 << r.IntN(3)
				s.Write(off, width, x)
				m.write(off, b[:width])
			}
			m.compare(t, s, seed, step)
			n := 0
			if m.value[at+8]&1 != 0 {
				n = min(int(v.Total), int(m.word(at+0x10)&0xffff))
			}
			if got := s.VirtualFunctions(); got != n {
				t.Fatalf("seed %d, step %d: %d virtual functions, want %d", seed, step, got, n)
			}
		}
		pf, i := pcie.BDF(r.IntN(1<<16)), r.IntN(int(v.Total))
		if got, want := s.VirtualFunction(pf, i), pcie.BDF(int(pf)+int(v.First)+i*int(v.Stride)); got != want {
			t.Fatalf("seed %d: virtual function %d of %v is %v, want %v", seed, i, pf, got, want)
		}
	}
}

package gpu

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/bits"
	"slices"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/share"
)

// MaxSlices is the largest number of virtual functions of a GPU (TotalVFs).
const MaxSlices = 16

// Physical is a GPU that is divided by SR-IOV (PCI Express Base Specification, section
// 9). Its physical function stays with the box, whose software enables the virtual
// functions and gives each a range of the memory. A virtual function is a GPU of its
// own: registers, queues, interrupts, copy engines, faults and resets. It has no other
// function's state, so none of its addresses names other memory than its own. The
// functions share the processor only, see package dispatch.
type Physical struct {
	spec   Spec
	cfg    *cfgspace.Space
	slices []*GPU
}

// firstSlice is the distance of the first virtual function's routing ID from that of the
// physical function; the others follow one by one.
const firstSlice = 1

// NewPhysical makes a GPU with virtual functions that have the given memory each, in
// bytes, multiples of 64 KiB that together are at most the memory of spec.
func NewPhysical(spec Spec, memory []int64) (*Physical, error) {
	spec = spec.withDefaults()
	if err := spec.check(); err != nil {
		return nil, err
	}
	if n := len(memory); n < 1 || n > MaxSlices {
		return nil, fmt.Errorf("gpu: %d slices: want 1 to %d", n, MaxSlices)
	}
	p := &Physical{spec: spec}
	left := spec.VRAM
	aperture := spec.Aperture
	for i, n := range memory {
		if n < chunkSize || n > left {
			return nil, fmt.Errorf("gpu: slice %d with %d bytes of memory: want 65536 to %d, what is left of the %d bytes", i+1, n, left, spec.VRAM)
		}
		left -= n
		// All virtual functions have BARs of one size, which takes an aperture for the smallest.
		aperture = min(aperture, max(int64(1)<<(bits.Len64(uint64(n))-1), reg.ApertureAlign))
	}
	for i, n := range memory {
		g, err := New(spec.slice(i, n, aperture))
		if err != nil {
			return nil, fmt.Errorf("slice %d: %w", i+1, err)
		}
		p.slices = append(p.slices, g)
	}
	return p, p.configure(aperture)
}

// slice returns the specification of virtual function i.
func (s Spec) slice(i int, memory, aperture int64) Spec {
	suffix := " " + fraction(memory, s.VRAM)
	s.Model = s.Model[:min(len(s.Model), reg.ModelSize-1-len(suffix))] + suffix
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, s.Serial))
	_, _ = h.Write([]byte{byte(i)})
	s.Serial = h.Sum64()
	s.VRAM, s.Aperture, s.INTx = memory, aperture, false // a virtual function has no pin (section 9.3.4.1.16)
	return s
}

// fraction prints the part of the memory, which names the model of a slice: slices of
// one size are of one model.
func fraction(part, whole int64) string {
	a, b := part, whole
	for b != 0 {
		a, b = b, a%b
	}
	if whole/a <= 64 {
		return fmt.Sprintf("%d/%d", part/a, whole/a)
	}
	return fmt.Sprintf("%.0f%%", 100*float64(part)/float64(whole))
}

// configure makes the physical function and enables its virtual functions, as software
// does.
func (p *Physical) configure(aperture int64) error {
	v := cfgspace.SRIOV{Total: MaxSlices, First: firstSlice, Stride: 1, Device: reg.DeviceID}
	v.BARs[reg.BARRegisters] = cfgspace.BAR{Kind: cfgspace.Memory32, Size: reg.RegistersSize}
	v.BARs[reg.BARVRAM] = cfgspace.BAR{Kind: cfgspace.Memory64, Prefetchable: true, Size: uint64(aperture)}
	v.BARs[reg.BARMSIX] = cfgspace.BAR{Kind: cfgspace.Memory32, Size: reg.MSIXSize}
	var err error
	if p.cfg, err = newConfig(p.spec, &v); err != nil {
		return err
	}
	at := p.cfg.SRIOVOffset()
	p.cfg.Write(at+cfgspace.OffSRIOVNum, 2, uint32(len(p.slices)))
	p.cfg.Write(at+cfgspace.OffSRIOVControl, 2, cfgspace.SRIOVEnable|cfgspace.SRIOVMemoryEnable)
	return nil
}

// NewParts makes n virtual functions of a GPU whose memory their owner gives out later
// (SetMemory). Until then each has the least memory.
func NewParts(spec Spec, n int) (*Physical, error) {
	spec = spec.withDefaults()
	p, err := NewPhysical(spec, slices.Repeat([]int64{chunkSize}, n))
	if err != nil {
		return nil, err
	}
	for i, g := range p.slices {
		part := g.spec
		part.Model, part.Aperture = spec.Model, spec.Aperture
		if p.slices[i], err = New(part); err != nil {
			return nil, err
		}
	}
	return p, p.configure(spec.Aperture)
}

// MemoryStep is the granularity of the memory of a part, in bytes.
const MemoryStep = chunkSize

// Config returns the configuration space of the physical function.
func (p *Physical) Config() *cfgspace.Space { return p.cfg }

// Slices returns the virtual functions that are enabled.
func (p *Physical) Slices() []*GPU { return p.slices[:p.cfg.VirtualFunctions()] }

// RoutingID returns the routing ID that virtual function n, from 0, has beside its
// physical function. A host gives the function another one.
func (p *Physical) RoutingID(physical pcie.BDF, n int) pcie.BDF {
	return p.cfg.VirtualFunction(physical, n)
}

// Device describes the GPU to the policies that share it.
func (p *Physical) Device() share.Device {
	return share.Device{SMs: int32(p.spec.Multiprocessors), ThreadsPerSM: threadsPerSM, Memory: p.spec.VRAM}
}

// threadsPerSM is the number of threads that a multiprocessor holds, as in the V100.
const threadsPerSM = 2048

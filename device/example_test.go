package device_test

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// scratch is a device with 4 KiB of memory behind BAR 0.
type scratch struct {
	config *cfgspace.Space
	memory [4096]byte
	id     pcie.BDF     // captured from configuration writes
	out    []tlp.Packet // completions to emit
}

func newScratch() (*scratch, error) {
	config, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0x11e8, Class: 0x058000}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096}).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 128}).
		Build()
	return &scratch{config: config}, err
}

// Receive implements device.Device. The completion of a read has a copy of the
// memory, because a later write may change it before Transmit.
func (s *scratch) Receive(_ time.Duration, p *tlp.Packet) bool {
	switch p.Type {
	case tlp.CfgWr0:
		s.id = p.Target
		v := uint32(p.Data[0]) | uint32(p.Data[1])<<8 | uint32(p.Data[2])<<16 | uint32(p.Data[3])<<24
		s.config.WriteBE(p.Register, p.FirstBE, v)
		s.complete(p, tlp.Packet{Type: tlp.Cpl, ByteCount: 4})
	case tlp.CfgRd0:
		v := s.config.Read(int(p.Register), 4)
		s.complete(p, tlp.Packet{
			Type: tlp.CplD, ByteCount: 4, Length: 1, Data: []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)},
		})
	case tlp.MWr:
		addr, n := p.ByteRange() // a device must also respect gaps in the byte enables
		if _, at, ok := s.config.Decode(addr, uint64(n)); ok {
			copy(s.memory[at:at+uint64(n)], p.Data[addr-p.Addr:])
		}
	case tlp.MRd:
		s.read(p)
	default:
		if p.Type.NonPosted() {
			s.complete(p, tlp.Packet{Type: tlp.Cpl, Status: pcie.UnsupportedRequest, ByteCount: 4})
		}
	}
	return true
}

func (s *scratch) read(p *tlp.Packet) {
	addr, n := p.ByteRange()
	_, at, ok := s.config.Decode(addr, uint64(n))
	if !ok || n == 0 {
		count, lower := p.CompletionBytes()
		s.complete(p, tlp.Packet{Type: tlp.Cpl, Status: pcie.UnsupportedRequest, ByteCount: uint16(count), LowerAddr: lower})
		return
	}
	for c := range tlp.SplitCompletions(addr, n, pcie.DefaultRCB, int(s.config.MaxPayload())) {
		first := at + (c.Addr - addr)
		start, end := first&^3, (first+uint64(c.Len)+3)&^3 // whole double words
		s.complete(p, tlp.Packet{
			Type: tlp.CplD, ByteCount: uint16(c.ByteCount), LowerAddr: c.LowerAddr,
			Length: uint16((end - start) / 4), Data: append([]byte(nil), s.memory[start:end]...),
		})
	}
}

func (s *scratch) complete(request *tlp.Packet, c tlp.Packet) {
	c.Completer, c.Requester, c.Tag = s.id, request.Requester, request.Tag
	c.TC, c.Attr = request.TC, request.Attr
	s.out = append(s.out, c)
}

// Transmit implements device.Device.
func (s *scratch) Transmit(_ time.Duration, emit func(*tlp.Packet) bool) {
	for len(s.out) > 0 && emit(&s.out[0]) {
		s.out = s.out[1:]
	}
}

// Reset implements device.Device.
func (s *scratch) Reset(_ time.Duration, kind device.ResetKind) {
	s.config.Reset(kind == device.FunctionLevelReset)
	s.memory, s.out = [4096]byte{}, nil
}

// The device has no timers and no long computations.
func (s *scratch) Wake() time.Duration                 { return machine.Never }
func (s *scratch) NextJob() (job device.Job, ok bool)  { return nil, false }
func (s *scratch) FinishJob(time.Duration, device.Job) {}

var _ device.Device = (*scratch)(nil)

// A host enables the device, writes to its memory and reads it back.
func Example() {
	d, err := newScratch()
	if err != nil {
		fmt.Println(err)
		return
	}
	id := pcie.NewBDF(1, 0, 0)
	config := func(register uint16, value ...byte) *tlp.Packet {
		return &tlp.Packet{Type: tlp.CfgWr0, Target: id, Register: register, Length: 1, FirstBE: 0xf, Data: value}
	}
	write := tlp.Packet{Type: tlp.MWr, Data: []byte("eight...")}
	write.SetMemory(0xfe000010, len(write.Data))
	read := tlp.Packet{Type: tlp.MRd, Tag: 7}
	read.SetMemory(0xfe000010, 5)

	for _, p := range []*tlp.Packet{
		config(cfgspace.OffBAR0, 0, 0, 0, 0xfe),
		config(cfgspace.OffCommand, cfgspace.CmdMemory, 0, 0, 0),
		&write, &read,
	} {
		d.Receive(0, p)
		d.Transmit(0, func(p *tlp.Packet) bool {
			fmt.Printf("%v %v, tag %d, %d bytes left: %q\n", p.Type, p.Status, p.Tag, p.ByteCount, p.Data)
			return true
		})
	}
	// Output:
	// Cpl SC, tag 0, 4 bytes left: ""
	// Cpl SC, tag 0, 4 bytes left: ""
	// CplD SC, tag 7, 5 bytes left: "eight..."
}

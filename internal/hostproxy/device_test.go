package hostproxy_test

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/tlp"
)

// scratch is a register without a function.
const scratch = reg.Scratch

// spy is a GPU that notes what is written to its scratch register, and can be
// told to answer nothing.
type spy struct {
	*gpu.GPU

	mute   atomic.Bool   // completions are dropped
	left   atomic.Int64  // number of completions not dropped; 0: mute decides
	delay  atomic.Bool   // completions wait until it is false again
	kept   []tlp.Packet  // those that wait
	writes atomic.Uint64 // to the scratch register
	wrong  atomic.Uint64 // that were not the number of writes before them
}

func newSpy(d device.Device) device.Device { return &spy{GPU: d.(*gpu.GPU)} }

func (s *spy) Receive(now time.Duration, p *tlp.Packet) bool {
	if p.Type == tlp.MWr && p.Length == 1 && p.Addr%reg.RegistersSize == scratch {
		if n := s.writes.Add(1) - 1; uint64(binary.LittleEndian.Uint32(p.Data)) != n&0xffff_ffff {
			s.wrong.Add(1)
		}
	}
	return s.GPU.Receive(now, p)
}

func (s *spy) Transmit(now time.Duration, emit func(*tlp.Packet) bool) {
	for len(s.kept) > 0 && !s.delay.Load() && emit(&s.kept[0]) {
		s.kept = s.kept[1:]
	}
	s.GPU.Transmit(now, func(p *tlp.Packet) bool {
		if p.Type.Completion() && s.left.Load() > 0 && s.left.Add(-1) == 0 {
			s.mute.Store(true)
		}
		switch {
		case p.Type.Completion() && s.mute.Load():
			return true
		case p.Type.Completion() && s.delay.Load():
			late := *p
			late.Data = append([]byte(nil), p.Data...)
			s.kept = append(s.kept, late)
			return true
		}
		return emit(p)
	})
}

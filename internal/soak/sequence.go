package soak

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/tlp"
)

// sequence is a software GPU that checks the writes to its first scratch register:
// they should be the numbers 0, 1, 2 and so on after each conventional reset.
type sequence struct {
	*gpu.GPU
	seen  atomic.Uint64 // writes since the reset
	wrong atomic.Uint64 // writes that were not the next number
}

var (
	_ device.Device   = (*sequence)(nil)
	_ device.Scrubber = (*sequence)(nil)
	_ device.Checker  = (*sequence)(nil)
)

// Receive implements device.Device.
func (s *sequence) Receive(now time.Duration, p *tlp.Packet) bool {
	if p.Type == tlp.MWr && len(p.Data) == 4 {
		if bar, off, ok := s.Config().Decode(p.Addr, 4); ok && bar == reg.BARRegisters && off == reg.Scratch {
			if n := s.seen.Add(1) - 1; uint64(binary.LittleEndian.Uint32(p.Data)) != n&0xffff_ffff {
				s.wrong.Add(1)
			}
		}
	}
	return s.GPU.Receive(now, p)
}

// Reset implements device.Device.
func (s *sequence) Reset(now time.Duration, kind device.ResetKind) {
	if kind == device.ConventionalReset {
		s.seen.Store(0)
		s.wrong.Store(0)
	}
	s.GPU.Reset(now, kind)
}

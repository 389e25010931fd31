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

// numbers checks the writes to a register: they should be the numbers 0, 1, 2 and so
// on after each reset.
type numbers struct {
	seen  atomic.Uint64 // writes since the reset
	wrong atomic.Uint64 // writes that were not the next number
}

func (n *numbers) note(v uint32) {
	if next := n.seen.Add(1) - 1; uint64(v) != next&0xffff_ffff {
		n.wrong.Add(1)
	}
}

func (n *numbers) restart() {
	n.seen.Store(0)
	n.wrong.Store(0)
}

// sequence is a software GPU that checks the writes to its first scratch register.
type sequence struct {
	*gpu.GPU
	numbers
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
			s.note(binary.LittleEndian.Uint32(p.Data))
		}
	}
	return s.GPU.Receive(now, p)
}

// Reset implements device.Device.
func (s *sequence) Reset(now time.Duration, kind device.ResetKind) {
	if kind == device.ConventionalReset {
		s.restart()
	}
	s.GPU.Reset(now, kind)
}

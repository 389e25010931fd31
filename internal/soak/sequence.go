package soak

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/tlp"
)

// numbers checks the writes to a register: they should be the numbers 0, 1, 2 and so
// on after each reset.
type numbers struct {
	mu     sync.Mutex // guards the fields below
	seen   uint64     // writes since the reset
	wrong  uint64     // writes that were not the next number
	resets uint64
}

func (n *numbers) note(v uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if uint64(v) != n.seen&0xffff_ffff {
		n.wrong++
	}
	n.seen++
}

func (n *numbers) restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen, n.wrong = 0, 0
	n.resets++
}

func (n *numbers) counts() (seen, wrong, resets uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.seen, n.wrong, n.resets
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

package gpu

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

var _ device.Migratable = (*GPU)(nil)

// Movable implements device.Migratable.
func (g *GPU) Movable() error {
	switch ok, detail := g.Check(); {
	case !ok:
		return errors.New(detail)
	case g.hung:
		return errors.New("the engines of the GPU hang: reset it first")
	case g.channel.engine != nil && g.channel.mover() == nil:
		return errors.New("the compute engine of the GPU cannot move")
	case g.channel.engine != nil:
		return g.channel.mover().Movable()
	}
	return nil
}

// Track implements device.Migratable.
func (g *GPU) Track(on bool) {
	g.vram.track(on)
	if m := g.channel.mover(); m != nil {
		m.Track(on)
		g.channel.moving, g.channel.streamed = on, 0
	}
}

// Changed implements device.Migratable.
func (g *GPU) Changed() (n uint64) {
	if g.vram.changes == nil {
		return 0
	}
	if m := g.channel.mover(); m != nil {
		n = m.Changed()
	}
	return n + g.vram.changes.count*pageSize
}

// ChangedMemory implements device.Migratable. Behind VRAM comes the stream of the compute
// engine.
func (g *GPU) ChangedMemory(from uint64, buf []byte) (addr uint64, n int, later bool) {
	if g.vram.changes == nil {
		return 0, 0, false
	}
	if from < uint64(g.vram.size) {
		page, pages := g.vram.changes.next(int64(from/pageSize), len(buf)/pageSize)
		if pages > 0 {
			g.vram.read(buf[:pages*pageSize], page*pageSize)
			return uint64(page * pageSize), pages * pageSize, false
		}
	}
	m := g.channel.mover()
	if m == nil {
		return 0, 0, false
	}
	n, later = m.Save(buf)
	addr = uint64(g.vram.size) + g.channel.streamed
	g.channel.streamed += uint64(n)
	return addr, n, later
}

// Freeze implements device.Migratable.
func (g *GPU) Freeze() { g.frozen = true }

// Thaw implements device.Migratable.
func (g *GPU) Thaw(now time.Duration) {
	g.frozen = false
	if j := g.ended; j != nil {
		g.ended = nil
		g.FinishJob(now, j)
	}
}

// StoreMemory implements device.Migratable.
func (g *GPU) StoreMemory(addr uint64, p []byte) error {
	if m := g.channel.mover(); m != nil && addr >= uint64(g.vram.size) {
		return m.Load(addr-uint64(g.vram.size), p)
	}
	if !g.vram.contains(addr, uint64(len(p))) {
		return fmt.Errorf("gpu: %d bytes at %#x are outside the memory of %d bytes", len(p), addr, g.vram.size)
	}
	g.vram.write(int64(addr), p)
	return nil
}

// Settled implements device.Migratable.
func (g *GPU) Settled() bool {
	m := g.channel.mover()
	return m == nil || m.Settled()
}

// Window implements device.Migratable.
func (g *GPU) Window() (id pcie.BDF, header [64]byte) {
	copy(header[:], g.cfg.Bytes())
	return g.id, header
}

// showSerial puts the serial number that the driver sees into the configuration space.
func (g *GPU) showSerial() {
	at := g.serialAt
	g.cfg.Poke(at+4, 4, uint32(g.serial))
	g.cfg.Poke(at+8, 4, uint32(g.serial>>32))
}

// Snapshot implements device.Migratable. A command that computes begins again at the
// target: it reads snapshots, so nothing of it shows before its end.
func (g *GPU) Snapshot(now time.Duration) (b []byte, ok bool) {
	g.now = now
	if !g.frozen || g.req.InFlight() > 0 || g.held || g.answers.Len() > 0 {
		return nil, false
	}
	if !g.restChannel() {
		return nil, false
	}
	s := &state{
		shape: g.shape(), serial: g.serial, id: g.id, errors: g.messages.errors, asserted: g.messages.asserted,
		time: int64(g.deviceTime()), regs: g.regs, msix: g.msix, queues: make([]queueState, len(g.queues)),
	}
	copy(s.config[:], g.cfg.Bytes())
	s.channel = g.channel.snapshot(now)
	for i := range g.queues {
		s.queues[i] = g.snapshotQueue(&g.queues[i])
	}
	return s.append(nil), true
}

func (g *GPU) snapshotQueue(q *queue) queueState {
	s := queueState{
		base: q.base, size: q.size, enabled: q.enabled, halted: q.halted, tail: q.tail, issue: q.issue, head: q.head,
		errCode: q.errCode, errAddr: q.errAddr, errID: q.errID, vector: q.vector, fence: q.fence, statusAddr: q.statusAddr,
		report: q.report, since: relative(g.now, q.since), before: relative(g.now, q.before),
	}
	if !q.enabled {
		return s
	}
	// A job or a DELAY begins only at head, and again from there.
	if q.head != q.issue && q.command(q.head).state == commandWaiting {
		s.issue = q.head
	}
	for i := q.head; i != q.fetched; i++ {
		c := q.command(i)
		o := commandStateOf{state: c.state, fail: c.fail, at: c.at, ready: relative(g.now, c.ready)}
		c.Append(o.raw[:0])
		switch c.state {
		case commandIssuing:
			o.pos, o.addr, o.left = c.pos, c.addr, c.left
			if c.list != nil {
				o.used = c.list.used
			}
		case commandWaiting: // no read is outstanding, so it computes
			o.state = commandReady
		case commandFetching, commandReady, commandDone:
		}
		s.commands = append(s.commands, o)
	}
	return s
}

// Restore implements device.Migratable.
func (g *GPU) Restore(now time.Duration, b []byte) (ok bool, err error) {
	g.now = now
	s, err := parseState(b, len(g.queues))
	if err != nil {
		return false, err
	}
	if err := s.check(g); err != nil {
		return false, err
	}
	if ok, err := g.channelLoaded(&s.channel); !ok || err != nil {
		return false, err
	}
	if err := g.cfg.Adopt(s.config[:]); err != nil {
		return false, err
	}
	g.Freeze()
	g.serial, g.id = s.serial, s.id
	g.msix.Entries, g.msix.Pending = s.msix.Entries, s.msix.Pending
	g.showSerial()
	g.msix.Pending &= 1<<g.spec.Vectors - 1
	g.messages.errors, g.messages.asserted = s.errors, s.asserted
	s.regs.start, s.regs.eccCorrected, s.regs.eccFatal = now-time.Duration(s.time), g.regs.eccCorrected, g.regs.eccFatal
	s.regs.apertureBase &= maxVRAM - reg.ApertureAlign
	g.regs = s.regs
	g.retag()
	g.req.SetID(g.id)
	for i := range g.queues {
		g.restoreQueue(&g.queues[i], &s.queues[i])
	}
	g.restoreChannel(&s.channel)
	return true, nil
}

func (g *GPU) restoreQueue(q *queue, s *queueState) {
	*q = queue{
		index: q.index, epoch: q.epoch + 1, base: s.base, size: s.size, enabled: s.enabled, halted: s.halted,
		tail: s.tail, fetched: s.head + uint32(len(s.commands)), issue: s.issue, head: s.head,
		errCode: s.errCode, errAddr: s.errAddr, errID: s.errID, vector: s.vector, fence: s.fence, statusAddr: s.statusAddr,
		report: s.report, since: g.now - time.Duration(s.since), before: g.now - time.Duration(s.before),
	}
	if !q.enabled {
		return
	}
	q.win = new(windowMemory)
	for i := range s.commands {
		o := &s.commands[i]
		c := q.command(q.head + uint32(i))
		*c = command{state: o.state, pos: o.pos, addr: o.addr, left: o.left, fail: o.fail, at: o.at, ready: g.now - time.Duration(o.ready)}
		c.Command, _, _ = reg.ParseCommand(o.raw[:]) // check has parsed it
		if c.fail == reg.NoError {
			c.fail, c.at = g.checkCommand(&c.Command)
		}
		if c.fail == reg.NoError && c.state == commandIssuing && c.Flags&reg.CopySegment != 0 && q.takeList(c) {
			c.list.asked, c.list.used = o.used, o.used // the rest is read again
		}
	}
}

// validRing reports whether a ring of size commands can be at a bus address.
func validRing(base uint64, size uint32) bool {
	return base%reg.RingAlign == 0 && base <= -(uint64(size)*reg.CommandSize) &&
		bits.OnesCount32(size) == 1 && size >= reg.MinRingEntries && size <= reg.MaxRingEntries
}

package engine

import (
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxHeld is more than the credit of the peer allows with a link's default window.
const maxHeld = 8 << 20

// held keeps, in order, the TLPs that the handler could not take. They count
// against the credit of the peer, which therefore stops sending before the
// queue exceeds the window of the link.
type held struct {
	packets []tlp.Packet // Data is a copy
	bytes   int
	told    int // bytes that the link was last told of
}

// received gives a TLP of the link to the handler, or queues it behind those
// that are held.
func (b *Binding) received(p *tlp.Packet) {
	e := Entry{b.group}
	b.watch(e, true, p)
	if len(b.held.packets) == 0 {
		if b.handler.Receive(e, p) {
			return
		}
		b.group.holding = append(b.group.holding, b)
	}
	kept := *p
	kept.Data = append([]byte(nil), p.Data...)
	kept.Prefix = append([]byte(nil), p.Prefix...)
	b.held.packets = append(b.held.packets, kept)
	b.held.bytes += heldCost(&kept)
}

// receivedRun gives a run of the link to the handler, or its TLPs one by one: behind
// TLPs that are held, and while a watcher looks at each.
func (b *Binding) receivedRun(r *link.Run) {
	g := b.group
	w := g.cfg.Watcher
	if b.runs != nil && len(b.held.packets) == 0 && (w == nil || !w.Watching()) && b.runs.ReceiveRun(Entry{g}, r) {
		b.watchRun(Entry{g}, true, r)
		return
	}
	for i := range r.Count {
		r.TLP(i, &g.single)
		b.received(&g.single)
	}
}

// noteHeld tells the link how much is held, after a delivery.
func (b *Binding) noteHeld() {
	if b.held.bytes == b.held.told {
		return
	}
	e := Entry{b.group}
	b.held.told = b.held.bytes
	b.link.Hold(e.Now(), b.held.bytes)
	if b.held.bytes > maxHeld {
		b.Shutdown(e, CloseProtocol) // the peer ignores its credit
	}
}

// heldCost returns the part of the peer's credit that a TLP takes.
func heldCost(p *tlp.Packet) int { return len(p.Data) + frame.TLPCost }

// retry offers the held TLPs again, as far as the budget of the entry goes, and reports
// whether some are still held.
func (b *Binding) retry() bool {
	taken := 0
	for taken < len(b.held.packets) {
		if b.group.budget <= 0 {
			b.touch() // the next entry goes on
			break
		}
		if e := (Entry{b.group}); !b.handler.Receive(e, &b.held.packets[taken]) {
			b.refused(e)
			break
		}
		b.group.budget--
		b.held.bytes -= heldCost(&b.held.packets[taken])
		b.held.packets[taken] = tlp.Packet{}
		taken++
	}
	if taken > 0 {
		b.held.packets = b.held.packets[taken:]
		b.noteHeld()
		b.touch() // the link tells the peer of the room
	}
	if len(b.held.packets) == 0 {
		b.held.packets = nil
		return false
	}
	return true
}

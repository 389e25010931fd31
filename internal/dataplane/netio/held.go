package netio

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxHeld is beyond what the peer's credit allows with the default window of a link.
const maxHeld = 8 << 20

// held keeps the TLPs that the handler could not take, in order. What it holds
// counts against the credit of the peer, which therefore stops sending before
// the queue grows beyond the window of the link.
type held struct {
	packets []tlp.Packet // Data is a copy
	bytes   int
	told    int // bytes of which the link knows
}

// deliver gives a TLP to the handler, or keeps it behind those that wait.
func (b *Binding) deliver(p *tlp.Packet) {
	b.watch(true, p)
	if len(b.held.packets) == 0 {
		if b.handler.Deliver(b.group.now, p) {
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

// noteHeld tells the link what is held, after a delivery.
func (b *Binding) noteHeld(now time.Duration) {
	if b.held.bytes == b.held.told {
		return
	}
	b.held.told = b.held.bytes
	b.link.Hold(now, b.held.bytes)
	if b.held.bytes > maxHeld {
		b.Shutdown(now, CloseProtocol) // a peer that ignores its credit
	}
}

// heldCost is what a TLP takes of the peer's credit.
func heldCost(p *tlp.Packet) int { return len(p.Data) + frame.TLPCost }

// retry offers the held TLPs again and reports whether some are still held.
func (b *Binding) retry(now time.Duration) bool {
	taken := 0
	for taken < len(b.held.packets) && b.handler.Deliver(now, &b.held.packets[taken]) {
		b.held.bytes -= heldCost(&b.held.packets[taken])
		b.held.packets[taken] = tlp.Packet{}
		taken++
	}
	if taken > 0 {
		b.held.packets = b.held.packets[taken:]
		b.noteHeld(now)
		b.touch() // to tell the peer
	}
	if len(b.held.packets) == 0 {
		b.held.packets = nil
		return false
	}
	return true
}

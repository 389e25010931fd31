package hostproxy

import (
	"context"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// embeddedPort is a slot of the embedded host.
type embeddedPort struct {
	front *Embedded
	slot  *slot
	// reads are the reads of host memory that wait for their completions. All other requests
	// of the device wait in the root complex. Reads have one queue: a device whose answers
	// came in another order would have no tags in a row, and make no runs.
	reads readQueue

	// Made once: they would allocate in the paths that use them.
	out     tlp.Packet
	load    func(addr uint64, dst []byte) bool
	read    transaction.ReadFunc
	sendTLP func(*tlp.Packet) bool
}

func newEmbeddedPort(f *Embedded, s *slot) *embeddedPort {
	p := &embeddedPort{front: f, slot: s, load: f.host.ReadRun}
	p.reads.buf = make([]byte, pcie.MaxPayload+2*pcie.DW)
	p.read = func(addr uint64, dst []byte) pcie.CplStatus {
		if !p.load(addr, dst) {
			return pcie.UnsupportedRequest
		}
		return pcie.SuccessfulCompletion
	}
	p.sendTLP = func(t *tlp.Packet) bool { return s.forward(p.reads.entry, t) }
	return p
}

var (
	_ plugged = (*embeddedPort)(nil)
	_ runPort = (*embeddedPort)(nil)
)

func (p *embeddedPort) Receive(e engine.Entry, t *tlp.Packet) bool {
	if t.Type == tlp.MRd || t.Type == tlp.MRdLk {
		if addr, n := t.ByteRange(); p.front.host.ReceiveReads(addr, max(n, 1), 1) {
			p.owe()
			if !p.reads.add(t, p.payload()) {
				p.slot.refuse(e, t, pcie.CompleterAbort)
			}
			return true
		}
	}
	p.front.host.Receive(e.Now(), t)
	return true
}

// ReceiveRun stores a run of writes, or queues a run of reads.
func (p *embeddedPort) ReceiveRun(_ engine.Entry, r *link.Run) bool {
	host := p.front.host
	switch {
	case r.Writes():
		return host.ReceiveWrites(r.First.Addr, r.Data, r.Count)
	case !r.Reads() || !p.reads.fits(r, p.payload()) || !host.ReceiveReads(r.First.Addr, r.Count*r.Size(), r.Count):
		return false
	}
	p.owe()
	return p.reads.addRun(r, p.payload())
}

// payload returns the size of the largest completion.
func (p *embeddedPort) payload() int { return int(p.front.spec.Host.MaxPayload) }

// owe makes the front answer the reads that are about to be queued.
func (p *embeddedPort) owe() {
	if p.reads.empty() {
		p.front.owing = append(p.front.owing, p)
	}
}

// answer sends completions of reads while the link has room. It reports whether none is
// left.
func (p *embeddedPort) answer(e engine.Entry) bool {
	p.reads.entry = e
	for !p.reads.empty() && p.slot.roomFor(e, p.payload()) {
		if p.reads.answerRun(e, p.slot, p.load) {
			continue
		}
		if !p.reads.front().Emit(&p.out, p.reads.buf, p.read, p.sendTLP) {
			break
		}
		p.reads.pop()
	}
	return p.reads.empty()
}

// Transmit moves TLPs of the whole host.
func (p *embeddedPort) Transmit(e engine.Entry) { p.front.pump(e) }

// Wake returns machine.Never: the front has a timer for the whole host.
func (p *embeddedPort) Wake(engine.Entry) time.Duration { return machine.Never }

// Owes reports whether reads of the device wait for their completions.
func (p *embeddedPort) Owes(engine.Entry) bool { return !p.reads.empty() }

// DeviceLost is a surprise removal: the drivers learn of it at once.
func (p *embeddedPort) DeviceLost(e engine.Entry) {
	p.remove(e)
	p.front.pump(e)
}

func (p *embeddedPort) remove(engine.Entry) {
	p.reads.drop()
	p.front.find(p.slot.index, nil)
	p.front.sw.SetPresence(p.slot.index, false)
	p.front.host.Unplugged(p.front.port(p.slot.index).Secondary)
}

// unplug returns at once: the drivers of the embedded host release a removed device.
func (p *embeddedPort) unplug(context.Context) (string, error) { return "", nil }

// held returns false: enumeration leaves every function bus master, so only
// traffic shows the use of a device.
func (p *embeddedPort) held(engine.Entry) bool { return false }

func (p *embeddedPort) close() {
	g := p.slot.host.group
	e := g.Enter()
	p.remove(e)
	g.Leave(e)
	p.front.port(p.slot.index).Children = nil
}

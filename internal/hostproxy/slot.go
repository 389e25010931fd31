package hostproxy

import (
	"errors"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/internal/hostproxy/controller"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// port is the host side of a slot: a VM or the embedded host. It is a machine
// like engine.Handler, with the same verbs.
type port interface {
	// Receive takes a TLP of the device that is addressed to the host. It returns
	// false if the port cannot take it now.
	Receive(e engine.Entry, p *tlp.Packet) bool
	// Transmit sends the port's TLPs for the device.
	Transmit(e engine.Entry)
	// Wake returns when Transmit is due without further input, or machine.Never.
	Wake(e engine.Entry) time.Duration
	// Owes reports whether completions for the device wait.
	Owes(e engine.Entry) bool
	// DeviceLost tells the port that the device is gone. The port answers every
	// request that waits for the device.
	DeviceLost(e engine.Entry)
}

// runPort is a port that takes runs of memory requests.
type runPort interface {
	port
	// ReceiveRun stores a run of bytes in host memory, or queues a run of reads. It returns
	// false if it cannot take all of them at once: the requests then come one by one.
	ReceiveRun(e engine.Entry, r *link.Run) bool
}

// slot is one slot of the virtual switch.
type slot struct {
	agent.SlotState
	host  *Proxy
	index int
	kick  engine.Signal // wakes the controller

	// Guarded by the group. Only the controller changes them, except gone and
	// roomy, and binding at a switch (see succession).
	binding *engine.Binding // nil: empty
	port    port            // nil: the host does not see the device yet
	root    *requestPort
	gone    bool           // the link is down; the slot answers the host in the device's place
	roomy   chan struct{}  // closed when requests may fit again; nil: no caller waits
	serves  *vfiouser.Conn // for which the device may work, see vm.admit; nil: it was reset

	// A live migration, guarded by the group. Only the controller changes next.
	next      *succession         // nil: none
	words     []migration.Message // for the box, when the link has room
	kept      []tlp.Packet        // requests and writes for the device
	keptBytes int
	migration atomic.Pointer[dxpuv1.Migration]

	// Used by run only:
	control controller.Controller
	seen    controller.Seen
	plugged plugged // nil: not shown

	guest    guestView
	counters counters
}

// counters of a slot since the proxy started, beside its traffic.
type counters struct {
	dmaRefused        atomic.Uint64 // DMA outside the VM's mappings
	unsupported       atomic.Uint64 // TLPs without a destination
	translated        atomic.Uint64 // requests with a translated address, or a prefix
	poisoned, digests atomic.Uint64 // TLPs with EP set, and with a wrong ECRC
	timeouts          atomic.Uint64 // Completion Timeouts
	interrupts        atomic.Uint64
	errors            atomic.Uint64 // ERR_* messages of the device
	ejected           atomic.Uint64 // removals by the guest itself
	forced            atomic.Uint64 // removals without the guest's consent
}

var _ engine.RunHandler = (*slot)(nil)

// id is the Routing ID of the device in the slot.
func (s *slot) id() pcie.BDF { return mapping.SlotID(s.index) }

// Receive routes a TLP of the device: to the host, to the device of another
// slot, or nowhere (paper, section 3.3.3).
func (s *slot) Receive(e engine.Entry, p *tlp.Packet) bool {
	if m, ok := migration.Parse(p); ok {
		if s.next != nil {
			s.next.heard(e, m, true)
		}
		return true
	}
	if !s.route(e, p) {
		return false
	}
	s.Traffic.FromDevice.Count(1, len(p.Data))
	return true
}

// ReceiveRun takes a run of memory requests that all go to the memory of the host. A run
// is intact: see link.Run.
func (s *slot) ReceiveRun(e engine.Entry, r *link.Run) bool {
	p, ok := s.port.(runPort)
	if !ok || !r.First.Type.Memory() || !transaction.Routable(&r.First) ||
		!s.host.router.AllToHost(s.index, r.First.Addr, uint64(r.Count*r.Size())) || !p.ReceiveRun(e, r) {
		return false
	}
	s.Traffic.FromDevice.Count(r.Count, len(r.Data))
	return true
}

func (s *slot) route(e engine.Entry, p *tlp.Packet) bool {
	if !transaction.Routable(p) {
		s.counters.translated.Add(1)
		s.reject(e, p, "address translation or prefix")
		return true
	}
	switch r := s.host.router.FromSlot(s.index, p); r.Where {
	case mapping.ToHost:
		return s.toHost(e, p)
	case mapping.ToSlot:
		if !s.host.slots[r.Slot].forward(e, p) {
			return false
		}
		s.Traffic.Peer.Add(1)
	case mapping.Unsupported:
		s.counters.unsupported.Add(1)
		s.refuse(e, p, pcie.UnsupportedRequest)
	case mapping.ToAll, mapping.Here: // done
	}
	return true
}

// reject refuses a TLP that no device should send, and logs why.
func (s *slot) reject(e engine.Entry, p *tlp.Packet, why string) {
	s.host.log.Warn("TLP of the device rejected", "slot", s.index, "type", p.Type, "reason", why)
	s.refuse(e, p, pcie.UnsupportedRequest)
}

// toHost hands a TLP to the port, or to the requests of the probe while there is
// no port. The host is the last receiver: it drops TLPs with bad data.
func (s *slot) toHost(e engine.Entry, p *tlp.Packet) bool {
	switch bad := transaction.Inspect(p); bad {
	case transaction.Intact:
	case transaction.Poisoned:
		s.counters.poisoned.Add(1)
		s.reject(e, p, bad.String())
		return true
	case transaction.BadDigest: // its requester ID may be wrong, too: no answer
		s.counters.digests.Add(1)
		s.host.log.Warn("TLP of the device discarded", "slot", s.index, "type", p.Type, "reason", bad.String())
		return true
	}
	switch {
	case s.port != nil:
		return s.port.Receive(e, p)
	case p.Type.Completion():
		s.root.complete(e, p)
	default:
		s.counters.unsupported.Add(1)
		s.refuse(e, p, pcie.UnsupportedRequest)
	}
	return true
}

// forward sends a TLP of another device of this switch down to this one.
func (s *slot) forward(e engine.Entry, p *tlp.Packet) bool {
	if s.binding == nil || s.gone {
		return true
	}
	if s.mustKeep(p.Type.Completion()) {
		return s.keep(p)
	}
	return !errors.Is(s.send(e, p), link.ErrFull)
}

// roomFor reports whether the link takes a completion with n bytes of payload.
func (s *slot) roomFor(e engine.Entry, n int) bool {
	return s.binding == nil || s.gone || !s.mustKeep(true) && s.binding.Room(e) >= n
}

// send sends a TLP to the device and counts it.
func (s *slot) send(e engine.Entry, p *tlp.Packet) error {
	err := s.binding.Send(e, p)
	if err == nil {
		s.Traffic.ToDevice.Count(1, len(p.Data))
	}
	return err
}

// sendRun sends the TLPs of a run to the device and counts them.
func (s *slot) sendRun(e engine.Entry, r *link.Run) error {
	err := s.binding.SendRun(e, r)
	if err == nil {
		s.Traffic.ToDevice.Count(r.Count, len(r.Data))
	}
	return err
}

// refuse answers a non-posted request that the host cannot serve. If there is
// no room for the answer, the requester's own Completion Timeout ends the request.
func (s *slot) refuse(e engine.Entry, p *tlp.Packet, status pcie.CplStatus) {
	if !p.Type.NonPosted() || s.binding == nil {
		return
	}
	var out tlp.Packet
	transaction.Respond(&out, p, rootID, status)
	_ = s.forward(e, &out)
}

// Transmit continues the work that waits for the link or for a time.
func (s *slot) Transmit(e engine.Entry) {
	s.release(e)
	s.root.expire(e)
	if s.port != nil {
		s.port.Transmit(e)
	}
	s.Traffic.Publish()
	s.noteRoom(e)
}

// noteRoom wakes the callers of waitRoom when the link has room for any request
// and a tag is free, or when the link is down.
func (s *slot) noteRoom(e engine.Entry) {
	if s.roomy == nil {
		return
	}
	if s.gone || s.binding == nil || !s.held() && s.binding.Room(e) >= pcie.MaxPayload && s.root.requester.Free(e.Now()) > 0 {
		close(s.roomy)
		s.roomy = nil
	}
}

// waitRoom returns a channel that is closed when a request that failed with
// errBusy is worth another try.
func (s *slot) waitRoom(engine.Entry) <-chan struct{} {
	if s.roomy == nil {
		s.roomy = make(chan struct{})
	}
	return s.roomy
}

// yield leaves the group until a request that failed with errBusy is worth another
// try.
func (s *slot) yield(e engine.Entry) engine.Entry {
	room := s.waitRoom(e)
	s.host.group.Leave(e)
	<-room
	return s.host.group.Enter()
}

// Wake returns when Transmit is due.
func (s *slot) Wake(e engine.Entry) time.Duration {
	wake := s.root.requester.Wake()
	if s.port != nil {
		wake = min(wake, s.port.Wake(e))
	}
	if s.moving() {
		wake = min(wake, s.next.deadline)
	}
	return wake
}

// LinkChanged answers the host in the device's place once the link is down, and
// wakes the controller, which takes the device away.
func (s *slot) LinkChanged(e engine.Entry, state link.State) {
	if state == link.Down {
		s.lose(e)
	}
	s.wake()
}

// lose answers the host in the device's place from now on.
func (s *slot) lose(e engine.Entry) {
	if !s.gone {
		s.gone = true
		s.forget()
		if s.next != nil && s.next.phase < switched {
			s.next.fail(e, "the link to the box of the source is down")
		}
		s.root.cancel(e)
		if s.port != nil {
			s.port.DeviceLost(e)
		}
	}
	s.noteRoom(e)
}

// wake makes the controller take another step.
func (s *slot) wake() { s.kick.Set() }

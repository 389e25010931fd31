package boxproxy

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/boxproxy/controller"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// slot is one place of the box: a device and, while it is bound, its binding.
// Only run changes domain and binding: domain while there is no binding, and
// binding in an entry of the group. Every entry may read them.
type slot struct {
	agent.SlotState
	box    *Box
	index  int
	device device.Device // nil: empty
	abilities
	place      Slot
	dispatcher *dispatcher   // of the slices of a GPU; nil: the device is no slice
	kick       engine.Signal // wakes the controller

	domain  *domain // nil: not bound
	binding *engine.Binding
	entry   engine.Entry           // of the Transmit that is under way
	emitTo  func(*tlp.Packet) bool // emit, made once
	jobs    atomic.Int32           // computations of the device that have not ended
	config  engine.BindingConfig   // from Claim to Attach
	control controller.Controller  // used by run only

	// A live migration, see docs/migration.md. transfer is used by run only, the others
	// are guarded by the group.
	transfer  *transfer
	departure *departure         // of the slot's device; nil: none
	arrival   *arrival           // of another device's state; nil: none
	stopping  bool               // the host has said STOP
	rested    bool               // the device has stopped, and awaits nothing
	moved     bool               // the link has ended meanwhile: the host has another device for its slot
	arriving  bool               // the host has not said START: the device does nothing
	bound     uint64             // domain.started when the link was opened
	started   uint64             // domain.started at the START of the device; 0: it has not come by a migration
	installed *arrival           // whose state the device has; nil: none
	word      *migration.Message // for the host, when its link has room; nil: none
	migration atomic.Pointer[dxpuv1.Migration]

	seen    atomic.Pointer[condition]   // of the device; nil: the slot is empty
	reset   atomic.Uint64               // number of the last reset made for the manager
	live    atomic.Pointer[attachment]  // nil: not bound
	calls   chan *call                  // of With
	dropped atomic.Uint64               // TLPs of the device without a link that takes them
	part    atomic.Pointer[dxpuv1.Part] // of the GPU, that the device is; nil: none
	wish    *dxpuv1.Part                // of the manager that led to part; used by run only
	evicted atomic.Pointer[string]      // why the dispatcher has ended the binding; nil: it has not
}

func newSlot(b *Box, index int, cfg Slot) *slot {
	s := &slot{box: b, index: index, device: cfg.Device, place: cfg, kick: b.fabric.NewSignal(), calls: make(chan *call, maxCalls)}
	s.Status.Clock = b.fabric.WallTime
	s.emitTo = s.emit
	if s.device != nil {
		s.abilities = newAbilities(s.device, s.notified, s.slack)
		if p, ok := s.device.(device.Poller); ok {
			b.fabric.Poll(p)
		}
		s.seen.Store(s.condition())
	}
	return s
}

// domain is a virtual switch of a host. The slots bound to it share one group, so
// one may hand a TLP to another.
type domain struct {
	name  string
	group engine.GroupDriver
	slots atomic.Int32

	started uint64 // devices that have come by migrations and got START; guarded by the group
}

// attachment is the open link of a slot, for other goroutines than run.
type attachment struct {
	group   engine.GroupDriver
	binding *engine.Binding
}

// notified asks for Transmit: the device has TLPs to emit, see device.Notifier.
func (s *slot) notified() {
	if a := s.live.Load(); a != nil {
		e := a.group.Enter()
		a.binding.Touch(e)
		a.group.Leave(e)
	}
}

var _ engine.PeerHandler = (*slot)(nil)

// Receive hands a TLP from the host to the device. A device that
// waits for the state of another one takes none before the state. A host that has stopped
// the device sends completions, and before START or RESUME what it has kept.
func (s *slot) Receive(e engine.Entry, p *tlp.Packet) bool {
	if m, ok := migration.Parse(p); ok {
		s.order(e, m)
		return true
	}
	if s.arriving && s.installed == nil {
		return true
	}
	if !s.device.Receive(e.Now(), p) {
		return false
	}
	s.Traffic.ToDevice.Count(1, len(p.Data))
	if p.Type == tlp.CfgWr0 {
		s.box.snoop(s.index, p)
	}
	return true
}

// ReceivePeer hands a TLP from a neighbour in this box to the device. Until the host has
// decided on a migration, the device takes completions only, which it needs to come to rest:
// the others are for the device that goes on. One that has stopped awaits none.
func (s *slot) ReceivePeer(e engine.Entry, p *tlp.Packet) bool {
	if s.stopping && !p.Type.Completion() || s.rested {
		return false
	}
	return s.Receive(e, p)
}

// Transmit starts the jobs of the device and sends the TLPs that it emits.
func (s *slot) Transmit(e engine.Entry) {
	if s.binding == nil {
		return // detached: a reset of the device follows
	}
	s.startJobs()
	s.entry = e
	s.device.Transmit(e.Now(), s.emitTo)
	s.startJobs() // the end of a command may have brought the next one to the head of its queue
	if s.stopping {
		s.snapshot(e)
	}
	s.follow(e)
	s.sayOn(e)
	s.Traffic.Publish()
}

// slack returns by how much a request of the device may exceed its deadline.
func (s *slot) slack(deadline, timeout time.Duration) time.Duration {
	if s.binding == nil {
		return 0
	}
	return s.binding.Slack(s.entry, deadline, timeout)
}

func (s *slot) startJobs() {
	for {
		job, ok := s.device.NextJob()
		if !ok {
			return
		}
		s.start(job)
	}
}

// start runs a job beside the traffic of the device.
func (s *slot) start(job device.Job) {
	group := s.domain.group
	s.jobs.Add(1)
	done := func() {
		e := group.Enter()
		s.device.FinishJob(e.Now(), job)
		if s.binding != nil {
			s.binding.Touch(e)
		}
		group.Leave(e)
		if s.jobs.Add(-1) == 0 && s.live.Load() == nil {
			s.wake() // the controller waits for the jobs
		}
	}
	if s.dispatcher != nil {
		s.dispatcher.launch(s, job, done)
		return
	}
	s.box.fabric.Compute(job.Run, job.Cost(), done)
}

// emit sends one TLP of the device to the neighbour of the same domain that it
// addresses, or else to the host. It returns false when the link has no room,
// the neighbour cannot take the TLP now, or the budget of the entry is used up.
func (s *slot) emit(p *tlp.Packet) bool {
	if migration.Is(p) { // only the box speaks of migrations
		return s.drop()
	}
	if s.domain.slots.Load() > 1 && transaction.Routable(p) { // the host refuses others
		if peer := s.box.peer(s.index, p); peer != nil && s.reaches(peer) {
			if !s.binding.HandOver(s.entry, peer.binding, p) {
				return false
			}
			s.Traffic.Peer.Add(1)
			return true
		}
	}
	switch err := s.binding.Send(s.entry, p); {
	case errors.Is(err, link.ErrFull):
		return false
	case err != nil:
		return s.drop()
	}
	s.Traffic.FromDevice.Count(1, len(p.Data))
	return true
}

// reaches reports whether TLPs for a neighbour may go to it directly. If not, they go to the
// host: it has another device in its slot, or one of the two has come by a migration while the
// other one was here. Their earlier TLPs may then be on their way by the host.
func (s *slot) reaches(to *slot) bool {
	return !to.moved && !to.arriving && to.started <= s.bound && s.started <= to.bound
}

// drop drops a TLP of the device. After the end of the link a device may have the rest of a
// long copy.
func (s *slot) drop() bool {
	if !s.binding.Lose(s.entry) {
		return false
	}
	s.dropped.Add(1)
	return true
}

// Wake returns when the device wants to transmit.
func (s *slot) Wake(engine.Entry) time.Duration { return s.device.Wake() }

// LinkChanged wakes the controller of the slot.
func (s *slot) LinkChanged(e engine.Entry, state link.State) {
	s.box.log.Info("link", "slot", s.index, "state", fmt.Sprint(state))
	if state == link.Down {
		s.left(e)
	}
	s.wake()
}

// left notes that the link has ended. If the host had stopped the device it has another one for
// its slot, or none: the neighbours send what waits to the host.
func (s *slot) left(e engine.Entry) {
	if s.stopping {
		s.moved = true
		s.binding.Touch(e)
	}
}

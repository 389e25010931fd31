// Package virtio is a virtio device on PCI Express (virtio 1.2, section 4.1, without the
// legacy interface) as a pure machine. It fetches the rings and the descriptors of the
// driver by TLPs, and copies the buffers of each request into a pool before a Backend
// takes the request, and out of it afterwards: the back end never reaches the memory of
// the host, which is on another machine.
//
// Split virtqueues only, with indirect descriptors. Section numbers are those of the
// virtio specification, unless PCI Express is named.
package virtio

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Spec describes a device. The zero value of a field with a default means the default.
type Spec struct {
	Kind      *Kind
	Serial    uint64
	Queues    int // virtqueues, 1 to MaxQueues
	QueueSize int // largest size of a virtqueue, a power of two to 1024; 256
	Pool      int // bytes of each virtqueue's pool, which also bounds a request; 8 MiB
	Tags      int // reads outstanding; 256
}

const (
	// MaxQueues bounds the virtqueues of a device.
	MaxQueues = 16
	// MaxRequests is the number of requests of one virtqueue that the device has in
	// progress. The driver's other requests wait in its ring.
	MaxRequests = 128
	// maxQueueSize also bounds the descriptors of a request.
	maxQueueSize = 1024
	// completionTimeout is longer than the link to a host bears silence, as with the
	// other devices of the pool.
	completionTimeout = 10 * time.Second
)

// Backend carries out the requests of the virtqueues. The device calls it in its own
// methods. Each virtqueue has a pool, the memory that the back end reaches.
type Backend interface {
	// Pool returns the memory of a virtqueue's requests, of the length in Spec. It does not
	// change.
	Pool(queue int) []byte
	// Submit hands over request id, 0 to MaxRequests-1, which Used has not returned yet:
	// out bytes of the pool, from at on, that the back end reads, and behind them in
	// bytes that it writes.
	Submit(queue int, id uint16, at, out, in int)
	// Kick says that Submit was called for the virtqueue.
	Kick(queue int)
	// Used returns a request that has ended and the number of bytes that the back end has
	// written. It returns only what was submitted, each once. Requests that end together, as
	// the buffers of one packet, are returned by calls in a row.
	Used(queue int) (id uint16, n uint32, ok bool)
}

// Session is the use of the device by a driver, from DRIVER_OK to the next reset.
type Session struct {
	Number   uint64 // grows with each reset and each DRIVER_OK
	Running  bool
	Features uint64 // that the driver has accepted
	Queues   uint32 // bit i: virtqueue i is enabled; bits may come during the session
}

// Device implements device.Device.
type Device struct {
	spec   Spec
	cfg    *cfgspace.Space
	window int            // offset of the PCI configuration access capability
	limits *device.Limits // nil: those of Device Control
	slack  func(transaction.Overdue) time.Duration
	id     pcie.BDF
	now    time.Duration

	common  commonConfig
	offered uint64 // features of the back end that the device offers
	config  []byte // device configuration
	session Session
	broken  string // why DEVICE_NEEDS_RESET is set

	msix    cfgspace.MSIXTable
	isr     uint8 // ISR status, which a driver without MSI-X reads
	answers transaction.Answers
	reads   reads
	queues  []queue
	turn    int // virtqueue that is served next
	backend Backend
	events  events

	out tlp.Packet
	buf [pcie.MaxPayload + 2*pcie.DW]byte
}

// New makes a device in the state after a conventional reset, without a back end.
func New(spec Spec) (*Device, error) {
	spec.QueueSize = cmp.Or(spec.QueueSize, 256)
	spec.Pool = cmp.Or(spec.Pool, 8<<20)
	spec.Tags = cmp.Or(spec.Tags, 256)
	switch n := spec.QueueSize; {
	case spec.Kind == nil:
		return nil, fmt.Errorf("virtio: the kind of the device is missing")
	case spec.Queues < spec.Kind.MinQueues || spec.Queues > MaxQueues:
		return nil, fmt.Errorf("virtio: %d queues: want %d to %d for %s", spec.Queues, spec.Kind.MinQueues, MaxQueues, spec.Kind.Name)
	case n < 2 || n > maxQueueSize || n&(n-1) != 0:
		return nil, fmt.Errorf("virtio: queue size %d: want a power of two from 2 to %d", n, maxQueueSize)
	case spec.Pool < pcie.PageSize || spec.Pool > 1<<30:
		return nil, fmt.Errorf("virtio: pool of %d bytes: want 4 KiB to 1 GiB", spec.Pool)
	case spec.Tags < 1 || spec.Tags > pcie.MaxTags:
		return nil, fmt.Errorf("virtio: %d tags: want 1 to %d", spec.Tags, pcie.MaxTags)
	}
	cfg, err := newConfig(&spec)
	if err != nil {
		return nil, fmt.Errorf("virtio: %w", err)
	}
	d := &Device{spec: spec, cfg: cfg, window: findWindow(cfg), msix: cfgspace.NewMSIXTable(spec.Queues+1, msixPBA), queues: make([]queue, spec.Queues)}
	for i := range d.queues {
		d.queues[i].index, d.queues[i].ordered = i, spec.Kind.Ordered
	}
	d.answers.Init(d.readKept)
	d.retag()
	d.restart()
	return d, nil
}

// Offer sets the features of the back end and the device configuration, which is read-only
// for the driver. A driver that has accepted features that are gone finds a device that
// needs a reset, and any other driver gets an interrupt if the configuration has changed, and
// the event of [Device.ResetTransport]: that of a socket device reads its address only then.
func (d *Device) Offer(features uint64, config []byte) {
	d.offered = features & d.spec.Kind.Features
	changed := string(config) != string(d.config)
	d.config = append(d.config[:0], config[:min(len(config), deviceSize)]...)
	if changed {
		d.common.generation++ // a driver reads the configuration before DRIVER_OK, too
	}
	if missing := d.session.Features & d.spec.Kind.Features &^ d.offered; d.session.Running && missing != 0 {
		d.Break(fmt.Sprintf("the back end lacks the features %#x, which the driver uses", missing))
	} else if changed && d.session.Running {
		d.fireConfig()
		d.ResetTransport()
	}
}

// SetBackend gives the device the back end of its session, or takes it away (nil). The
// requests in progress are copied again from the memory of the host for the next one, so a
// back end that returns carries them out again.
func (d *Device) SetBackend(b Backend) {
	d.reads.cancel(d)
	d.backend = b
	for i := range d.queues {
		q := &d.queues[i]
		if d.ownsQueue(q) {
			d.events.rewind(q)
		}
		q.rewind(d.poolSize(q))
	}
}

// Break makes the device useless until the driver resets it (section 2.1.1).
func (d *Device) Break(why string) {
	if d.broken != "" {
		return
	}
	d.broken = why
	if d.common.status&statusDriverOK != 0 {
		d.common.status |= statusNeedsReset
		d.fireConfig()
	}
}

// Broken returns why the device needs a reset, or "".
func (d *Device) Broken() string { return d.broken }

// Session returns the present session.
func (d *Device) Session() Session { return d.session }

// Pending returns the number of requests that the device has in progress.
func (d *Device) Pending() (n int) {
	for i := range d.queues {
		n += d.queues[i].active
	}
	return n
}

// TagsInUse implements device.TagCounter.
func (d *Device) TagsInUse() (n, limit int) { return d.reads.req.InFlight(), d.reads.req.Tags() }

// Receive implements device.Device. It takes every TLP.
func (d *Device) Receive(now time.Duration, p *tlp.Packet) bool {
	d.now = now
	if !p.CheckECRC() {
		return true
	}
	switch p.Type {
	case tlp.Cpl, tlp.CplD, tlp.CplLk, tlp.CplDLk:
		d.complete(p)
	case tlp.MWr:
		d.memoryWrite(p)
	case tlp.MRd:
		d.memoryRead(p)
	case tlp.CfgRd0, tlp.CfgWr0:
		d.configRequest(p)
	case tlp.Msg, tlp.MsgD, tlp.Invalid:
		// Messages of a root complex concern power and slots.
	case tlp.MRdLk, tlp.IORd, tlp.IOWr, tlp.CfgRd1, tlp.CfgWr1, tlp.FetchAdd, tlp.Swap, tlp.CAS:
		d.refuse(p)
	}
	return true
}

// Transmit implements device.Device: interrupts and completions first, then the
// virtqueues in turn.
func (d *Device) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	d.now = now
	d.reads.req.Expire(now, d.slack, d.ended)
	// A completion does not pass an earlier posted write (PCI Express, section 2.4.1).
	if !d.flushInterrupts(emit) || !d.answers.Emit(transaction.Completer{ID: d.id, MaxPayload: d.maxPayload(), Out: &d.out, Buf: d.buf[:]}, emit) {
		return
	}
	for d.mayMaster() && d.broken == "" && d.session.Running {
		if !d.reads.flush(emit) {
			return
		}
		moved := false
		for range d.queues {
			q := &d.queues[d.turn]
			switch d.step(q, emit) {
			case stepRefused:
				return
			case stepMoved:
				moved = true
			case stepIdle:
			}
			if d.turn++; d.turn == len(d.queues) {
				d.turn = 0
			}
		}
		if !d.flushInterrupts(emit) || !moved {
			return
		}
	}
	d.flushInterrupts(emit)
}

// mayMaster reports whether the function may send memory requests.
func (d *Device) mayMaster() bool { return d.cfg.BusMaster() && d.cfg.PowerState() == 0 }

// Wake implements device.Device: only completion timeouts and the quarantine of their
// tags happen without input.
func (d *Device) Wake() time.Duration { return d.reads.req.Wake() }

// NextJob implements device.Device: the back end does the work.
func (d *Device) NextJob() (device.Job, bool) { return nil, false }

// FinishJob implements device.Device.
func (d *Device) FinishJob(time.Duration, device.Job) {}

// Reset implements device.Device.
func (d *Device) Reset(now time.Duration, kind device.ResetKind) {
	d.now = now
	d.answers.Drop()
	flr := kind == device.FunctionLevelReset
	if !flr {
		d.id = 0
	}
	d.cfg.Reset(flr)
	d.msix.Reset()
	d.restart()
	d.retag()
	d.reads.req.SetID(d.id)
}

// restart is a device reset (section 2.4): that of status 0, too. It ends the session.
func (d *Device) restart() {
	d.reads.cancel(d)
	d.backend = nil
	for i := range d.queues {
		q := &d.queues[i]
		q.reset(uint16(d.spec.QueueSize))
		q.pool.reset(d.poolSize(q))
	}
	d.events.reset()
	d.common = commonConfig{configVector: noVector, generation: d.common.generation}
	d.broken = ""
	d.msix.Pending, d.isr = 0, 0
	d.session = Session{Number: d.session.Number + 1}
}

// start begins a session at DRIVER_OK.
func (d *Device) start() {
	s := Session{Number: d.session.Number + 1, Running: true, Features: d.common.accepted}
	for i := range d.queues {
		if q := &d.queues[i]; q.enabled {
			s.Queues |= 1 << i
			q.look = true // requests from before DRIVER_OK had no notification
		}
	}
	d.session = s
}

// SetLimits implements device.Limited.
func (d *Device) SetLimits(l device.Limits) {
	d.limits = &l
	d.retag()
}

// SetSlack implements device.Patient.
func (d *Device) SetSlack(slack func(deadline, timeout time.Duration) time.Duration) {
	d.slack = transaction.SlackOf(slack)
}

// retag follows a change of the tag enables. Software changes them only while no request is
// outstanding; otherwise the outstanding reads go on with the tags that they have.
func (d *Device) retag() {
	want := min(d.spec.Tags, d.cfg.TagLimit())
	if d.limits != nil {
		want = min(d.spec.Tags, d.limits.Tags)
	}
	if d.reads.req == nil {
		d.reads.req = transaction.NewRequester(transaction.RequesterConfig{ID: d.id, Tags: want})
		return
	}
	d.reads.req.SetTags(want)
}

func (d *Device) maxPayload() int {
	if d.limits != nil {
		return int(d.limits.MaxPayload)
	}
	return int(d.cfg.MaxPayload())
}

func (d *Device) readSize() int {
	if d.limits != nil {
		return int(d.limits.MaxReadRequest)
	}
	return int(d.cfg.MaxReadRequest())
}

package boxproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// remote is a device that lives in another process, behind a vfio-user socket,
// as a box slot holds it. The host's TLPs become region accesses, the server's
// DMA messages and event descriptors become TLPs.
//
// The methods of device.Device are called by the slot with its group entered,
// and own everything but what is guarded. They must not wait for the server, so
// what is to be sent to it goes to one worker, and the answers to its DMA
// requests to another: a server that waits for such an answer takes it before
// anything else. What comes from the server is posted to the inbox, in the order
// in which it came, and the slot is notified.
//
//	Receive ─▶ requests (worker) ─▶ socket ─▶ server
//	Transmit ◀─ out ◀─ inbox ◀─ client's reader, event descriptors
//	   └─▶ answers (worker) ─▶ socket
type remote struct {
	log    *slog.Logger
	client *vfiouser.Client
	about  description
	ctx    context.Context //nolint:containedctx // ends the calls that the workers wait in, with Close
	cancel context.CancelFunc

	requests, answers *worker
	wg                sync.WaitGroup // every goroutine but the client's
	signal            chan struct{}  // the inbox has something

	failure atomic.Pointer[string] // why the device does not work
	master  atomic.Bool            // Bus Master Enable: the server's DMA is let through

	mu     sync.Mutex // guards what follows
	notify func()
	inbox  []arrival
	fired  map[vectorID]struct{} // vectors in the inbox, each once
	closed bool

	// Owned by whoever calls the methods of device.Device.
	fn     mapping.Function
	shadow []byte // configuration space as reset and as written since, read-only bits too
	gen    uint64 // of the last reset: what was asked before it is not answered
	irqs   interruptState
	out    outQueue
	dma    dmaState
}

var (
	_ device.Device     = (*remote)(nil)
	_ device.Notifier   = (*remote)(nil)
	_ device.Describer  = (*remote)(nil)
	_ device.Checker    = (*remote)(nil)
	_ device.Throttler  = (*remote)(nil)
	_ device.TagCounter = (*remote)(nil)
)

const (
	// remoteTimeout bounds each request to a device server. The host gives up
	// earlier; a server that answers nothing any more is given up after so long.
	remoteTimeout = 3 * time.Second
	// remoteDMATimeout is the Completion Timeout of the server's reads. A pause
	// of a datacenter network is no reason to fail them.
	remoteDMATimeout = 2 * time.Second
	// remoteBacklog is how many bytes of requests may wait for the server before the host is
	// slowed down. A server that waits for an answer to its own request while it does not
	// read its socket can take this much.
	remoteBacklog = 8 << 20
	// remoteOpen bounds the requests under way: those of the tags of a host and
	// of its other devices.
	remoteOpen = 1024
)

// VFIOUserOptions of a slot with a device server; the zero value works.
type VFIOUserOptions struct {
	// MessageDMA says that the server is known to do its DMA by messages, and
	// leaves out the test for QEMU's, which answers accesses to BARs only while
	// memory decode is on.
	MessageDMA bool
	// Logger gets what the server does wrong; nil discards.
	Logger *slog.Logger
}

// NewVFIOUserSlot makes a slot of the device that the vfio-user server behind a
// UNIX socket serves: one of libvfio-user, of rust-vmm, or of package vfiouser.
// The function returned ends the connection and waits; call it when the box has
// stopped.
//
// The server must do DMA by messages: the memory is that of another machine. A
// server that refuses a mapping without a file descriptor is refused here, and
// so is QEMU's x-vfio-user-server (7.2 to 11), which accepts one and ignores it.
// The expansion ROM and I/O BARs are not served. Memory inside the device is not
// scrubbed between tenants beyond what its reset does.
func NewVFIOUserSlot(ctx context.Context, path string, o VFIOUserOptions) (Slot, func() error, error) {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &remote{log: log, notify: func() {}, fired: map[vectorID]struct{}{}, signal: make(chan struct{}, 1)}
	fail := func(err error) (Slot, func() error, error) {
		return Slot{}, nil, fmt.Errorf("boxproxy: device server %s: %w", path, err)
	}
	r.requests, r.answers = newWorker(r.wake), newWorker(nil)
	client, err := vfiouser.Dial(ctx, path, vfiouser.ClientConfig{
		Timeout: remoteTimeout, MaxOpen: remoteOpen, Logger: log, DMA: vfiouser.DMAFunc(r.serverDMA),
	})
	if err != nil {
		return fail(err)
	}
	r.client = client
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.wg.Go(r.requests.run)
	r.wg.Go(r.answers.run)
	r.wg.Go(r.watch)
	if err := r.setUp(ctx, o); err != nil {
		return fail(errors.Join(err, r.close()))
	}
	return Slot{Device: r}, r.close, nil
}

// setUp learns what the device is and gives it the host's address space.
func (r *remote) setUp(ctx context.Context, o VFIOUserOptions) (err error) {
	if r.about, err = describe(ctx, r.client); err != nil {
		return err
	}
	if !o.MessageDMA {
		if err := r.about.checkDecode(ctx, r.client); err != nil {
			return err
		}
	}
	if err := mapAll(ctx, r.client); err != nil {
		return err
	}
	r.irqs.init(&r.about)
	r.fn.BARs = r.about.info.BARs
	r.restore()
	r.requests.push(0, r.armWire)
	return nil
}

// restore forgets what the host has programmed.
func (r *remote) restore() {
	r.shadow = append(r.shadow[:0], r.about.config...)
	r.fn.Reset()
	r.irqs.reset()
	r.configured()
}

// close ends the connection and waits for every goroutine.
func (r *remote) close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	err := r.client.Close() // ends every call, so the workers do not wait
	r.requests.stop()
	r.answers.stop()
	r.wake()
	r.irqs.closeAll()
	r.wg.Wait()
	return err
}

// watch notifies the slot of what has come, outside the goroutines that read
// the server's sockets, until the connection is closed.
func (r *remote) watch() {
	ended := r.client.Done()
	for {
		select {
		case <-r.signal:
		case <-ended:
			ended = nil
			r.fail(fmt.Sprintf("the device server is gone: %v", r.client.Err()))
		}
		r.mu.Lock()
		notify, closed := r.notify, r.closed
		r.mu.Unlock()
		if closed {
			return
		}
		notify()
	}
}

// wake makes watch look.
func (r *remote) wake() {
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// fail says why the device works no longer. The first cause stays.
func (r *remote) fail(why string) { r.failure.CompareAndSwap(nil, &why) }

// SetNotify implements device.Notifier.
func (r *remote) SetNotify(notify func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify = notify
}

// Info implements device.Describer.
func (r *remote) Info() device.Info { return r.about.info }

// Check implements device.Checker.
func (r *remote) Check() (ok bool, detail string) {
	if why := r.failure.Load(); why != nil {
		return false, *why
	}
	return true, ""
}

// Full implements device.Throttler.
func (r *remote) Full() bool { return r.requests.backlog() > remoteBacklog && r.failure.Load() == nil }

// Wake implements device.Device.
func (r *remote) Wake() time.Duration { return r.dma.wake() }

// NextJob implements device.Device: the work is done elsewhere.
func (r *remote) NextJob() (device.Job, bool) { return nil, false }

// FinishJob implements device.Device.
func (r *remote) FinishJob(time.Duration, device.Job) {}

// Reset implements device.Device. It does not wait: what the slot asks of the
// server afterwards comes behind the reset.
func (r *remote) Reset(now time.Duration, kind device.ResetKind) {
	r.drop(now)
	if kind == device.ConventionalReset {
		r.fn.ID = 0
		r.irqs.asserted = false // the link was down: the other side forgot
	}
	r.restore()
	r.requests.push(0, r.resetServer)
}

// drop ends everything that is under way.
func (r *remote) drop(now time.Duration) {
	r.gen++
	r.master.Store(false)
	for _, a := range r.takeInbox() {
		if a.dma != nil {
			r.refuseDMA(a.dma)
		}
	}
	r.out.drop(r.refuseDMA)
	r.dma.cancel(now, r.refuseDMA)
}

// resetServer resets the device as far as the server can.
func (r *remote) resetServer() {
	r.disarmAll()
	var err error
	if r.about.resettable {
		err = r.client.Reset(r.ctx)
	} else {
		off := make([]byte, 2)
		err = r.client.RegionWrite(r.ctx, vfiouser.RegionConfig, regCommand, off)
		if at := r.about.express; err == nil && at != 0 && r.about.flr {
			err = r.client.RegionWrite(r.ctx, vfiouser.RegionConfig, uint64(at+offDevCtl), binary.LittleEndian.AppendUint16(nil, devCtlFLR))
		}
	}
	if err != nil && r.ctx.Err() == nil {
		r.fail(fmt.Sprintf("the device server does not reset: %v", err))
	}
	r.armWire()
}

// arrival is something that came from the server: one of the three.
type arrival struct {
	access *access
	dma    *vfiouser.DMARequest
	irq    vectorID
}

// post puts an arrival into the inbox. It never blocks.
func (r *remote) post(a arrival) {
	r.mu.Lock()
	r.inbox = append(r.inbox, a)
	r.mu.Unlock()
	r.wake()
}

// postIRQ is post for a vector, which a server may signal any number of times.
func (r *remote) postIRQ(id vectorID) {
	r.mu.Lock()
	_, twice := r.fired[id]
	if !twice {
		r.fired[id] = struct{}{}
		r.inbox = append(r.inbox, arrival{irq: id})
	}
	r.mu.Unlock()
	if !twice {
		r.wake()
	}
}

func (r *remote) takeInbox() []arrival {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.inbox
	r.inbox = nil
	clear(r.fired)
	return in
}

// Transmit implements device.Device: what came from the server goes out in the
// order in which it came, but for its reads, which wait for tags by themselves.
func (r *remote) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	r.dma.expire(now, r.finishDMA)
	for _, a := range r.takeInbox() {
		r.arrived(a)
	}
	if r.out.transmit(r, emit) {
		r.dma.transmit(now, r, emit)
	}
}

// arrived decides what an arrival means to the host.
func (r *remote) arrived(a arrival) {
	switch {
	case a.dma != nil && !r.master.Load():
		r.refuseDMA(a.dma)
	case a.dma != nil:
		r.out.push(outItem{dma: a.dma})
	case a.access == nil:
		r.interrupt(a.irq)
	case a.access.gen == r.gen:
		r.answer(a.access)
	}
}

// Receive implements device.Device.
func (r *remote) Receive(now time.Duration, p *tlp.Packet) {
	switch p.Type {
	case tlp.Cpl, tlp.CplD, tlp.CplLk, tlp.CplDLk:
		r.dma.complete(p, r.finishDMA)
	case tlp.MWr:
		r.memoryWrite(p)
	case tlp.MRd:
		r.memoryRead(p)
	case tlp.CfgRd0:
		r.configRead(p)
	case tlp.CfgWr0:
		r.configWrite(now, p)
	case tlp.Msg, tlp.MsgD, tlp.Invalid:
		// What a root complex tells a function is about power and slots.
	case tlp.MRdLk, tlp.IORd, tlp.IOWr, tlp.CfgRd1, tlp.CfgWr1, tlp.FetchAdd, tlp.Swap, tlp.CAS:
		r.refuse(p, pcie.UnsupportedRequest)
	}
}

// refuse answers a request that wants an answer with an error.
func (r *remote) refuse(p *tlp.Packet, status pcie.CplStatus) {
	if p.Type.NonPosted() {
		var item outItem
		transaction.Respond(&item.packet, p, r.fn.ID, status)
		r.out.push(item)
	}
}

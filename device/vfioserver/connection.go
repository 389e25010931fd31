package vfioserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// connection is the device of a server for as long as the server answers.
//
// The slot calls receive, transmit and reset with its group entered; they own
// every field that has no guard. They must not wait for the server. One worker
// therefore sends the requests, and another the answers to the server's DMA
// requests: a server that waits for such an answer takes it before anything
// else. The client's readers post the server's messages to the inbox, in the
// order of their arrival, and the slot is notified.
//
//	receive ─▶ requests (worker) ─▶ socket ─▶ server
//	transmit ◀─ out ◀─ inbox ◀─ client's reader, event descriptors
//	   └─▶ answers (worker) ─▶ socket
type connection struct {
	log    *slog.Logger
	client *vfiouser.Client
	about  description
	ctx    context.Context //nolint:containedctx // close ends the calls that the workers wait in
	cancel context.CancelFunc

	requests, answers *worker
	polling           polling
	notify            func() // asks the owner to call Transmit; may block
	start             time.Time
	wg                sync.WaitGroup // every goroutine but the client's and that of irqs.events
	signal            chan struct{}  // the inbox has a message, or requests has room again

	failure atomic.Pointer[string] // why the device does not work
	failed  chan struct{}          // closed with failure
	master  atomic.Bool            // Bus Master Enable: the server's DMA is let through

	mu     sync.Mutex // guards the fields below
	inbox  []arrival
	fired  map[vectorID]struct{} // vectors in the inbox, which holds each once
	resets int                   // of the server that have not ended: until then it works for the former tenant

	// Owned by the slot.
	fn     mapping.Function
	shadow []byte // configuration space as reset and as written since, read-only bits included
	gen    uint64 // counts resets: requests from before the last one get no answer

	unanswered int // requests of the host without all of their completions
	backlog    backlog
	most       int   // the limit that requests was told
	stall      stall // of the backlog of requests

	irqs interruptState
	out  outQueue
	dma  dmaState
}

const (
	// requestTimeout bounds each request to a device server. The host gives up
	// earlier.
	requestTimeout = 3 * time.Second
	// completionTimeout bounds the server's reads. It is longer than the link to a host
	// bears silence, as that of the software GPU (gpu.Spec.CompletionTimeout): an answer
	// that busy processors delay is not missed, and the end of the link resets the
	// device before.
	completionTimeout = 10 * time.Second
	// maxOpen bounds the open requests: those of a host's tags and of its other
	// devices.
	maxOpen = 1024
)

// connect opens a connection. close ends it. notify enters the owner's group.
func connect(ctx context.Context, spec Spec, trash *vfiouser.Disposer, notify func(), log *slog.Logger) (*connection, error) {
	c := &connection{log: log, notify: notify, fired: map[vectorID]struct{}{}, signal: make(chan struct{}, 1), failed: make(chan struct{}), start: time.Now()}
	c.requests, c.answers = newWorker(c.wake), newWorker(func() {})
	var err error
	c.client, err = vfiouser.Dial(ctx, spec.Socket, vfiouser.ClientConfig{
		Timeout: requestTimeout, MaxOpen: maxOpen, Logger: log, DMA: vfiouser.DMAFunc(c.serverDMA), Disposer: trash,
	})
	if err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.wg.Go(c.requests.run)
	c.wg.Go(c.answers.run)
	if err := c.setUp(ctx, spec); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// setUp reads the description of the device and gives the server the host's
// address space.
func (c *connection) setUp(ctx context.Context, spec Spec) (err error) {
	if c.about, err = describe(ctx, c.client); err != nil {
		return err
	}
	if !spec.MessageDMA {
		if err := c.about.checkDecode(ctx, c.client); err != nil {
			return err
		}
	}
	if err := mapAll(ctx, c.client); err != nil {
		return err
	}
	c.dma.init(c.finishDMA, c.about.limits())
	c.irqs.init(&c.about)
	c.irqs.events.signalled = c.postIRQ
	c.fn.BARs = c.about.info.BARs
	c.restore()
	c.requests.push(0, c.armWire)
	return nil
}

// restore brings the registers that are kept here to their reset state.
func (c *connection) restore() {
	c.shadow = append(c.shadow[:0], c.about.config...)
	c.fn.Reset()
	c.irqs.reset()
	c.configured()
}

// close ends the connection and waits for every goroutine. The slot may still
// call the device, without effect.
func (c *connection) close() error {
	c.cancel()
	err := c.client.Close() // ends every call, so the workers do not wait
	c.requests.stop()
	c.answers.stop()
	c.wg.Wait() // the workers arm and disarm
	c.irqs.events.stop()
	return err
}

// brief bounds a request for whose answer the worker waits: those behind it wait
// too, and a host waits no longer than its Completion Timeout for them.
func (c *connection) brief() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, stallTimeout)
}

// wake makes Device.watch notify the slot.
func (c *connection) wake() {
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// fail notes why the device no longer works. The first cause stays.
func (c *connection) fail(why string) {
	if c.failure.CompareAndSwap(nil, &why) {
		close(c.failed)
	}
}

func (c *connection) reset(now time.Duration, kind device.ResetKind) {
	c.drop(now)
	if kind == device.ConventionalReset {
		c.fn.ID = 0
		c.irqs.asserted = false // the link was down: the other side forgot
	}
	c.restore()
	answered := make(chan struct{})
	c.answers.push(0, func() { close(answered) })
	c.requests.push(0, func() { c.endTenant(answered) })
}

// endTenant resets the server, behind the answers to its DMA for the former tenant: one
// that came later could pass for that of a transfer for the next. Then its DMA and its
// interrupts are those of the present tenant: also the one of INTx that it may signal as
// soon as it can, and not again before that is unmasked. If it does not reset, it gets
// through no more.
func (c *connection) endTenant(answered <-chan struct{}) {
	wait, stop := c.brief() // a server that takes no answers will not take the reset either
	select {
	case <-answered:
	case <-wait.Done():
	}
	stop()
	if !c.resetServer() {
		return
	}
	c.mu.Lock()
	c.resets--
	c.mu.Unlock()
	c.armWire()
}

// drop ends every open request, in both directions.
func (c *connection) drop(now time.Duration) {
	c.gen++
	c.master.Store(false)
	for _, a := range c.beginReset() {
		if a.dma != nil {
			c.refuseDMA(a.dma)
		}
	}
	if c.out.drop(c.refuseDMA) {
		c.irqs.asserted = true // the host may have seen an Assert_INTA: restore takes it back
	}
	c.unanswered = 0
	c.dma.cancel(now)
}

// resetServer resets the device as far as the server can, and reports whether it did.
func (c *connection) resetServer() (ok bool) {
	for index := range uint32(vfiouser.IRQMSIX + 1) {
		c.disarm(index)
	}
	var err error
	if c.about.resettable {
		err = c.client.Reset(c.ctx)
	} else {
		off := make([]byte, 2)
		err = c.client.RegionWrite(c.ctx, vfiouser.RegionConfig, cfgspace.OffCommand, off)
		if at := c.about.express; err == nil && at != 0 && c.about.flr {
			err = c.client.RegionWrite(c.ctx, vfiouser.RegionConfig, uint64(at+cfgspace.OffDevCtl), binary.LittleEndian.AppendUint16(nil, cfgspace.DevCtlFLR))
		}
	}
	if err != nil && c.ctx.Err() == nil {
		c.fail(fmt.Sprintf("the device server does not reset: %v", err))
	}
	return err == nil
}

// arrival is one message of the server; one of the fields is set.
type arrival struct {
	access *access
	dma    *vfiouser.DMARequest
	irq    vectorID
}

// put puts an arrival into the inbox.
func (c *connection) put(a arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inbox = append(c.inbox, a)
}

// post is put for a caller that leaves the rest to others. It never blocks.
func (c *connection) post(a arrival) {
	c.put(a)
	if !c.polling.on.Load() {
		c.wake()
	}
}

// postDMA posts a DMA request. It returns false if the server may not access the host now:
// the device is not a bus master, or works for a former tenant.
func (c *connection) postDMA(req *vfiouser.DMARequest) bool {
	c.mu.Lock()
	allowed := c.master.Load() && c.resets == 0
	if allowed {
		c.inbox = append(c.inbox, arrival{dma: req})
	}
	c.mu.Unlock()
	if allowed && !c.polling.on.Load() {
		c.wake()
	}
	return allowed
}

// arrivals reports whether the inbox has a message.
func (c *connection) arrivals() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.inbox) > 0
}

// postIRQ is post for a vector, which a server may signal any number of times.
func (c *connection) postIRQ(id vectorID) {
	c.mu.Lock()
	_, twice := c.fired[id]
	news := !twice && c.resets == 0
	if news {
		c.fired[id] = struct{}{}
		c.inbox = append(c.inbox, arrival{irq: id})
	}
	c.mu.Unlock()
	if news {
		c.wake()
	}
}

func (c *connection) takeInbox() []arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takeInboxLocked()
}

// beginReset returns the messages that a reset drops.
func (c *connection) beginReset() []arrival {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resets++
	return c.takeInboxLocked()
}

func (c *connection) takeInboxLocked() []arrival {
	in := c.inbox
	c.inbox = nil
	clear(c.fired)
	return in
}

// transmit emits the server's messages in the order of their arrival, except its
// reads, which wait for tags by themselves.
func (c *connection) transmit(now time.Duration, slack func(transaction.Overdue) time.Duration, emit func(p *tlp.Packet) bool) {
	c.giveUpStalled(now)
	c.dma.expire(now, slack)
	for _, a := range c.takeInbox() {
		c.arrived(a)
	}
	for c.out.transmit(c, emit) {
		if !c.sendOwed() {
			c.dma.transmit(now, c.master.Load(), emit)
			return
		}
	}
}

// arrived turns a message of the server into output for the host.
func (c *connection) arrived(a arrival) {
	switch {
	case a.dma != nil && !c.master.Load():
		c.refuseDMA(a.dma)
	case a.dma != nil:
		c.out.push(outItem{dma: a.dma})
	case a.access == nil:
		c.interrupt(a.irq)
	default:
		if a.access.polled {
			c.polling.judge(a.access.took)
		}
		if a.access.gen == c.gen {
			c.answer(a.access)
		}
	}
}

func (c *connection) receive(now time.Duration, p *tlp.Packet) {
	bad := transaction.Inspect(p)
	if bad != transaction.Intact {
		c.log.Warn("TLP for the device dropped", "type", p.Type, "reason", bad.String())
	}
	if bad == transaction.BadDigest {
		return // its requester ID may be wrong, too: no answer
	}
	if p.Type.NonPosted() {
		c.unanswered++
	}
	if bad == transaction.Poisoned {
		c.refuse(p, pcie.UnsupportedRequest)
		return
	}
	switch p.Type {
	case tlp.Cpl, tlp.CplD, tlp.CplLk, tlp.CplDLk:
		c.dma.complete(p)
	case tlp.MWr:
		c.memoryWrite(p)
	case tlp.MRd:
		c.memoryRead(p)
	case tlp.CfgRd0:
		c.configRead(p)
	case tlp.CfgWr0:
		c.configWrite(now, p)
	case tlp.Msg, tlp.MsgD, tlp.Invalid:
		// Messages of a root complex concern power and slots.
	case tlp.MRdLk, tlp.IORd, tlp.IOWr, tlp.CfgRd1, tlp.CfgWr1, tlp.FetchAdd, tlp.Swap, tlp.CAS:
		c.refuse(p, pcie.UnsupportedRequest)
	}
}

// full reports whether requests have to wait until the host has taken
// completions, or the server other requests. The server's own reads are answered
// meanwhile, because it may wait for them before it takes more requests.
func (c *connection) full(now time.Duration) bool {
	busy, _, _ := c.busy(now)
	return busy && c.failure.Load() == nil || c.unanswered >= maxUnanswered
}

// busy reports whether as many requests wait for the server as may.
func (c *connection) busy(now time.Duration) (busy bool, waiting int, done uint64) {
	waiting, done = c.requests.load()
	c.backlog.note(now, waiting, done)
	most := c.backlog.most(c.dma.open())
	if most != c.most {
		c.most = most
		waiting = c.requests.setLimit(most)
	}
	busy = waiting > most
	c.stall.note(now, busy, done)
	return busy, waiting, done
}

// giveUpStalled fails the device of a server that takes too little of a full
// backlog. The host would wait for it.
func (c *connection) giveUpStalled(now time.Duration) {
	_, waiting, done := c.busy(now)
	if why := c.stall.tooSlow(now, done); why != "" {
		c.fail(fmt.Sprintf("the device server is too slow: it %s, and %d KiB wait", why, waiting>>10))
	}
}

// refuse answers a request that wants an answer with an error.
func (c *connection) refuse(p *tlp.Packet, status pcie.CplStatus) {
	if p.Type.NonPosted() {
		item := outItem{answer: true}
		transaction.Respond(&item.packet, p, c.fn.ID, status)
		c.out.push(item)
	}
}

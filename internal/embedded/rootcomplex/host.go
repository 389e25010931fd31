// Package rootcomplex is the embedded host as a pure machine: a root port with
// host memory, a CPU's accesses and interrupts, and the enumeration that
// firmware and operating systems do.
package rootcomplex

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Spec describes a host.
type Spec struct {
	// Memory is the host's memory, at the bus address MemoryBase. The owner
	// of the host allocates it, and reads and writes it while no method runs.
	Memory     []byte
	MemoryBase uint64

	RootBus    uint8            // number of the bus below the root port; 0: 1
	Tags       int              // CPU reads that can be outstanding; 0: 256
	MaxPayload pcie.PayloadSize // of writes and completions that the host sends; 0: 256
	MaxRead    pcie.PayloadSize // bytes of one read request in a bulk read; 0: 512
	RCB        int              // Read Completion Boundary, 64 or 128; 0: 64
	// Timeout is the Completion Timeout: 0 means 50 ms, the default range of
	// section 2.8.
	Timeout time.Duration
	// Slack returns the time by which requests with a timeout may exceed it at present.
	// nil: none.
	Slack func(transaction.Overdue) time.Duration
	// TimedOut, if set, is called with each CPU access that has a request without an answer in
	// time.
	TimedOut func(access *tlp.Packet)
	// RetryFor is how long a configuration request that is answered with
	// Request Retry Status is repeated; 0: 1 s (section 6.6.1).
	RetryFor time.Duration
	// InterruptBase is the address of the 1 MiB window in which memory writes
	// are interrupts; 0: DefaultInterruptBase.
	InterruptBase uint64
}

// DefaultInterruptBase is the default of Spec.InterruptBase, as on a PC.
const DefaultInterruptBase uint64 = 0xfee0_0000

const (
	interruptWindow = 1 << 20
	retryEvery      = 10 * time.Millisecond
)

func (s Spec) withDefaults() Spec {
	s.RootBus = cmp.Or(s.RootBus, 1)
	s.Tags = cmp.Or(s.Tags, 256)
	s.MaxPayload = cmp.Or(s.MaxPayload, 256)
	s.MaxRead = cmp.Or(s.MaxRead, 512)
	s.RCB = cmp.Or(s.RCB, pcie.DefaultRCB)
	s.Timeout = cmp.Or(s.Timeout, 50*time.Millisecond)
	s.RetryFor = cmp.Or(s.RetryFor, time.Second)
	s.InterruptBase = cmp.Or(s.InterruptBase, DefaultInterruptBase)
	return s
}

func (s Spec) validate() error {
	switch {
	case !s.MaxPayload.Valid() || !s.MaxRead.Valid():
		return fmt.Errorf("payload size %d, read size %d: want powers of two from 128 to 4096", s.MaxPayload, s.MaxRead)
	case s.RCB != 64 && s.RCB != 128:
		return fmt.Errorf("read completion boundary %d: want 64 or 128", s.RCB)
	case s.Tags < 1 || s.Tags > pcie.MaxTags:
		return fmt.Errorf("%d tags: want 1 to %d", s.Tags, pcie.MaxTags)
	case s.MemoryBase+uint64(len(s.Memory)) < s.MemoryBase:
		return errors.New("memory wraps around the end of the address space")
	case s.MemoryBase < s.InterruptBase+interruptWindow && s.InterruptBase < s.MemoryBase+uint64(len(s.Memory)):
		return fmt.Errorf("memory covers the interrupt window at %#x", s.InterruptBase)
	}
	return nil
}

// EventKind is the kind of an event.
type EventKind uint8

// Kinds of event.
const (
	// EventDone: the operation with this Cookie has ended. OK is false when it
	// failed; a failed read returns all ones, as in a CPU.
	EventDone EventKind = iota
	// EventInterrupt: a device wrote Data to Addr in the interrupt window (MSI, MSI-X).
	EventInterrupt
	// EventWire: interrupt pin Wire (0 to 3 for INTA to INTD) is asserted (OK) or not.
	EventWire
)

// Event is the end of an operation, or an interrupt.
type Event struct {
	Kind   EventKind
	Cookie uint64
	OK     bool
	Value  uint32 // of a configuration read
	Addr   uint64
	Data   uint32
	Wire   uint8
}

// Counters count since the host was built.
type Counters struct {
	ReadRequests, WriteRequests uint64 // DMA requests of devices
	ReadBytes, WriteBytes       uint64
	Atomics                     uint64
	Refused                     uint64 // DMA outside memory, or a request that the host does not support
	Dropped                     uint64 // requests beyond those that may wait for an answer
	Poisoned                    uint64 // DMA writes with EP set: dropped
	Interrupts                  uint64
	Timeouts                    uint64 // CPU accesses without an answer in time
	Failed                      uint64 // CPU accesses answered with an error
	Retries                     uint64 // configuration requests repeated after Request Retry Status
	ErrorMessages               uint64 // ERR_COR, ERR_NONFATAL and ERR_FATAL
	Unexpected                  uint64 // completions of no request
}

// RootComplex is a root complex with one root port: a pure machine. Its owner calls
// the methods from one goroutine at a time.
//
// Read, Write, ConfigRead and ConfigWrite queue CPU accesses, Transmit sends them in
// order, and events report their end.
type RootComplex struct {
	spec     Spec
	requests *transaction.Requester
	ops      queue[*operation] // not entirely sent
	retries  []*operation      // waiting for their time
	live     map[uint64]*operation
	nextOp   uint64
	queued   int          // bytes that writes in ops take
	spare    []*operation // for reuse
	// request is the next request of the CPU. offered is set when it was built and
	// emit refused it.
	request     tlp.Packet
	requestData []byte
	offered     bool

	jobs      queue[transaction.ReadJob] // reads of devices
	replies   queue[reply]               // all other completions
	reply     tlp.Packet
	replyData []byte

	events   queue[Event]
	counters Counters
}

// New builds a host.
func New(spec Spec) (*RootComplex, error) {
	spec = spec.withDefaults()
	if err := spec.validate(); err != nil {
		return nil, fmt.Errorf("rootcomplex: %w", err)
	}
	return &RootComplex{
		spec:        spec,
		requests:    transaction.NewRequester(transaction.RequesterConfig{Tags: spec.Tags}),
		live:        map[uint64]*operation{},
		requestData: make([]byte, spec.MaxPayload),
		replyData:   make([]byte, spec.MaxPayload),
	}, nil
}

// Counters returns a copy of the counters.
func (h *RootComplex) Counters() Counters {
	c := h.counters
	r := h.requests.Counters()
	c.Unexpected = r.Unexpected + r.Late
	return c
}

// HasEvent reports whether NextEvent has one.
func (h *RootComplex) HasEvent() bool { return !h.events.empty() }

// NextEvent takes the oldest event.
func (h *RootComplex) NextEvent() (Event, bool) {
	if h.events.empty() {
		return Event{}, false
	}
	e := *h.events.front()
	h.events.pop()
	return e, true
}

// Queued returns the memory of the queued writes in bytes, for the owner to bound.
func (h *RootComplex) Queued() int { return h.queued }

// Receive takes one TLP from below. p and p.Data are not kept.
func (h *RootComplex) Receive(now time.Duration, p *tlp.Packet) {
	switch {
	case p.Type.Completion():
		if r, ok := h.requests.Complete(p); ok && r.Done {
			h.finish(now, r)
		}
	case p.Type == tlp.MWr:
		h.dmaWrite(p)
	case p.Type == tlp.MRd || p.Type == tlp.MRdLk:
		h.dmaRead(p)
	case p.Type.Atomic():
		h.dmaAtomic(p)
	case p.Type.Message():
		h.message(p)
	default:
		h.refuse(p)
	}
}

// Transmit emits TLPs until there are none or emit refuses one, which the next call
// offers again: then it returns false. The packet is valid only during the call of emit. CPU
// accesses and completions alternate, and completions continue when no tag is free: a host
// that waits for a device never delays the device.
func (h *RootComplex) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) bool {
	h.requests.Expire(now, h.spec.Slack, func(r transaction.Result) { h.finish(now, r) })
	h.wakeRetries(now)
	for {
		sent, ok := h.sendOperation(now, emit)
		if !ok {
			return false
		}
		answered, ok := h.sendAnswer(emit)
		if !ok || !sent && !answered {
			return ok
		}
	}
}

// Wake returns the time of the next call of Transmit without new input, or
// machine.Never.
func (h *RootComplex) Wake() time.Duration {
	wake := h.requests.Wake()
	for _, op := range h.retries {
		wake = min(wake, op.notBefore)
	}
	return wake
}

// Abandon ends every CPU access, sent or queued, as if it had timed out, because the
// link is down.
func (h *RootComplex) Abandon(now time.Duration) {
	h.requests.CancelAll(now, func(r transaction.Result) { h.finish(now, r) })
	for _, op := range slices.Concat(h.ops.list(), h.retries) {
		op.fail(op.sent)
		op.sent = op.size
		h.finishOperation(op)
	}
	h.ops.drop()
	h.retries, h.offered, h.queued = nil, false, 0
}

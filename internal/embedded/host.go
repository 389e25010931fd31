// Package embedded drives devices from the embedded host: it wraps the root
// complex machine for goroutines, and gives drivers a driver.Bus.
package embedded

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const pageSize = 4096

// Computer is a root complex for several goroutines. Its owner runs the loop: it calls
// Receive with each TLP from below, and Transmit after kick and at Wake.
//
// Loads and configuration accesses block until their completion arrives, or return all
// ones after the Completion Timeout of the root complex.
type Computer struct {
	kick    func()
	net     Waiter
	virtual Scheduler // nil: callers block in real time
	spec    rootcomplex.Spec

	mu      sync.Mutex // guards the fields below, and host memory that devices write
	rc      *rootcomplex.RootComplex
	heap    *driver.Heap
	next    uint64
	pending map[uint64]*access
	idle    []*access // for reuse
	stores  stores
	room    sync.Cond // signals that fewer stores are queued
	vectors map[uint32]*vector
	nextVec uint32
	buses   map[*Bus]bool
	closed  bool
}

// Waiter waits for the answers of remote devices.
type Waiter interface {
	// Await returns when w is ready, or has blocked. It may process datagrams
	// meanwhile.
	Await(w *reader.Wait)
	// Attend is called after a posted write, which has no answer to wait for.
	Attend()
}

// SetWaiter sets the waiter. Call it before the host is used.
func (h *Computer) SetWaiter(w Waiter) { h.net = w }

// Scheduler runs the callers of a host in virtual time, one at a time.
type Scheduler interface {
	// Now returns the virtual time.
	Now() time.Duration
	// WaitUntil suspends the caller until ready returns true or until time t. The
	// simulated world runs meanwhile.
	WaitUntil(t time.Duration, ready func() bool)
}

// SetScheduler puts the host and its buses in virtual time. Call it before the host is
// used.
func (h *Computer) SetScheduler(s Scheduler) { h.virtual = s }

// New returns a host. It allocates Memory of the spec, of the given size in bytes, if
// that is nil. The host calls kick, from any goroutine, when it has TLPs to transmit.
func New(spec rootcomplex.Spec, memory int, kick func()) (*Computer, error) {
	if spec.Memory == nil {
		spec.Memory = make([]byte, memory)
	}
	// The messages of all vectors have this address; the data identifies the vector.
	spec.InterruptBase = cmp.Or(spec.InterruptBase, rootcomplex.DefaultInterruptBase)
	rc, err := rootcomplex.New(spec)
	if err != nil {
		return nil, err
	}
	h := &Computer{
		kick: kick, spec: spec, rc: rc,
		heap:    driver.NewHeap(spec.MemoryBase, uint64(len(spec.Memory))),
		pending: map[uint64]*access{},
		vectors: map[uint32]*vector{},
		buses:   map[*Bus]bool{},
	}
	h.room.L = &h.mu
	return h, nil
}

// Receive takes TLPs from below, in order.
func (h *Computer) Receive(now time.Duration, p *tlp.Packet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rc.Receive(now, p)
	h.deliverLocked()
}

// ReceiveWrites takes count consecutive memory writes from below, see RootComplex.
func (h *Computer) ReceiveWrites(addr uint64, data []byte, count int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rc.ReceiveWrites(addr, data, count)
}

// ReceiveReads takes count consecutive memory reads of n bytes in all, see RootComplex.
func (h *Computer) ReceiveReads(addr uint64, n, count int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rc.ReceiveReads(addr, n, count)
}

// ReadRun copies host memory for the answers of such reads, see RootComplex.
func (h *Computer) ReadRun(addr uint64, dst []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rc.ReadRun(addr, dst)
}

// Transmit emits TLPs until there are none, or until emit refuses one: then it returns
// false. emit must not call methods of the host.
func (h *Computer) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) (all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all = h.rc.Transmit(now, emit)
	if h.rc.Queued() < maxQueued {
		h.room.Broadcast()
	}
	h.deliverLocked()
	return all
}

// Wake returns the time of the next call of Transmit if kick is not called before.
func (h *Computer) Wake() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rc.Wake()
}

// Counters returns the counters of the root complex.
func (h *Computer) Counters() rootcomplex.Counters {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rc.Counters()
}

// Abandon ends every pending access with all ones, because the link is down.
func (h *Computer) Abandon(now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rc.Abandon(now)
	h.deliverLocked()
}

// Unplugged tells the drivers of all functions on a bus that they are lost.
func (h *Computer) Unplugged(bus uint8) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for b := range h.buses {
		if b.fn.ID.Bus() == bus {
			b.loseLocked()
		}
	}
}

// Close ends all waits with driver.ErrClosed.
func (h *Computer) Close() error {
	h.closeWaits()
	h.stores.senders.Wait()
	return nil
}

func (h *Computer) closeWaits() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.closed = true
	h.room.Broadcast()
	for cookie, a := range h.pending {
		delete(h.pending, cookie)
		close(a.event)
	}
	for b := range h.buses {
		b.closeLocked()
	}
}

// deliverLocked passes the events of the root complex to the waiting accesses and vectors.
func (h *Computer) deliverLocked() {
	if !h.rc.HasEvent() {
		return // nearly always; NextEvent would cost a tenth of a DMA write
	}
	for e, ok := h.rc.NextEvent(); ok; e, ok = h.rc.NextEvent() {
		switch e.Kind {
		case rootcomplex.EventDone:
			if a := h.pending[e.Cookie]; a != nil {
				delete(h.pending, e.Cookie)
				a.over.Store(true)
				a.event <- e
			}
		case rootcomplex.EventInterrupt:
			if v := h.vectors[e.Data]; v != nil && e.Addr == h.spec.InterruptBase {
				v.fire()
			}
		case rootcomplex.EventWire: // no driver here uses pins
		}
	}
}

// access is an access whose caller waits for its event.
type access struct {
	event chan rootcomplex.Event // holds one; closed with the host
	over  atomic.Bool            // the event has been sent, or is being sent

	// Used by the waiting goroutine:
	got   rootcomplex.Event
	ok    bool // got is valid
	taken bool // the channel has given an event or is closed
	wait  reader.Wait
	word  [8]byte // buffer of a short read
}

func newAccess() *access {
	a := &access{event: make(chan rootcomplex.Event, 1)}
	a.wait = reader.Wait{Ready: a.over.Load, Block: a.take}
	return a
}

// take waits for the event.
func (a *access) take() {
	if !a.taken {
		a.got, a.ok = <-a.event
		a.taken = true
	}
}

// do makes an access and waits for its event. It calls start with the mutex held. word is
// the contents of the access's word.
func (h *Computer) do(start func(a *access, cookie uint64)) (e rootcomplex.Event, word uint64, err error) {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return e, 0, fmt.Errorf("embedded: %w", driver.ErrClosed)
	}
	h.next++
	a := h.accessLocked()
	h.pending[h.next] = a
	start(a, h.next)
	h.deliverLocked() // an impossible access ends at once
	h.mu.Unlock()
	h.kick()
	switch {
	case a.over.Load():
	case h.virtual != nil:
		h.virtual.WaitUntil(machine.Never, a.over.Load)
	case h.net != nil:
		h.net.Await(&a.wait)
	}
	if a.take(); !a.ok {
		return e, 0, fmt.Errorf("embedded: %w", driver.ErrClosed)
	}
	e, word = a.got, binary.LittleEndian.Uint64(a.word[:])
	h.mu.Lock()
	h.idle = append(h.idle, a)
	h.mu.Unlock()
	return e, word, nil
}

// accessLocked returns an unused access.
func (h *Computer) accessLocked() *access {
	n := len(h.idle)
	if n == 0 {
		return newAccess()
	}
	a := h.idle[n-1]
	h.idle = h.idle[:n-1]
	a.over.Store(false)
	a.taken = false
	return a
}

// ConfigRead32 implements rootcomplex.ConfigAccess.
func (h *Computer) ConfigRead32(id pcie.BDF, off uint16) (uint32, error) {
	e, _, err := h.do(func(_ *access, cookie uint64) { h.rc.ConfigRead(id, off, cookie) })
	if err != nil || !e.OK {
		return allOnes, err
	}
	return e.Value, nil
}

// ConfigWrite32 implements rootcomplex.ConfigAccess.
func (h *Computer) ConfigWrite32(id pcie.BDF, off uint16, v uint32) error {
	_, _, err := h.do(func(_ *access, cookie uint64) { h.rc.ConfigWrite(id, off, 0xf, v, cookie) })
	return err
}

// Load reads len(p) bytes of memory space. ok is false, and p all ones, when no device
// answered.
func (h *Computer) Load(addr uint64, p []byte) (ok bool, err error) {
	e, _, err := h.do(func(_ *access, cookie uint64) { h.rc.Read(addr, p, cookie) })
	if err != nil {
		for i := range p {
			p[i] = 0xff
		}
	}
	return e.OK, err
}

// loadWord reads n <= 8 bytes, little-endian, without an allocation. The value is all
// ones when no device answered.
func (h *Computer) loadWord(addr uint64, n int) (uint64, error) {
	_, v, err := h.do(func(a *access, cookie uint64) {
		clear(a.word[:])
		h.rc.Read(addr, a.word[:n], cookie)
	})
	if err != nil {
		return ^uint64(0), err
	}
	return v, nil
}

// MemoryRead32 implements rootcomplex.MemoryAccess.
func (h *Computer) MemoryRead32(addr uint64) (uint32, error) {
	v, err := h.loadWord(addr, 4)
	return uint32(v), err
}

// MemoryWrite32 implements rootcomplex.MemoryAccess.
func (h *Computer) MemoryWrite32(addr uint64, v uint32) error {
	h.Store(addr, binary.LittleEndian.AppendUint32(nil, v))
	return nil
}

// Open returns the bus of a function that enumeration found.
func (h *Computer) Open(f *rootcomplex.Function) (*Bus, error) {
	if f.Bridge {
		return nil, errors.New("embedded: open: function is a bridge")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fmt.Errorf("embedded: open: %w", driver.ErrClosed)
	}
	b := &Bus{host: h, fn: f, lost: make(chan struct{}), done: make(chan struct{}), memory: map[*dma]bool{}}
	h.buses[b] = true
	return b, nil
}

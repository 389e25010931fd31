package netio

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/machine"
)

// path is one socket and the fault plan of its outgoing datagrams.
type path struct {
	conn   *udp.Conn
	reader *reader.Reader
	heard  listening
	plan   fault.Plan    // of PathConfig
	kick   chan struct{} // late has a new datagram

	faults atomic.Pointer[fault.Injector] // nil: none
	held   atomic.Uint64                  // bytes in late
	due    atomic.Int64                   // late.Wake()
	looked atomic.Int64                   // when a reader that polls has sent what was due

	mu     sync.Mutex // guards the fields below, and the injector
	writer *udp.Writer
	late   machine.Queue[delayed]
}

func newPath(conn *udp.Conn, cfg PathConfig) *path {
	p := &path{conn: conn, plan: cfg.Fault, writer: conn.NewWriter(), kick: make(chan struct{}, 1)}
	p.due.Store(int64(machine.Never))
	p.looked.Store(longAgo)
	p.setFault(cfg.Fault, cfg.Seed)
	return p
}

func (p *path) setFault(plan fault.Plan, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if plan.Zero() {
		p.faults.Store(nil) // the datagrams in late still leave at their time
		return
	}
	p.faults.Store(fault.New(plan, seed))
}

// accepted returns the bytes that were given to write, since the path was made.
func (p *path) accepted() uint64 { return p.conn.TxBytes() + p.held.Load() }

// write sends a batch. Datagrams that the network does not take are counted by
// the socket and recovered by the link. clock gives the time of the fault plan.
func (p *path) write(clock func() time.Duration, w *udp.Writer, parts [][]byte, segment int, to netip.AddrPort, ecn uint8) {
	if p.faults.Load() == nil {
		_ = w.WriteParts(parts, segment, to, ecn)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now, batch := clock(), slices.Concat(parts...)
	for len(batch) > 0 {
		n := min(segment, len(batch))
		p.writeFaulty(now, batch[:n], to, ecn)
		batch = batch[n:]
	}
}

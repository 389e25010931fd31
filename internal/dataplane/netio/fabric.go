// Package netio drives the groups of package engine with sockets, locks, timers
// and goroutines.
//
// A TLP stays in one goroutine on its way. The reader of a socket, the server of
// a VM's port or a timer enters the group of a binding, uses its link and its
// handler, and leaves, which sends the results. See Group.
package netio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/machine"
)

// PathConfig describes one of the parallel networks of a proxy.
type PathConfig struct {
	Listen string     // local address, "192.0.2.1:4791"
	Fault  fault.Plan // what to do to outgoing datagrams
	Seed   uint64     // of the fault plan's chance
}

// Config of a fabric.
type Config struct {
	Paths []PathConfig // index = path ID
	UDP   udp.Options
	// ECN lets the network mark datagrams, see link.Config.
	ECN bool
	// Polling says how the readers of the sockets wait.
	Polling reader.Polling
	Logger  *slog.Logger
	// Restart is called when a fault plan restarts this end. nil: Open refuses
	// such plans.
	Restart func()
}

// Fabric is the network of one proxy: a socket for each path, and the groups
// whose bindings use them.
type Fabric struct {
	ecn     bool
	log     *slog.Logger
	start   time.Time
	restart func()
	ahead   atomic.Int64 // ns by which Jump has advanced the clock
	paths   []*path
	compute chan struct{} // a place per processor for computations of devices

	mu       sync.Mutex                       // guards changes of routes and captures
	routes   atomic.Pointer[map[uint32]route] // by the number of a binding; immutable
	captures captures

	sources sources
	pending atomic.Int32 // groups that have work left

	mtuMu     sync.Mutex // guards the two fields below
	mtus      []int
	mtusUntil time.Duration

	// Datagrams that reached no link, see engine.Drops.
	stray, strangers, forged, flood, cookies atomic.Uint64
}

// route leads to a binding.
type route = engine.Route[*Group]

// Open opens the sockets. Run receives from them.
func Open(cfg Config) (*Fabric, error) {
	if len(cfg.Paths) == 0 || len(cfg.Paths) > math.MaxUint8 {
		return nil, fmt.Errorf("netio: %d paths: want 1 to %d listen addresses", len(cfg.Paths), math.MaxUint8)
	}
	f := &Fabric{ecn: cfg.ECN, log: cfg.Logger, start: time.Now(), restart: cfg.Restart, compute: make(chan struct{}, reader.Processors())}
	f.routes.Store(&map[uint32]route{})
	for i, pc := range cfg.Paths {
		if len(pc.Fault.Restarts) > 0 && cfg.Restart == nil {
			return nil, errors.Join(fmt.Errorf("netio: path %d: this end cannot be restarted by a fault plan", i), f.closeSockets())
		}
		conn, err := udp.Listen(pc.Listen, cfg.UDP)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("netio: path %d: %w", i, err), f.closeSockets())
		}
		warnOfRoom(cfg.Logger, i, conn.ReceiveRoom())
		p := newPath(conn, pc)
		f.paths = append(f.paths, p)
		if p.reader, err = reader.New(newInput(f, p, uint8(i)), cfg.Polling); err != nil {
			return nil, errors.Join(fmt.Errorf("netio: path %d: %w", i, err), f.closeSockets())
		}
	}
	return f, nil
}

// Now returns the time since Open, plus the jumps. Entries have this time.
func (f *Fabric) Now() time.Duration {
	return time.Since(f.start) + time.Duration(f.ahead.Load())
}

// Addrs returns the local address of each path.
func (f *Fabric) Addrs() []netip.AddrPort {
	out := make([]netip.AddrPort, len(f.paths))
	for i, p := range f.paths {
		out[i] = p.conn.LocalAddr()
	}
	return out
}

// mtuLifetime is how long MTUs caches its answer. An MTU changes when an
// administrator sets it, and a query takes tens of microseconds.
const mtuLifetime = 5 * time.Second

// MTUs returns the largest datagram, in bytes, that the interface of each path
// takes. The answer may be mtuLifetime old.
func (f *Fabric) MTUs() []int {
	f.mtuMu.Lock()
	defer f.mtuMu.Unlock()
	if now := f.Now(); f.mtus == nil || now >= f.mtusUntil {
		f.mtus, f.mtusUntil = f.queryMTUs(), now+mtuLifetime
	}
	return slices.Clone(f.mtus)
}

func (f *Fabric) queryMTUs() []int {
	out := make([]int, len(f.paths))
	for i, p := range f.paths {
		n, err := udp.MTU(p.conn.LocalAddr().Addr())
		if err != nil {
			n, _ = udp.MTU(netip.IPv4Unspecified())
		}
		out[i] = n
	}
	return out
}

// Stats are counts since Open.
type Stats struct {
	Paths []udp.Stats
	// Stray datagrams belong to no binding. Strangers come from another address
	// than that of the binding's peer, or by a path that the binding does not
	// have. The links count the datagrams that they drop.
	Stray, Strangers uint64
	// Forged, Flood and Cookies are handshakes that fail their checks, exceed the
	// rate of a peer, and were answered with a cookie.
	Forged, Flood, Cookies uint64
}

// Stats returns the counters.
func (f *Fabric) Stats() Stats {
	out := Stats{
		Stray: f.stray.Load(), Strangers: f.strangers.Load(),
		Forged: f.forged.Load(), Flood: f.flood.Load(), Cookies: f.cookies.Load(),
	}
	for _, p := range f.paths {
		out.Paths = append(out.Paths, p.conn.Stats())
	}
	return out
}

// Run receives until ctx ends, then closes the sockets and every binding.
func (f *Fabric) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range f.paths {
		g.Go(p.reader.Serve)
		g.Go(func() error { return p.deliverDelayed(ctx, f.Now) })
	}
	for _, p := range f.paths {
		g.Go(func() error { return f.execute(ctx, p.plan) })
	}
	g.Go(func() error {
		<-ctx.Done()
		for _, r := range *f.routes.Load() {
			r.Gate.detachAll()
		}
		return f.closeSockets()
	})
	err := g.Wait()
	if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
		return nil
	}
	return err
}

// register notes the route to a binding.
func (f *Fabric) register(id uint32, r route) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(*f.routes.Load())
	if _, ok := next[id]; ok {
		return fmt.Errorf("netio: binding %d exists", id)
	}
	next[id] = r
	f.routes.Store(&next)
	return nil
}

// reroute replaces the route to a binding.
func (f *Fabric) reroute(id uint32, r route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(*f.routes.Load())
	next[id] = r
	f.routes.Store(&next)
}

func (f *Fabric) unregister(id uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := maps.Clone(*f.routes.Load())
	delete(next, id)
	f.routes.Store(&next)
}

func (f *Fabric) closeSockets() error {
	var errs []error
	for _, p := range f.paths {
		errs = append(errs, p.conn.Close())
		if p.reader != nil {
			errs = append(errs, p.reader.Close())
		}
	}
	return errors.Join(errs...)
}

// input is the reader.Source of a path.
type input struct {
	fabric *Fabric
	conn   *udp.Conn
	path   *path
	reader *udp.Reader
	engine engine.Input
	next   func() (engine.Batch, bool) // more, made once
	from   netip.AddrPort              // sender of the batch
	short  bool                        // the last batch was
	bulk   bool                        // it was long, and all of it was admitted to its bindings
	sent   uint64                      // bytes sent when it came
	deafTo time.Duration               // until then refusals are ignored

	gathered int   // batches of the present entry
	took     int   // bytes of the socket's room that they took
	ended    error // of the read behind them

	sleeper sleeper
}

func newInput(f *Fabric, p *path, id uint8) *input {
	in := &input{fabric: f, path: p, conn: p.conn, reader: p.conn.NewReader()}
	in.next = in.more
	writer := p.conn.NewWriter()
	in.engine = engine.Input{Path: id, Clock: f.Now, Answer: func(datagram []byte) {
		p.write(f.Now, writer, [][]byte{datagram}, len(datagram), in.from, 0)
	}}
	return in
}

// dispatch hands each datagram of a batch to its binding, with those of the further
// batches that have arrived, and reports whether all of them were admitted.
func (in *input) dispatch(b engine.Batch) bool {
	f := in.fabric
	d := engine.Dispatch(*f.routes.Load(), &in.engine, b, in.next)
	if d == (engine.Drops{}) {
		return true
	}
	f.stray.Add(d.Stray)
	f.strangers.Add(d.Stranger)
	f.forged.Add(d.Forged)
	f.flood.Add(d.Flood)
	f.cookies.Add(d.Cookie)
	return false
}

// refusalPause bounds the work that forged reports make. The links repeat their
// datagrams to a host that refuses them, so a report that was ignored comes again.
const refusalPause = 5 * time.Millisecond

// refused tells the links of some peers that their hosts refuse datagrams.
func (in *input) refused(peers []netip.AddrPort) {
	f := in.fabric
	now := f.Now()
	if now < in.deafTo {
		return
	}
	in.deafTo = now + refusalPause
	engine.Refused(*f.routes.Load(), in.engine.Path, peers)
}

// listened returns the time up to which every datagram that had arrived, by any
// path, has been received.
func (f *Fabric) listened() time.Duration {
	until := machine.Never
	for _, p := range f.paths {
		until = min(until, time.Duration(p.heard.until.Load()))
	}
	return until
}

// errServed is the result of a read that has taken a message of a source instead.
var errServed = errors.New("netio: a source had a message")

// maxGathered is the number of batches of a transfer that one entry takes at most: 256
// KiB, which take less than 100 us.
const maxGathered = 4

// Receive implements reader.Source.
func (in *input) Receive(block bool) error {
	if !block && in.fabric.sources.poll() { // before the socket: its answer was asked for first
		return nil
	}
	batch, segment, from, err := in.read(block)
	if err != nil {
		return in.failed(block, err)
	}
	in.gathered, in.took, in.ended = 0, 0, nil
	in.bulk = in.dispatch(in.arrived(batch, segment, from)) && !in.short
	// Not before: until the links have it, another goroutine may judge their silence.
	in.path.heard.received(in.took, in.conn.ReceiveRoom(), in.fabric.Now)
	if err := in.ended; err != nil && !errors.Is(err, udp.ErrTimeout) {
		return in.failed(false, err)
	}
	return nil
}

// arrived notes a batch.
func (in *input) arrived(batch []byte, segment int, from netip.AddrPort) engine.Batch {
	in.short, in.sent, in.from = len(batch) <= reader.Brief, in.path.accepted(), from
	in.took += len(batch) + kernelCost
	return engine.Batch{Bytes: batch, Segment: segment, From: from, Marked: in.reader.Marked()}
}

// more returns the next batch if it has arrived already and the one before was long: one
// of a transfer. The answers to several of them take fewer datagrams, and only an end
// that is behind finds them: the other one waits for nothing.
func (in *input) more() (engine.Batch, bool) {
	if in.gathered++; in.short || in.gathered == maxGathered || in.path.faults.Load() != nil {
		return engine.Batch{}, false
	}
	batch, segment, from, err := in.reader.Poll()
	if err != nil {
		in.ended = err
		return engine.Batch{}, false
	}
	return in.arrived(batch, segment, from), true
}

// failed takes the error of a read.
func (in *input) failed(block bool, err error) error {
	switch {
	case errors.Is(err, udp.ErrTimeout):
		in.path.heard.nothing(block, in.conn.ReceiveRoom(), in.fabric.Now)
		return reader.ErrNothing
	case errors.Is(err, udp.ErrRefused):
		in.refused(in.reader.Refused())
	case errors.Is(err, net.ErrClosed):
		return err
	case !errors.Is(err, errServed):
		in.fabric.log.Debug("receive", "path", in.engine.Path, "err", err)
	}
	return nil
}

// read reads the socket. It also sends the datagrams that a fault plan has held back
// until now. It does not sleep while one is due soon, and does not return while one
// is due at once.
func (in *input) read(block bool) (batch []byte, segment int, from netip.AddrPort, err error) {
	for {
		wait := in.path.attend(in.fabric.Now)
		if block && wait > oversleep {
			if batch, segment, from, err = in.look(); !errors.Is(err, udp.ErrTimeout) {
				return batch, segment, from, err
			}
			return in.sleep()
		}
		batch, segment, from, err = in.reader.Poll()
		if !errors.Is(err, udp.ErrTimeout) || !block && wait > spinning {
			return batch, segment, from, err
		}
		if wait > spinning {
			yield()
		}
	}
}

// look reads the socket without a wait, if it was long not found empty. Each of a steady
// trickle of datagrams otherwise ends a sleep, and nothing shows that there was no other: the
// links would take the silence of a dead peer for datagrams that were not read.
func (in *input) look() (batch []byte, segment int, from netip.AddrPort, err error) {
	now := in.fabric.Now()
	if !in.path.heard.unproved(now) {
		return nil, 0, from, udp.ErrTimeout
	}
	batch, segment, from, err = in.reader.Poll()
	if errors.Is(err, udp.ErrTimeout) {
		in.path.heard.nothing(true, in.conn.ReceiveRoom(), in.fabric.Now)
	}
	return batch, segment, from, err
}

// sleep waits for a datagram, or for a message of a source whose answers are due. A source that
// always has one keeps no datagram waiting: only one tenant's server may be busy, or hostile.
func (in *input) sleep() (batch []byte, segment int, from netip.AddrPort, err error) {
	in.path.unattend()
	switch w := in.sleeper.sleep(in.conn, in.fabric.sources.list()); {
	case w.served && !w.network:
		return nil, 0, from, errServed
	case w.slept:
		return in.reader.Poll()
	}
	return in.reader.Read()
}

// Soon implements reader.Source. A long batch is one of many: those of a copy follow
// each other within 15 to 30 us, and to wake a reader for each takes a seventh of the
// sender's time. Short ones after much was sent are the end of a transfer, or
// acknowledgements, for which no caller waits. Noise that strangers send is no copy.
func (in *input) Soon() bool {
	since := in.path.accepted() - in.sent
	return in.bulk || in.short && since > 0 && since <= reader.Brief
}

// Expects implements reader.Expecter.
func (in *input) Expects() bool { return in.fabric.sources.due() }

// Await waits until w is ready, for an answer from the network. With one path
// the caller reads the socket itself and handles the datagrams. The caller must
// not have entered a group.
func (f *Fabric) Await(w *reader.Wait) {
	if len(f.paths) > 1 { // the answer may come by any of them
		if w.Block != nil {
			w.Block()
		}
		return
	}
	f.paths[0].reader.Await(w)
}

// Attend makes the sockets' own goroutines read, for a caller that has sent a
// request and does not wait for the answer in Await.
func (f *Fabric) Attend() {
	for _, p := range f.paths {
		p.reader.Attend()
	}
}

//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/dirlock"
	"github.com/dxpu-project/dxpu/internal/loglimit"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/mps"
	"github.com/dxpu-project/dxpu/machine"
)

const (
	beatPeriod = 500 * time.Millisecond
	// silence is how old a heartbeat may be. It is long: a closed socket tells sooner
	// that an agent is gone, and only an agent that hangs leaves its sockets open.
	silence = 5 * time.Second
	// settleAfter is how long an agent that starts, or was silent, keeps the room of its
	// shares for processes that have not come back. Libraries connect each second.
	settleAfter = 10 * time.Second
	// begin is the time of an agent's start. Before it is room for what shares used in the window
	// of their limits while a former agent ran.
	begin = 20 * time.Second
)

// Config describes an agent.
type Config struct {
	Broker broker.Config
	Dir    string // of the sockets
	State  string // file with the shares; "": none
	Group  int    // that may use the control socket beside root; negative: none
	Log    *slog.Logger
	// KernelLog is /dev/kmsg, which has the errors of the GPUs; nil: they are not watched.
	// The agent closes it.
	KernelLog io.ReadCloser
	// Reset resets a GPU that no program uses; nil: a person does it.
	Reset   func(ctx context.Context, gpu broker.GPU) error
	Backoff gpuerr.Backoff // times out of service; zero: gpuerr.Health's
	// MPS makes the Multi-Process Service of a GPU; nil: programs need none.
	MPS     func(gpu int, notify func(mps.Notice)) (MPS, error)
	MPSUser int // whose programs MPS serves
	// Pool names the pool whose manager divides the GPUs; "": the users of this machine do.
	Pool string
	// Missing are GPUs that cannot be shared now, by name, and why.
	Missing map[string]string
	// Look finds the GPUs again, as Broker.GPUs and Missing had them at the start; nil: those of the
	// start are all that there are. Its error says nothing of a GPU. It is not used with MPS, whose
	// services begin with the agent.
	Look  func(ctx context.Context) ([]broker.GPU, map[string]string, error)
	Pause time.Duration // between two looks; zero: lookPause
	Retry time.Duration // after the state file could not be written; zero: storePause
}

// Agent is a sharing agent. Make one with New, and let Run work.
type Agent struct {
	config Config
	lines  *loglimit.Handler // of the log
	start  time.Time
	wake   chan struct{} // the next time of the broker has changed
	save   chan struct{} // the state is to be written
	uid    int

	saving   sync.Mutex // writes the state file
	resizing sync.Mutex // of one share at a time; taken before the others

	mu      sync.Mutex // guards the fields below
	closing bool
	broker  *broker.Broker
	shares  map[string]*served
	conns   map[broker.ProcessID]*conn
	watches map[int]*watch // by process ID
	// The health of the GPUs, in their order.
	patients  []*patient
	strangers map[string]int    // looks that found a GPU which is not in patients, by name
	uuids     map[string]string // by name, as a former agent knew them
	places    map[string]int    // of the GPUs in the pool, by name
	next      broker.ProcessID
	services  []MPS  // of the GPUs, nil for those that are missing; none: the policy is another one
	clients   uint64 // that were admitted
	stopping  bool   // the services stop
	number    uint64 // of the last share with a name of the agent's
	// Folders that are to be removed, and how many there were.
	gone      []string
	discarded uint64
	out       broker.Output
	wakeAt    time.Duration
	settleAt  time.Duration  // machine.Never: no process is absent
	beaten    int64          // the last heartbeat
	work      sync.WaitGroup // goroutines of sockets and watches
	stopped   chan struct{}  // a service has stopped

	ready   chan struct{} // closed when the shares of the state file are there
	changed chan struct{} // one element: shares or GPUs have changed
}

// served is a share with its socket.
type served struct {
	record   Record
	page     *page
	listener *rights.Listener
	trash    *rights.Disposer // of what its processes send
	owner    *pidfd           // nil: none
	restored bool             // from the state file
	client   *client          // of MPS; nil: none
}

// New returns an agent with the shares of its state file. The folder of the sockets is
// used by one agent at a time.
func New(c Config) (*Agent, error) {
	c.Broker.Silence = silence
	c.Broker.GPUs = slices.Clone(c.Broker.GPUs) // they may get other names
	c.Broker.Agent = rand.Uint64()
	lines := loglimit.New(c.Log.Handler()) // programs cause lines at any rate
	c.Log = slog.New(lines)
	b, err := broker.New(c.Broker)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		config: c, lines: lines, start: time.Now().Add(-begin), wake: make(chan struct{}, 1), save: make(chan struct{}, 1), uid: os.Getuid(),
		broker: b, patients: newPatients(&c), strangers: map[string]int{},
		shares: map[string]*served{}, conns: map[broker.ProcessID]*conn{}, watches: map[int]*watch{}, wakeAt: machine.Never, settleAt: begin + settleAfter,
		stopped: make(chan struct{}, len(c.Broker.GPUs)), ready: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	if a.config.State, err = resolveState(c.State); err != nil {
		return nil, err
	}
	f, err := a.readState()
	if err != nil {
		return nil, err
	}
	if err := a.recognise(&f); err != nil {
		return nil, err
	}
	a.places = assignPlaces(f.Places, a.config.Broker.GPUs)
	return a, nil
}

func (a *Agent) now() time.Duration { return time.Since(a.start) }

// Run serves until its context ends. The programs go on, and a later agent with the same
// state takes their shares over. Clients of MPS end with the services.
func (a *Agent) Run(ctx context.Context) error {
	unlock, err := a.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if a.config.State != "" {
		if err := atomicfile.Sweep(a.config.State); err != nil {
			a.config.Log.Warn("files of a former agent are not removed", "error", err)
		}
	}
	if err := a.openMPS(); err != nil {
		return err
	}
	if err := a.restore(); err != nil {
		a.close()
		return err
	}
	control, err := a.listenControl()
	if err != nil {
		a.close()
		return err
	}
	if !seesMachine() {
		a.config.Log.Warn("the agent is in a PID namespace of its own, and refuses processes outside of it: run it with podman run --pid=host, or hostPID: true of a pod")
	}
	close(a.ready)
	stop := ctx
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.lead(stop, ctx, end) })
	for _, s := range a.services {
		if s != nil {
			g.Go(func() error { return a.runMPS(ctx, s) })
		}
	}
	g.Go(func() error { return a.serveControl(ctx, control) })
	g.Go(func() error { return a.beats(ctx) })
	g.Go(func() error { return a.timer(ctx) })
	g.Go(func() error { return a.saver(ctx) })
	g.Go(func() error { return a.keepAccounts(ctx) })
	g.Go(func() error { return a.watchGPUs(ctx) })
	messages := make(chan gpuerr.Message)
	g.Go(func() error { return a.watchHealth(ctx, messages) })
	if log := a.config.KernelLog; log != nil {
		g.Go(func() error { return watchLog(ctx, log, messages) })
		g.Go(func() error { <-ctx.Done(); return log.Close() })
	}
	err = g.Wait()
	a.close()
	a.clean()
	if saved := a.store(); err == nil {
		err = saved
	}
	return err
}

// lock makes the folder, and keeps a second agent out of it.
func (a *Agent) lock() (func(), error) {
	if err := os.MkdirAll(a.config.Dir, 0o711); err != nil {
		return nil, err
	}
	if err := checkDir(a.config.Dir); err != nil {
		return nil, err
	}
	lock, err := dirlock.Lock(a.config.Dir, "lock")
	var held *dirlock.HeldError
	if errors.As(err, &held) {
		return nil, fmt.Errorf("%w: a directory is for one agent", held)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Close() }, nil
}

// close closes all sockets and waits for their goroutines. The broker's account is not
// changed any more.
func (a *Agent) close() {
	a.mu.Lock()
	a.closing = true
	for _, s := range a.shares {
		s.close()
	}
	for _, c := range a.conns {
		_ = c.socket.Close()
	}
	for _, w := range a.watches {
		w.process.close()
	}
	a.mu.Unlock()
	a.work.Wait()
}

func (s *served) close() {
	_ = s.listener.Close()
	_ = s.page.close()
	if s.owner != nil {
		s.owner.close()
	}
}

// beats writes the heartbeats, and settles the account when that is due.
func (a *Agent) beats(ctx context.Context) error {
	tick := time.NewTicker(beatPeriod)
	defer tick.Stop()
	for {
		a.beatLocked(a.enter())
		a.stallLocked()
		if a.now() >= a.settleAt {
			a.settleAt = machine.Never
			a.broker.Settle(a.now())
			a.abandonLocked()
			a.flushLocked()
		}
		a.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// timer lets the broker work at its own times.
func (a *Agent) timer(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		a.mu.Lock()
		a.flushLocked()
		at := a.wakeAt
		a.mu.Unlock()
		if at == machine.Never {
			at = a.now() + time.Hour
		}
		timer.Reset(at - a.now())
		select {
		case <-timer.C:
		case <-a.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// maxRounds bounds the outputs that one input of the broker can lead to: a closed
// connection may end a share, which ends others of its connections.
const maxRounds = 1000

// flushLocked does what the broker wants done. An agent that ends has no pages any more.
func (a *Agent) flushLocked() {
	if a.closing {
		return
	}
	for range maxRounds {
		a.out.Reset()
		a.broker.Transmit(a.now(), &a.out)
		o := &a.out
		if o.Empty() {
			break
		}
		a.carryOutLocked(o)
	}
	if at := a.broker.Wake(); at != a.wakeAt {
		earlier := at < a.wakeAt
		a.wakeAt = at
		if earlier {
			signal(a.wake)
		}
	}
}

func (a *Agent) carryOutLocked(o *broker.Output) {
	signal(a.changed)
	for _, id := range o.Pages {
		if s := a.shares[id]; s != nil {
			if p, ok := a.broker.Page(id); ok {
				s.page.set(&p)
			}
		}
	}
	for _, s := range o.Sends {
		if c := a.conns[s.Process]; c != nil && !c.send(s.Message) {
			a.dropLocked(c) // it does not read its answers
		}
	}
	for _, id := range o.Closes {
		if c := a.conns[id]; c != nil {
			a.dropLocked(c)
		}
	}
	for _, id := range o.Kills {
		a.killLocked(id)
	}
	for _, id := range o.Removed {
		a.removeLocked(id)
	}
	for _, d := range o.Dropped {
		a.droppedLocked(d)
	}
}

// killLocked ends a process, or at least its connection.
func (a *Agent) killLocked(id broker.ProcessID) {
	for _, w := range a.watches {
		if w.has(id) {
			err := w.process.kill()
			if err == nil {
				return
			}
			// It may be another user's, and the agent not root's.
			a.config.Log.Warn("process of a share that ends is not killed", "error", err)
		}
	}
	if c := a.conns[id]; c != nil {
		a.dropLocked(c)
	}
}

func (a *Agent) removeLocked(id string) {
	s := a.shares[id]
	if s == nil {
		return
	}
	delete(a.shares, id)
	a.leaveLocked(s)
	s.close()
	a.discardLocked(id)
	a.config.Log.Info("share has ended", "share", id)
	signal(a.save)
}

// droppedLocked forgets the part of a GPU that a share has no more.
func (a *Agent) droppedLocked(d broker.Dropped) {
	s, gpu := a.shares[d.ID], a.config.Broker.GPUs[d.GPU].Name
	if s == nil || s.record.part(gpu) == nil {
		return
	}
	s.record.Parts = slices.DeleteFunc(slices.Clone(s.record.Parts), func(p RecordPart) bool { return p.GPU == gpu })
	a.config.Log.Info("share has a GPU no more", "share", d.ID, "gpu", gpu)
	signal(a.save)
}

// signal wakes the reader of a channel with one place.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

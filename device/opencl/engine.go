package opencl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// engine is the gpu.Engine of an OpenCL device: the parent of a process that executes
// packets. The goroutine of run starts the process, reads its events, and waits for its
// end; the GPU's owner sends packets and ends it.
type engine struct {
	program  string
	index    int
	identity string // see gpu.Mover
	cold     bool   // no process starts in advance
	log      *slog.Logger
	vram     []byte          // shared memory; renew exchanges the pages behind it
	wake     chan struct{}   // holds one: a process may have to start
	trash    rights.Disposer // of all processes

	mu        sync.Mutex // guards the fields below
	idle      *sync.Cond // process has become nil
	file      *os.File   // of vram; nil after renew has failed
	notify    func()
	limits    limits // turns is fixed
	context   uint64 // number of the context, or of the pause after it
	wanted    bool   // there is a context
	wantSpare bool   // see spare.go
	closed    bool   // no further process
	state     reg.ComputeState
	process   *process // nil: none
	events    []reg.Event
	asked     *turn // waits for NextJob; nil: none
	move      mover

	polled   atomic.Pointer[process] // process, for Poll
	inFlight atomic.Int32            // packets of the context without their event
	last     atomic.Int64            // when a packet was sent or an event came: nanoseconds since began
	began    time.Time
}

var _ gpu.Mover = (*engine)(nil)

func newEngine(program string, f Found, limits limits, size int, cold bool, log *slog.Logger) (*engine, error) {
	vram, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	e := &engine{
		program: program, index: f.Index, identity: f.identity(), limits: limits, cold: cold, log: log, vram: vram,
		wake: make(chan struct{}, 1), notify: func() {}, context: noContext + 1, began: time.Now(),
	}
	e.idle = sync.NewCond(&e.mu)
	if err := e.renew(); err != nil {
		return nil, errors.Join(err, unix.Munmap(vram))
	}
	return e, nil
}

// renew exchanges the shared memory for zeros. A process that a tenant's program has
// left behind keeps the old memory, and shares nothing with the next tenant.
func (e *engine) renew() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file != nil {
		_ = e.file.Close()
		e.file = nil
	}
	file, err := newMemory("vram", int64(len(e.vram)))
	if err != nil {
		return err
	}
	if _, err = unix.MmapPtr(int(file.Fd()), 0, unsafe.Pointer(unsafe.SliceData(e.vram)), uintptr(len(e.vram)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return errors.Join(fmt.Errorf("map the shared memory: %w", err), file.Close())
	}
	e.file = file
	e.move = mover{generation: e.move.generation + 1}
	e.wantSpare = !e.cold && e.limits.memory > noMemory
	e.poke()
	return nil
}

// close releases the memory of an engine that no GPU has.
func (e *engine) close() error { return errors.Join(unix.Munmap(e.vram), e.file.Close()) }

// Kind implements gpu.Engine.
func (e *engine) Kind() reg.ComputeKind { return reg.ComputeOpenCL }

// Memory implements gpu.Engine.
func (e *engine) Memory() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.limits.memory
}

// VRAM implements gpu.Engine.
func (e *engine) VRAM() []byte { return e.vram }

func (e *engine) setNotify(notify func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notify = notify
}

// Start implements gpu.Engine.
func (e *engine) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.begin()
}

// begin makes a context. The caller holds mu.
func (e *engine) begin() {
	e.change(true, reg.ComputeStarting)
	if p := e.spare(); p != nil {
		e.adopt(p)
		return
	}
	e.poke()
}

// Stop implements gpu.Engine.
func (e *engine) Stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change(false, reg.ComputeOff)
}

// change ends the context, if there is one. The caller holds mu.
func (e *engine) change(wanted bool, state reg.ComputeState) {
	e.context++
	e.wanted, e.state, e.events, e.asked = wanted, state, nil, nil
	if !wanted {
		e.move.from = nil
	}
	e.inFlight.Store(0)
	if p := e.process; p != nil && !p.reaped && p.context != noContext {
		p.end()
	}
}

func (e *engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// State implements gpu.Engine.
func (e *engine) State() reg.ComputeState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state
}

// Submit implements gpu.Engine.
func (e *engine) Submit(packet []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.process == nil || e.state != reg.ComputeReady {
		return false
	}
	if !e.process.send(packet) {
		return false
	}
	e.inFlight.Add(1)
	e.last.Store(int64(time.Since(e.began)))
	return true
}

// Event implements gpu.Engine.
func (e *engine) Event() (reg.Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.events) == 0 {
		return reg.Event{}, false
	}
	next := e.events[0]
	e.events = e.events[1:]
	return next, true
}

// waitGone waits until no process uses the memory. A spare has it too, and a tenant without
// a context may have written there.
func (e *engine) waitGone() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropSpare()
	for e.process != nil && e.process.context != e.context {
		e.idle.Wait()
	}
}

// confine limits the calling thread, and with it the processes that it starts: they
// gain no rights from a set-user-ID file, and a negative nice value, which a proxy may
// have, is not for the programs of a tenant. The thread ends with its goroutine. A
// process ends with the thread that started it (Pdeathsig), so also with the box. It
// does not get the descriptors that the box itself has inherited.
func confine() error {
	runtime.LockOSThread()
	err := errors.Join(
		unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
		unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0), // of the box: they run as its user, and must not trace it
	)
	// The system call returns 20 less the nice value.
	if v, e := unix.Getpriority(unix.PRIO_PROCESS, 0); e == nil && v > 20 {
		err = errors.Join(err, unix.Setpriority(unix.PRIO_PROCESS, 0, 0))
	}
	return err
}

// run serves one process after the other until ctx ends.
func (e *engine) run(ctx context.Context) {
	if err := confine(); err != nil {
		e.log.Warn("the OpenCL engine is less confined", "err", err)
	}
	stop := context.AfterFunc(ctx, e.shut)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		e.mu.Lock()
		number, needed := e.next()
		e.mu.Unlock()
		if needed {
			e.serve(number)
		}
	}
}

// serve starts a process for a context and reads its events until it ends.
func (e *engine) serve(number uint64) {
	p, err := e.start(number)
	said := ""
	if err == nil {
		err = errors.Join(p.reader.Serve(), e.reap(p))
		said = lastWords(p.said)
		err = errors.Join(err, p.said.Close())
	}
	e.mu.Lock()
	if p != nil {
		number = p.context // a spare may have got one
	}
	failed := e.context == number
	if failed {
		e.wanted, e.state = false, reg.ComputeFailed
	}
	if e.wanted || e.wantSpare {
		e.poke() // a new context began while the process ended
	}
	alone := number == noContext && !e.wantSpare && !e.closed && (p == nil || !p.killed)
	notify := e.notify
	e.mu.Unlock()
	if failed || alone {
		e.log.Warn("the OpenCL engine ended", "err", err, "stderr", said)
	}
	if failed {
		notify()
	}
}

// reap waits for the end of a process. The socket may have ended first, as when the
// process sends nonsense.
func (e *engine) reap(p *process) error {
	e.mu.Lock()
	p.kill()
	p.reaped = true
	e.mu.Unlock()
	err := errors.Join(p.cmd.Wait(), os.RemoveAll(p.dir))
	e.forgetMove(p)
	p.endTalk()
	e.polled.Store(nil)
	e.mu.Lock()
	e.process = nil
	e.idle.Broadcast()
	e.mu.Unlock()
	return errors.Join(err, p.disconnect())
}

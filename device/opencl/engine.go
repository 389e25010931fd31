package opencl

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// engine is the gpu.Engine of an OpenCL device: the parent of a process that executes
// packets. The goroutine of run starts the process, reads its events, and waits for its
// end; the GPU's owner sends packets and ends it.
type engine struct {
	program string
	index   int
	memory  uint64
	log     *slog.Logger
	vram    []byte        // shared memory; renew exchanges the pages behind it
	wake    chan struct{} // holds one: wanted has changed

	mu      sync.Mutex // guards the fields below
	idle    *sync.Cond // process has become nil
	file    *os.File   // of vram; nil after renew has failed
	notify  func()
	context uint64 // number of the context, or of the pause after it
	wanted  bool   // there is a context
	state   reg.ComputeState
	process *process // nil: none
	events  []reg.Event
}

// process is one engine process.
type process struct {
	cmd    *exec.Cmd
	socket int
	dir    string // the platform's cache, of this process only
	// context is what the process was started for. Its events do not count for
	// another one.
	context uint64
	reaped  bool // killed, and its number may be that of another process soon; under the engine's mu
}

var _ gpu.Engine = (*engine)(nil)

func newEngine(program string, index int, memory uint64, size int, log *slog.Logger) (*engine, error) {
	vram, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	e := &engine{
		program: program, index: index, memory: memory, log: log, vram: vram,
		wake: make(chan struct{}, 1), notify: func() {},
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
	fd, err := unix.MemfdCreate("dxpu-vram", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("shared memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "dxpu-vram")
	err = file.Truncate(int64(len(e.vram)))
	if err == nil {
		// A process must not shrink the memory: the box would fault.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		_, err = unix.MmapPtr(fd, 0, unsafe.Pointer(unsafe.SliceData(e.vram)), uintptr(len(e.vram)),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("shared memory: %w", err), file.Close())
	}
	e.file = file
	return nil
}

// close releases the memory of an engine that no GPU has.
func (e *engine) close() error { return errors.Join(unix.Munmap(e.vram), e.file.Close()) }

// Kind implements gpu.Engine.
func (e *engine) Kind() reg.ComputeKind { return reg.ComputeOpenCL }

// Memory implements gpu.Engine.
func (e *engine) Memory() uint64 { return e.memory }

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
	e.change(true, reg.ComputeStarting)
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
	e.wanted, e.state, e.events = wanted, state, nil
	if e.process != nil && !e.process.reaped {
		e.process.end()
	}
}

func (e *engine) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// end kills the process and what it has started. run waits for the end.
func (p *process) end() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	_ = unix.Shutdown(p.socket, unix.SHUT_RDWR)
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
	// A full socket takes the packet after an event. After any other error, the reader
	// sees the end of the process.
	return unix.Sendto(e.process.socket, packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil
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

// waitGone waits until no process uses the memory.
func (e *engine) waitGone() {
	e.mu.Lock()
	defer e.mu.Unlock()
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
	stop := context.AfterFunc(ctx, e.Stop)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		e.mu.Lock()
		wanted, number := e.wanted, e.context
		e.mu.Unlock()
		if wanted {
			e.serve(number)
		}
	}
}

// serve starts a process for a context and reads its events until it ends.
func (e *engine) serve(number uint64) {
	p, err := e.start(number)
	if err == nil {
		err = errors.Join(e.read(p), e.reap(p))
	}
	e.mu.Lock()
	failed := e.context == number
	if failed {
		e.wanted, e.state = false, reg.ComputeFailed
	} else if e.wanted {
		e.poke() // a new context began while the process ended
	}
	notify := e.notify
	e.mu.Unlock()
	if failed {
		e.log.Warn("the OpenCL engine ended", "err", err)
		notify()
	}
}

// reap waits for the end of a process. The socket may have ended first, as when the
// process sends nonsense.
func (e *engine) reap(p *process) error {
	e.mu.Lock()
	p.end()
	p.reaped = true
	e.mu.Unlock()
	err := p.cmd.Wait()
	e.mu.Lock()
	e.process = nil
	e.idle.Broadcast()
	e.mu.Unlock()
	return errors.Join(err, unix.Close(p.socket), os.RemoveAll(p.dir))
}

// socketBuffer is the room for packets on their way to the process, in bytes.
const socketBuffer = 4 << 20

// start starts a process.
func (e *engine) start(number uint64) (*process, error) {
	e.mu.Lock()
	file := e.file
	e.mu.Unlock()
	if file == nil {
		return nil, errors.New("there is no shared memory: an error before says why")
	}
	dir, err := os.MkdirTemp("", "dxpu-opencl-")
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), os.RemoveAll(dir))
	}
	// The larger buffer needs a privilege; without it, fewer packets are in flight.
	if unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	}
	other := os.NewFile(uintptr(pair[1]), "engine")
	p := &process{socket: pair[0], dir: dir, context: number}
	p.cmd = exec.Command(e.program, "--serve", strconv.Itoa(e.index), "--memory", strconv.FormatUint(e.memory, 10))
	p.cmd.Env = environment(dir)
	p.cmd.Dir = dir
	p.cmd.ExtraFiles = []*os.File{other, file}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = p.cmd.Start()
	err = errors.Join(err, other.Close())
	if err != nil {
		return nil, errors.Join(err, unix.Close(p.socket), os.RemoveAll(dir))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.process = p
	if e.context != number {
		p.end()
	}
	return p, nil
}

// passed are the beginnings of the variables that the process gets: those of the ICD
// loader and of the platforms, and where programs and libraries are.
var passed = []string{"PATH=", "LD_LIBRARY_PATH=", "OCL_ICD_", "POCL_", "CUDA_VISIBLE_DEVICES=", "ROCR_VISIBLE_DEVICES="}

// environment returns the variables of a process whose files are in dir.
func environment(dir string) []string {
	var env []string
	for _, v := range os.Environ() {
		for _, p := range passed {
			if strings.HasPrefix(v, p) {
				env = append(env, v)
			}
		}
	}
	return append(env, "HOME="+dir, "TMPDIR="+dir, "XDG_CACHE_HOME="+dir, "POCL_CACHE_DIR="+dir)
}

// read reads events until the process ends.
func (e *engine) read(p *process) error {
	buf := make([]byte, maxEvents*reg.EventSize)
	for hello := true; ; hello = false {
		n, err := unix.Read(p.socket, buf)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Read(p.socket, buf)
		}
		switch {
		case err != nil:
			return fmt.Errorf("socket: %w", err)
		case n == 0:
			return nil
		case n%reg.EventSize != 0:
			return fmt.Errorf("the process sent %d bytes", n)
		}
		if err := e.take(p, buf[:n], hello); err != nil {
			return err
		}
	}
}

// maxEvents bounds the events of one message.
const maxEvents = 1024

// take takes the events of one message. The first one says that the context is there.
func (e *engine) take(p *process, b []byte, hello bool) error {
	e.mu.Lock()
	notify := e.notify
	if e.context == p.context {
		if hello {
			e.state = reg.ComputeReady
			b = nil
		}
		for len(b) > 0 {
			ev, n, _ := reg.ParseEvent(b) // whole events
			e.events = append(e.events, ev)
			b = b[n:]
		}
	}
	many := len(e.events) > reg.MaxPacketsInFlight
	e.mu.Unlock()
	if many {
		return errors.New("the process sent more events than packets")
	}
	notify()
	return nil
}

package opencl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/ring"
	"github.com/dxpu-project/dxpu/internal/rawio/fd"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// process is one engine process. It is the reader.Source of its events.
type process struct {
	engine  *engine
	cmd     *exec.Cmd
	socket  *fd.FD    // beside channel
	channel *ring.Box // packets and events
	reader  *reader.Reader
	dir     string         // the platform's cache, of this process only
	said    *os.File       // its standard error
	turns   *rights.Conn   // nil: the device is not shared
	moves   *rights.Conn   // nil: it is shared; see mover.go
	ring    []byte         // of moves
	talk    sync.WaitGroup // the goroutine of turns or moves
	// Under the engine's mu. context is what the process is for, or noContext. Its
	// events do not count for another one.
	context uint64
	ready   bool  // it has its context
	killed  bool  // the box ended it
	reaped  bool  // its number may be that of another process soon
	turn    *turn // the kernel that waits or runs; nil: none

	// Of the goroutine that reads:
	hello bool // no message has come
	buf   []byte
}

var _ reader.Source = (*process)(nil)

// recheck is the longest wait for a message at one time, see reader.Source.
const recheck = 50 * time.Millisecond

// end ends the process. The caller holds the engine's mu.
func (p *process) end() {
	p.killed = true
	p.kill()
}

// kill kills the process and what it has started. run waits for the end.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	if s, ok := p.socket.Use(); ok {
		_ = unix.Shutdown(int(s), unix.SHUT_RDWR)
		p.socket.Done()
	}
}

// send sends a packet without waiting. A full ring takes the packet after an event. The
// caller holds the engine's mu.
func (p *process) send(packet []byte) bool {
	ok, wake, err := p.channel.Put(packet)
	if err != nil {
		p.engine.log.Warn("the OpenCL engine is ended", "err", err)
		if !p.reaped {
			p.kill()
		}
		return false
	}
	if !wake {
		return ok
	}
	if s, open := p.socket.Use(); open {
		_ = ring.Wake(s) // after an error, the reader sees the end of the process
		p.socket.Done()
	}
	return ok
}

// Receive implements reader.Source.
func (p *process) Receive(block bool) error {
	n, err := 0, error(nil)
	if block || !p.channel.Asleep() { // a caller of hold is to find no wake-up again
		n, err = p.channel.Take(p.buf)
	}
	if n == 0 && err == nil {
		n, err = p.await(block)
	}
	if err != nil {
		return err
	}
	hello := p.hello
	p.hello = false
	return p.engine.take(p, p.buf[:n], hello)
}

// await takes events after a wake-up, for which it waits with block. Without, it looks for
// one only while a caller of hold sleeps.
func (p *process) await(block bool) (n int, err error) {
	switch {
	case !block && !p.channel.Asleep():
		return 0, reader.ErrNothing
	case block && !p.channel.Sleep():
		block = false // events came meanwhile
	case block:
		defer p.channel.Awake()
	}
	s, ok := p.socket.Use()
	if !ok {
		return 0, net.ErrClosed
	}
	woken := ring.Await(s, block, &p.engine.trash)
	p.socket.Done()
	if woken == nil {
		woken = p.channel.Woken()
	}
	if woken != nil && !errors.Is(woken, reader.ErrNothing) && !errors.Is(woken, io.EOF) {
		return 0, woken
	}
	// A process that has ended may have left events.
	if n, err = p.channel.Take(p.buf); n > 0 || err != nil {
		return n, err
	}
	return 0, cmp.Or(woken, reader.ErrNothing)
}

// Soon implements reader.Source. The reader of the network polls, not this one.
func (p *process) Soon() bool { return false }

// shared returns the file of the shared memory, a descriptor of its own for a process that
// starts, and the process's limits: renew may close the file meanwhile, and its number may be that of another file of the box
// by the time the process gets it.
func (e *engine) shared() (file, own *os.File, l limits, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file == nil {
		return nil, nil, l, errors.New("there is no shared memory: an error before says why")
	}
	fd, err := unix.FcntlInt(e.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, l, fmt.Errorf("shared memory: %w", err)
	}
	return e.file, os.NewFile(uintptr(fd), e.file.Name()), e.limits, nil
}

// start starts a process.
func (e *engine) start(number uint64) (*process, error) {
	if e.trash.Full() {
		return nil, errors.New("descriptors of earlier processes cannot be closed")
	}
	file, own, limits, err := e.shared()
	if err != nil {
		return nil, err
	}
	defer func() { _ = own.Close() }()
	p := &process{engine: e, context: number, hello: true, buf: make([]byte, maxEvents*reg.EventSize)}
	if err := p.prepare(limits, own); err != nil {
		return nil, errors.Join(err, p.discard())
	}
	err = p.cmd.Start()
	for _, f := range p.cmd.ExtraFiles {
		if f != own {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.discard())
	}
	if p.turns != nil {
		p.talk.Go(p.takeTurns)
	}
	if p.moves != nil {
		p.talk.Go(p.takeMoves)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.process = p
	e.polled.Store(p)
	switch {
	case e.closed || e.file != file:
		p.end()
	case number == noContext && e.wanted:
		e.adopt(p)
	case number != noContext && e.context != number:
		p.end()
	}
	if limits.memory != e.limits.memory { // it has changed meanwhile
		p.tell(wire.Message{Type: wire.Granted, Bytes: e.limits.memory})
	}
	return p, nil
}

// prepare makes what the process needs, and its command. The process gets the sockets and the
// shared memory.
func (p *process) prepare(limits limits, vram *os.File) (err error) {
	if p.dir, err = os.MkdirTemp("", "dxpu-opencl-"); err != nil {
		return err
	}
	if p.said, err = newSaid(); err != nil {
		return err
	}
	p.cmd = exec.Command(p.engine.program, limits.args(p.engine.index)...)
	p.cmd.Env = environment(p.dir)
	p.cmd.Dir = p.dir
	p.cmd.Stderr = p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	others, err := p.connect()
	if err != nil {
		return err
	}
	var more []*os.File
	if limits.turns {
		more, err = p.connectTurns()
	} else {
		more, err = p.connectMoves()
	}
	if err != nil {
		return errors.Join(err, others[0].Close(), others[1].Close())
	}
	p.cmd.ExtraFiles = append([]*os.File{others[0], vram, others[1]}, more...)
	return nil
}

func (p *process) connectTurns() (others []*os.File, err error) {
	var other *os.File
	if p.turns, other, err = p.engine.connectTalk("turns"); err != nil {
		return nil, err
	}
	return []*os.File{other}, nil
}

// discard releases what a process has that did not start.
func (p *process) discard() (err error) {
	if p.socket != nil {
		err = p.disconnect()
	}
	if p.turns != nil {
		err = errors.Join(err, p.turns.Close())
	}
	if p.moves != nil {
		err = errors.Join(err, p.moves.Close(), unix.Munmap(p.ring))
	}
	if p.said != nil {
		err = errors.Join(err, p.said.Close())
	}
	if p.dir != "" {
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return err
}

// connect makes the ring of the process and the socket beside it, and returns the other ends:
// the socket's and the memory.
func (p *process) connect() (others []*os.File, err error) {
	file, err := newMemory("packets", ring.Size)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, ring.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory for packets: %w", err), file.Close())
	}
	channel, err := ring.NewBox(memory)
	if err != nil {
		return nil, errors.Join(err, file.Close(), unix.Munmap(memory))
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), file.Close(), channel.Close())
	}
	p.socket = fd.NewClosedBy(pair[0], p.engine.trash.CloseSocket)
	p.reader, err = reader.New(p, reader.Polling{})
	limit := unix.NsecToTimeval(recheck.Nanoseconds())
	err = errors.Join(err, unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	if err != nil {
		err = errors.Join(err, p.socket.Close(), unix.Close(pair[1]), file.Close(), channel.Close())
		p.socket = nil
		return nil, err
	}
	p.channel = channel
	return []*os.File{os.NewFile(uintptr(pair[1]), "engine"), file}, nil
}

// disconnect releases the box's side of the ring. No one reads events or sends packets then.
func (p *process) disconnect() error {
	return errors.Join(p.socket.Close(), p.reader.Close(), p.channel.Close())
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

// maxEvents bounds the events of one message.
const maxEvents = 1024

// take takes the events of one message. The first one says that the context is there.
func (e *engine) take(p *process, b []byte, hello bool) error {
	e.mu.Lock()
	notify := e.notify
	p.ready = true
	if e.context == p.context {
		if hello {
			e.state = reg.ComputeReady
			b = nil
		}
		for len(b) > 0 {
			// A process that a program has taken over sends what it likes.
			if e.inFlight.Load() == 0 {
				e.mu.Unlock()
				return errors.New("the process sent more events than packets")
			}
			ev, n, _ := reg.ParseEvent(b) // whole events
			e.events = append(e.events, ev)
			e.inFlight.Add(-1)
			b = b[n:]
		}
		e.last.Store(int64(time.Since(e.began)))
	}
	e.mu.Unlock()
	notify()
	return nil
}

// pollWindow is how long after a packet or an event the next event is polled for.
const pollWindow = reader.DefaultWindow

// due reports whether an event is likely to come within microseconds.
func (e *engine) due() bool {
	return e.inFlight.Load() > 0 && time.Since(e.began)-time.Duration(e.last.Load()) <= pollWindow
}

// poll takes a message of the process if one has arrived.
func (e *engine) poll() bool {
	p := e.polled.Load()
	return p != nil && p.reader.Poll()
}

// hold returns the descriptor of the socket that wakes the box while an event is due, see
// device.Poller. It takes the events that are there.
func (e *engine) hold() (descriptor uintptr, release func()) {
	p := e.polled.Load()
	if p == nil || !p.reader.Hold() {
		return 0, nil
	}
	for e.inFlight.Load() > 0 {
		if p.channel.Sleep() {
			if s, ok := p.socket.Use(); ok {
				return s, func() {
					p.socket.Done()
					p.channel.Awake()
					p.reader.Release()
				}
			}
			p.channel.Awake()
			break
		}
		if !p.reader.Poll() {
			break // another goroutine takes them, or the process has broken the rules
		}
	}
	p.reader.Release()
	return 0, nil
}

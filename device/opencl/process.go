package opencl

import (
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
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/rawio/fd"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// process is one engine process. It is the reader.Source of its socket.
type process struct {
	engine *engine
	cmd    *exec.Cmd
	socket *fd.FD
	reader *reader.Reader
	dir    string         // the platform's cache, of this process only
	said   *os.File       // its standard error
	turns  *net.UnixConn  // nil: the device is not shared
	moves  *net.UnixConn  // nil: it is shared; see mover.go
	ring   []byte         // of moves
	talk   sync.WaitGroup // the goroutine of turns or moves
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

// send sends a packet without waiting. A full socket takes the packet after an event.
// After any other error, the reader sees the end of the process.
func (p *process) send(packet []byte) bool {
	s, ok := p.socket.Use()
	if !ok {
		return false
	}
	defer p.socket.Done()
	return unix.Sendto(int(s), packet, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil
}

// Receive implements reader.Source.
func (p *process) Receive(block bool) error {
	n, err := p.receive(block)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return reader.ErrNothing
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case n == 0:
		return io.EOF
	case n%reg.EventSize != 0:
		return fmt.Errorf("the process sent %d bytes", n)
	}
	hello := p.hello
	p.hello = false
	return p.engine.take(p, p.buf[:n], hello)
}

// receive is recv(2), which package unix has only with the address of the sender.
func (p *process) receive(block bool) (int, error) {
	s, ok := p.socket.Use()
	if !ok {
		return 0, net.ErrClosed
	}
	defer p.socket.Done()
	flags := uintptr(unix.MSG_DONTWAIT)
	if block {
		flags = 0
	}
	n, _, e := unix.Syscall6(unix.SYS_RECVFROM, s, uintptr(unsafe.Pointer(unsafe.SliceData(p.buf))), uintptr(len(p.buf)), flags, 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// Soon implements reader.Source. The reader of the network polls, not this one.
func (p *process) Soon() bool { return false }

// socketBuffer is the room for packets on their way to the process, in bytes.
const socketBuffer = 4 << 20

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
	other, err := p.connect()
	if err != nil {
		return err
	}
	p.cmd.ExtraFiles = []*os.File{other, vram}
	var more []*os.File
	if limits.turns {
		more, err = p.connectTurns()
	} else {
		more, err = p.connectMoves()
	}
	if err != nil {
		return errors.Join(err, other.Close())
	}
	p.cmd.ExtraFiles = append(p.cmd.ExtraFiles, more...)
	return nil
}

func (p *process) connectTurns() (others []*os.File, err error) {
	var other *os.File
	if p.turns, other, err = connectTalk("turns"); err != nil {
		return nil, err
	}
	return []*os.File{other}, nil
}

// discard releases what a process has that did not start.
func (p *process) discard() (err error) {
	if p.socket != nil {
		err = errors.Join(p.socket.Close(), p.reader.Close())
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

// connect makes the socket of the process, and returns the other end.
func (p *process) connect() (other *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	// The larger buffer needs a privilege; without it, fewer packets are in flight.
	if unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
		_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	}
	p.socket = fd.New(pair[0])
	p.reader, err = reader.New(p, reader.Polling{})
	limit := unix.NsecToTimeval(recheck.Nanoseconds())
	err = errors.Join(err, unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	if err != nil {
		err = errors.Join(err, p.socket.Close(), unix.Close(pair[1]))
		p.socket = nil
		return nil, err
	}
	return os.NewFile(uintptr(pair[1]), "engine"), nil
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

// hold returns the descriptor of the socket while an event is due, see device.Poller.
func (e *engine) hold() (descriptor uintptr, release func()) {
	p := e.polled.Load()
	if p == nil || e.inFlight.Load() == 0 || !p.reader.Hold() {
		return 0, nil
	}
	descriptor, ok := p.socket.Use()
	if !ok {
		p.reader.Release()
		return 0, nil
	}
	return descriptor, func() {
		p.socket.Done()
		p.reader.Release()
	}
}

package opencl

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// A GPU that is a part of an OpenCL device has the device together with other parts, so its
// process asks for a turn before it runs kernels (session/turn.go). A turn is a job of the GPU: the
// box hands it to its dispatcher, as it does the kernels of a software GPU, and begins it when
// the dispatcher says so. The process then runs its kernels, and says that they have ended.
//
// A process that a tenant's program has taken over may lie. It gets no second turn beside its
// first one, and the time that a turn kept others waiting counts at least half.

// turn is one kernel of the tenant or several, from its process's LAUNCH to the DONE.
type turn struct {
	process *process
	id      uint64 // of the process
	blocks  int64
	widest  int64
	cost    time.Duration // that the process expects

	// Under the engine's mu:
	ended bool // before Begin: it does not begin any more
	began time.Time
	done  func(took time.Duration) // since Begin
}

var _ device.Job = (*turn)(nil)

// Cost implements device.Job: the time that the process expects by earlier kernels.
func (t *turn) Cost() time.Duration { return t.cost }

// Blocks returns the number of work-groups.
func (t *turn) Blocks() int64 { return t.blocks }

// Widest returns the work-groups of the largest kernel.
func (t *turn) Widest() int64 { return t.widest }

// Run implements device.Job, for an owner without a dispatcher. It waits for the process.
func (t *turn) Run() (more bool) {
	over := make(chan struct{})
	if t.Begin(func(time.Duration) { close(over) }) {
		<-over
	}
	return false
}

// Begin lets the kernels run. It calls done, from another goroutine, when they or their
// process have ended, with the time of the device. It returns false if that was before.
func (t *turn) Begin(done func(took time.Duration)) bool {
	e := t.process.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.ended || !t.process.tell(wire.Message{Type: wire.Permit, ID: t.id}) {
		return false
	}
	t.began, t.done = time.Now(), done
	return true
}

// end returns the call of done, or nil. The caller holds the engine's mu, and calls it
// without.
func (t *turn) end(ran time.Duration) func() {
	done, wall := t.done, time.Since(t.began)
	t.ended, t.done = true, nil
	if done == nil {
		return nil
	}
	took := min(max(ran, wall/2), wall)
	return func() { done(took) }
}

// connectTalk makes a socket beside that of the packets, and returns both ends.
func (e *engine) connectTalk(name string) (conn *rights.Conn, other *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket for %s: %w", name, err)
	}
	own := os.NewFile(uintptr(pair[0]), name)
	c, err := net.FileConn(own)
	err = errors.Join(err, own.Close())
	if err != nil {
		return nil, nil, errors.Join(err, unix.Close(pair[1]))
	}
	return rights.NewConn(c.(*net.UnixConn), &e.trash), os.NewFile(uintptr(pair[1]), name), nil
}

// tell sends a message about turns to the process without waiting.
func (p *process) tell(m wire.Message) bool { return sendNow(p.turns, m.Append(nil)) }

// sendNow sends without waiting.
func sendNow(conn syscall.Conn, b []byte) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		return true
	})
	return err == nil && sent == nil
}

// maxTurnMessages is the number of messages that a process sends at one time: DONE, and the
// next LAUNCH.
const maxTurnMessages = 2

// takeTurns takes what a process says of its turns until its socket is closed. A process that
// breaks the rules is ended.
func (p *process) takeTurns() {
	b := make([]byte, maxTurnMessages*wire.MessageSize+1)
	for {
		n, err := p.turns.Read(b)
		if err != nil || n == 0 {
			return
		}
		if err := p.takeMessages(b[:n]); err != nil {
			p.engine.log.Warn("the OpenCL engine is ended", "err", err)
			p.engine.mu.Lock()
			if !p.reaped {
				p.kill()
			}
			p.engine.mu.Unlock()
			return
		}
	}
}

// takeMessages takes the messages of one datagram. It tells others at its end: an owner that
// hears that a turn is over finds the next one there.
func (p *process) takeMessages(b []byte) error {
	e := p.engine
	var over func()
	e.mu.Lock()
	notify, err := e.notify, error(nil)
	for len(b) > 0 && err == nil {
		var m wire.Message
		if m, err = wire.Parse(b[:min(len(b), wire.MessageSize)]); err != nil {
			break
		}
		b = b[wire.MessageSize:]
		switch t := p.turn; {
		case m.Type == wire.Done && t != nil && t.id == m.ID:
			ran := time.Duration(min(m.Arg[0], uint64(time.Hour)))
			over, p.turn = t.end(ran), nil
			if e.asked == t {
				e.asked = nil
			}
		case m.Type == wire.Launch && t == nil:
			e.ask(p, m)
		default:
			err = fmt.Errorf("the process sent %v out of turn", m.Type)
		}
	}
	e.mu.Unlock()
	if over != nil {
		over()
	}
	notify()
	return err
}

// ask notes that a process wants a turn. The caller holds mu.
func (e *engine) ask(p *process, m wire.Message) {
	blocks := min(max(m.Arg[0], 1), 1<<40)
	t := &turn{
		process: p, id: m.ID, blocks: int64(blocks), widest: int64(min(max(m.Arg[1], 1), blocks)),
		cost: time.Duration(min(m.Arg[3], uint64(time.Hour))),
	}
	p.turn = t
	if p.context == e.context && !p.killed {
		e.asked = t
	}
}

// nextTurn returns the turn that was asked for, once.
func (e *engine) nextTurn() (t *turn, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, e.asked = e.asked, nil
	return t, t != nil
}

// endTalk ends the conversations with a process that has ended, and its turn.
func (p *process) endTalk() {
	if p.turns != nil {
		_ = p.turns.Close()
	}
	if p.moves != nil {
		_ = p.moves.Close()
	}
	p.talk.Wait()
	if p.ring != nil {
		_ = unix.Munmap(p.ring) // of no one else: the goroutine of moves has ended, and reap has the mover forget it
	}
	e := p.engine
	e.mu.Lock()
	var over func()
	if t := p.turn; t != nil {
		over, p.turn = t.end(time.Since(t.began)), nil
		if e.asked == t {
			e.asked = nil
		}
	}
	e.mu.Unlock()
	if over != nil {
		over()
	}
}

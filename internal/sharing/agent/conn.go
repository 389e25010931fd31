//go:build linux

package agent

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// conn is the connection of a process.
type conn struct {
	id     broker.ProcessID
	share  string
	pid    int
	socket *rights.Conn
	raw    syscall.RawConn
	page   *page
	pace   *pace // of the share
	// Of a message that is sent, under the agent's lock.
	buffer  []byte
	rights  []byte
	failed  error
	attempt func(fd uintptr)
}

// watch is a process that has connections, or memory after it closed them.
type watch struct {
	process *pidfd
	ids     []broker.ProcessID
}

func (w *watch) has(id broker.ProcessID) bool {
	for _, x := range w.ids {
		if x == id {
			return true
		}
	}
	return false
}

// accept serves the connections of a share until its socket is closed. It does not read
// the share's record, which changes under the agent's lock.
func (a *Agent) accept(l *rights.Listener, trash *rights.Disposer, page *page, id string) {
	var pace pace
	for {
		accepted, err := l.AcceptUnix()
		if err != nil {
			if !isClosed(err) {
				a.config.Log.Warn("connection of a share is lost", "share", id, "error", err)
				time.Sleep(acceptPause)
				continue
			}
			return
		}
		socket := rights.NewConn(accepted, trash)
		var p peer
		if err = rights.ErrFull; !trash.Full() {
			err = allowed(accepted)
		}
		if err == nil {
			p, err = peerOf(accepted)
		}
		if err != nil {
			a.config.Log.Warn("process of a share is not known", "share", id, "error", err)
			_ = socket.Close()
			continue
		}
		a.enter()
		if c := a.connectLocked(id, page, &pace, socket, p); c != nil {
			a.work.Go(func() { a.read(c) })
		}
		a.mu.Unlock()
	}
}

// acceptPause is the pause after an accept that failed, for want of descriptors.
const acceptPause = 100 * time.Millisecond

// allowed fails for a connection whose descriptor is one of the last that the agent may have. They are
// for its files, and for the calls that end a share with too many connections.
func allowed(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = rights.Allowed(int(fd)) })
	return errors.Join(err, failed)
}

// connectLocked adds a connection, or closes it.
func (a *Agent) connectLocked(id string, page *page, pace *pace, socket *rights.Conn, p peer) *conn {
	refuse := func(why error) *conn {
		p.process.close()
		_ = socket.Close()
		a.config.Log.Info("process is refused", "share", id, "pid", p.Pid, "error", why)
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return refuse(err)
	}
	if a.closing {
		return refuse(net.ErrClosed)
	}
	if p.process == nil {
		return refuse(errUnseen)
	}
	pid := int(p.Pid)
	w := a.watches[pid]
	if w != nil && w.process.ended() { // and its ID was used again
		a.endedLocked(pid, w)
		w = nil
	}
	a.next++
	c := &conn{id: a.next, share: id, pid: pid, socket: socket, raw: raw, page: page, pace: pace, buffer: make([]byte, 0, wire.MessageSize)}
	c.attempt = func(fd uintptr) {
		c.failed = unix.Sendmsg(int(fd), c.buffer, c.rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if err := a.broker.Connect(a.now(), c.id, id, pid); err != nil {
		return refuse(err)
	}
	a.conns[c.id] = c
	if w != nil {
		p.process.close()
		w.ids = append(w.ids, c.id)
		a.pruneLocked(pid, w)
	} else {
		w = &watch{p.process, []broker.ProcessID{c.id}}
		a.watches[pid] = w
		a.work.Go(func() { a.watch(pid, w) })
	}
	return c
}

// watch waits for the end of a process.
func (a *Agent) watch(pid int, w *watch) {
	if !w.process.wait() {
		return // it has no connection and no memory
	}
	a.enter()
	defer a.mu.Unlock()
	if a.watches[pid] == w && !a.closing {
		a.endedLocked(pid, w)
		a.flushLocked()
	}
}

func (a *Agent) endedLocked(pid int, w *watch) {
	delete(a.watches, pid)
	w.process.close()
	for _, id := range w.ids {
		a.broker.Ended(a.now(), id)
	}
}

// pruneLocked ends the watch of a process that the broker has nothing of.
func (a *Agent) pruneLocked(pid int, w *watch) {
	kept := w.ids[:0]
	for _, id := range w.ids {
		if a.broker.Known(id) {
			kept = append(kept, id)
		}
	}
	if w.ids = kept; len(kept) == 0 {
		delete(a.watches, pid)
		w.process.close()
	}
}

// dropLocked closes a connection.
func (a *Agent) dropLocked(c *conn) {
	if a.conns[c.id] != c {
		return
	}
	delete(a.conns, c.id)
	_ = c.socket.Close()
	a.broker.Closed(a.now(), c.id)
	if w := a.watches[c.pid]; w != nil {
		a.pruneLocked(c.pid, w)
	}
}

// send sends a message without waiting. It returns false if the process does not read.
func (c *conn) send(m wire.Message) bool {
	c.buffer, c.rights = m.Append(c.buffer[:0]), nil
	if m.Type == wire.Welcome {
		c.rights = unix.UnixRights(int(c.page.file.Fd()))
	}
	if err := c.raw.Control(c.attempt); err != nil {
		return false
	}
	return c.failed == nil
}

// Bounds of the messages of one share, whatever the number of its connections: a flood
// takes no more than a part of the agent's time.
const (
	paceTime = 10 * time.Millisecond
	paceMost = 2000 // 200,000 a second: ten times what a program can use
)

// pace counts the messages of a share.
type pace struct {
	mu    sync.Mutex
	from  time.Duration
	count int
}

// next counts messages, and returns how long their connection is to rest before it counts them
// again.
func (p *pace) next(now time.Duration, messages int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now-p.from >= paceTime {
		p.from, p.count = now, 0
	}
	if p.count += messages; p.count <= paceMost {
		return 0
	}
	return p.from + paceTime - now
}

// packetLocked hands the messages of a packet to the broker.
func (a *Agent) packetLocked(c *conn, packet []byte) {
	now := a.now()
	for len(packet) > 0 {
		m, err := wire.Parse(packet[:min(len(packet), wire.MessageSize)])
		if err != nil {
			a.broker.Wrong(c.id)
			return
		}
		a.broker.Receive(now, c.id, m)
		packet = packet[min(len(packet), wire.MessageSize):]
	}
}

// read hands the messages of a connection to the broker until it ends.
func (a *Agent) read(c *conn) {
	var buffer [wire.MaxPacket*wire.MessageSize + 1]byte // a longer packet is wrong, not cut
	for {
		n, err := c.socket.Read(buffer[:])
		messages := max(n/wire.MessageSize, 1)
		for rest := c.pace.next(a.now(), messages); rest > 0; rest = c.pace.next(a.now(), messages) {
			time.Sleep(rest)
		}
		if err != nil || n == 0 {
			break
		}
		a.enter()
		if a.conns[c.id] == c && !a.closing {
			a.packetLocked(c, buffer[:n])
			a.flushLocked()
		}
		a.mu.Unlock()
	}
	a.enter()
	defer a.mu.Unlock()
	if a.closing {
		return
	}
	a.dropLocked(c)
	a.flushLocked()
}

package hook

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Types of messages (hook/SHARE.md).
const (
	hello = iota + 1
	allocate
	free
	launchAsked
	done
	idle
	failed
	exit
	holds
	usage
)

const (
	welcome = iota + 65
	granted
	refused
	permit
	end
)

// message is one message of the sharing protocol.
type message struct {
	kind, gpu uint32
	id, bytes uint64
	arg       [5]uint64
}

func (m message) encode() []byte {
	b := make([]byte, 64)
	le := binary.LittleEndian
	le.PutUint32(b, m.kind)
	le.PutUint32(b[4:], m.gpu)
	le.PutUint64(b[8:], m.id)
	le.PutUint64(b[16:], m.bytes)
	for i, a := range m.arg {
		le.PutUint64(b[24+8*i:], a)
	}
	return b
}

func decode(b []byte) message {
	le := binary.LittleEndian
	m := message{kind: le.Uint32(b), gpu: le.Uint32(b[4:]), id: le.Uint64(b[8:]), bytes: le.Uint64(b[16:])}
	for i := range m.arg {
		m.arg[i] = le.Uint64(b[24+8*i:])
	}
	return m
}

// Words of the page.
const (
	pageFlags     = 12
	pageHeartbeat = 16
	pageSilence   = 24
	pageCount     = 48
	pageProcesses = 52
	pageGPU       = 64
	gpuGate       = pageGPU + 24
	gpuWindow     = pageGPU + 28
	gpuLimit      = pageGPU + 32
	gpuUsed       = pageGPU + 40
	gpuCredit     = pageGPU + 52
)

// scripted is an agent of one share that does what a test says. It grants memory up to
// the limit, and permits launches unless "wait" is set.
type scripted struct {
	t    testing.TB
	path string
	page []byte
	file *os.File // of the page

	listener *net.UnixListener
	serving  sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	conns   map[*net.UnixConn]uint64 // bytes that each holds
	log     []message                // without ALLOCATE, FREE and USAGE
	used    uint64                   // by all connections
	peak    uint64
	counted uint64 // launches that USAGE told
	wait    bool   // leave LAUNCH without an answer
	// The GPU of the last ALLOCATE.
	lastAsked uint32
	mute      bool // leave ALLOCATE without an answer
	packets   bool // it has given credit: packets may have several messages
	dead      bool // the page changes no more
	late      bool // leave HELLO without an answer
}

func newScripted(t testing.TB, limit uint64) *scripted {
	t.Helper()
	dir, err := os.MkdirTemp("", "share") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a := &scripted{t: t, path: filepath.Join(dir, "agent.sock"), conns: map[*net.UnixConn]uint64{}}
	a.changed = sync.NewCond(&a.mu)
	a.newPage(limit)
	a.listen()
	t.Cleanup(func() {
		a.stop()
		_ = unix.Munmap(a.page)
		_ = a.file.Close()
	})
	return a
}

func (a *scripted) newPage(limit uint64) {
	a.t.Helper()
	fd, err := unix.MemfdCreate("page", unix.MFD_CLOEXEC)
	if err != nil {
		a.t.Fatal(err)
	}
	a.file = os.NewFile(uintptr(fd), "page")
	if err := a.file.Truncate(4096); err != nil {
		a.t.Fatal(err)
	}
	if a.page, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		a.t.Fatal(err)
	}
	a.set32(0, 0x48535844)
	a.set32(4, 1)
	a.set32(pageCount, 1)
	a.set32(gpuWindow, 16)
	a.set64(gpuLimit, limit)
}

func (a *scripted) set32(at int, v uint32) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&a.page[at])), v)
}

func (a *scripted) set64(at int, v uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&a.page[at])), v)
}

func (a *scripted) get32(at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&a.page[at])))
}

func (a *scripted) get64(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&a.page[at])))
}

// listen starts the agent, again after stop.
func (a *scripted) listen() {
	a.t.Helper()
	_ = os.Remove(a.path)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: a.path, Net: "unixpacket"})
	if err != nil {
		a.t.Fatal(err)
	}
	a.listener, a.dead = l, false
	a.serving.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conns[c] = 0
			a.mu.Unlock()
			a.serving.Go(func() { a.serve(c) })
		}
	})
}

// stop closes the agent's sockets, as its death does.
func (a *scripted) stop() {
	_ = a.listener.Close()
	a.mu.Lock()
	a.dead = true
	for c := range a.conns {
		_ = c.Close()
	}
	a.mu.Unlock()
	a.serving.Wait()
}

func (a *scripted) serve(c *net.UnixConn) {
	defer func() {
		a.mu.Lock()
		a.used -= a.conns[c]
		if !a.dead {
			a.set64(gpuUsed, a.used)
		}
		delete(a.conns, c)
		a.changed.Broadcast()
		a.mu.Unlock()
		_ = c.Close()
	}()
	b := make([]byte, 16*64+1)
	for first := true; ; first = false {
		n, err := c.Read(b)
		if err != nil || n == 0 {
			return
		}
		a.mu.Lock()
		a.packets = a.packets || a.get32(gpuCredit) > 0
		several := a.packets
		a.mu.Unlock()
		if n%64 != 0 || n > 16*64 || n > 64 && !several {
			a.t.Errorf("a packet of %d bytes", n)
			return
		}
		if first && (n != 64 || decode(b).kind != hello) {
			a.t.Errorf("a connection begins with %d bytes, %+v", n, decode(b))
			return
		}
		for at := 0; at < n; at += 64 {
			a.handle(c, decode(b[at:]))
		}
	}
}

func (a *scripted) handle(c *net.UnixConn, m message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.changed.Broadcast()
	switch m.kind {
	case hello:
		if !a.late {
			a.welcome(c)
		}
	case allocate:
		a.lastAsked = m.gpu
		if a.mute {
			return
		}
		answer := message{kind: refused, gpu: m.gpu, id: m.id}
		if limit := a.get64(gpuLimit); m.bytes <= limit && a.used <= limit-m.bytes {
			answer.kind = granted
			a.hold(c, a.conns[c]+m.bytes)
		}
		a.send(c, answer)
		return
	case free:
		if m.bytes > a.conns[c] {
			a.t.Errorf("FREE of %d of %d bytes", m.bytes, a.conns[c])
			return
		}
		a.hold(c, a.conns[c]-m.bytes)
		return
	case holds:
		a.hold(c, m.bytes)
	case usage:
		a.counted += m.arg[0]
		return
	case launchAsked:
		if !a.wait && m.arg[4] == 0 {
			a.send(c, message{kind: permit, gpu: m.gpu, id: m.id})
		}
	}
	a.log = append(a.log, m)
}

// welcome answers HELLO, with the agent's lock held.
func (a *scripted) welcome(c *net.UnixConn) {
	_, _, err := c.WriteMsgUnix(message{kind: welcome, id: 1, arg: [5]uint64{1}}.encode(), unix.UnixRights(int(a.file.Fd())), nil)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		a.t.Error(err)
	}
}

func (a *scripted) hold(c *net.UnixConn, bytes uint64) {
	a.used += bytes - a.conns[c]
	a.conns[c] = bytes
	a.peak = max(a.peak, a.used)
	a.set64(gpuUsed, a.used)
}

func (a *scripted) send(c *net.UnixConn, m message) {
	_, _ = c.Write(m.encode()) // the process may be gone
}

// all sends a message to every process.
func (a *scripted) all(m message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.conns {
		a.send(c, m)
	}
}

// await waits until the condition holds, under the agent's lock.
func (a *scripted) await(what string, f func() bool) {
	a.t.Helper()
	timer := time.AfterFunc(time.Minute, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.changed.Broadcast()
	})
	defer timer.Stop()
	late := time.Now().Add(time.Minute)
	a.mu.Lock()
	defer a.mu.Unlock()
	for !f() {
		if time.Now().After(late) {
			a.t.Fatalf("waited a minute for: %s; log %v", what, a.log)
		}
		a.changed.Wait()
	}
}

// count returns the number of messages of a kind, with the agent's lock held.
func (a *scripted) count(kind uint32) int {
	n := 0
	for _, m := range a.log {
		if m.kind == kind {
			n++
		}
	}
	return n
}

// messages returns the messages so far.
func (a *scripted) messages() []message {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.log)
}

// last returns the last message of a kind.
func (a *scripted) last(kind uint32) message {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.log) - 1; i >= 0; i-- {
		if a.log[i].kind == kind {
			return a.log[i]
		}
	}
	return message{}
}

package vhostuser_test

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/vhostuser"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
)

// server is a back end that breaks the rules in one way; without one it is a disk of zeros
// that answers each request with success.
type server struct {
	t      *testing.T
	listen net.Listener
	wg     sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	message  func(c *conn, request uint32, payload []byte) (reply []byte, handled bool)
	work     func(q *ring)
	requests int // that work has seen, of all connections
}

// conn is a connection of a front end.
type conn struct {
	*server
	socket  *net.UnixConn
	memory  []byte
	rings   [16]*ring
	call    int
	stopped chan struct{} // closed at the end
	wg      sync.WaitGroup
}

// ring is a virtqueue of the server.
type ring struct {
	c                 *conn
	desc, avail, used int // offsets in memory
	kick              int
	seen, done        uint16
	stop              chan struct{}
}

const serverBase = 1 << 30

// Requests of the protocol.
const (
	msgGetFeatures  = 1
	msgSetMem       = 5
	msgSetAddr      = 9
	msgGetBase      = 11
	msgSetKick      = 12
	msgSetCall      = 13
	msgGetProtocol  = 15
	msgGetQueueNum  = 17
	msgGetConfig    = 24
	protocolBits    = 1<<0 | 1<<9 // several virtqueues, configuration
	serverFeatures  = 1<<30 | 1<<32 | 1<<9
	serverQueueSize = 256
)

func newServer(t *testing.T) *server {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(tempDir(t), "backend.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, listen: l}
	s.work = func(q *ring) { q.serve() }
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { (&conn{server: s, socket: c.(*net.UnixConn), stopped: make(chan struct{})}).run() })
		}
	})
	t.Cleanup(func() { _ = l.Close(); s.wg.Wait() })
	return s
}

func (s *server) path() string { return s.listen.Addr().String() }

// set changes the behaviour.
func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (c *conn) run() {
	defer func() {
		_ = c.socket.Close()
		close(c.stopped)
		c.wg.Wait()
		if c.memory != nil {
			_ = unix.Munmap(c.memory)
		}
	}()
	for {
		head, oob := make([]byte, 12), make([]byte, 64)
		n, oobn, _, _, err := c.socket.ReadMsgUnix(head, oob)
		if err != nil || n != len(head) {
			return
		}
		payload := make([]byte, binary.NativeEndian.Uint32(head[8:]))
		if _, err := io.ReadFull(c.socket, payload); err != nil {
			return
		}
		request := binary.NativeEndian.Uint32(head)
		fd := descriptor(oob[:oobn])
		reply, handled := c.special(request, payload)
		if !handled {
			reply = c.answer(request, payload, fd)
		}
		if reply != nil && !c.reply(request, reply) {
			return
		}
	}
}

func (c *conn) special(request uint32, payload []byte) ([]byte, bool) {
	c.mu.Lock()
	f := c.message
	c.mu.Unlock()
	if f == nil {
		return nil, false
	}
	return f(c, request, payload)
}

func (c *conn) reply(request uint32, payload []byte) bool {
	b := binary.NativeEndian.AppendUint32(nil, request)
	b = binary.NativeEndian.AppendUint32(b, 5)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(payload)))
	_, err := c.socket.Write(append(b, payload...))
	return err == nil
}

func descriptor(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return -1
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return -1
	}
	return fds[0]
}

func word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func (c *conn) answer(request uint32, payload []byte, fd int) []byte {
	e := binary.NativeEndian
	switch request {
	case msgGetFeatures:
		return word(serverFeatures)
	case msgGetProtocol:
		return word(protocolBits)
	case msgGetQueueNum:
		return word(1)
	case msgGetConfig:
		e.PutUint64(payload[12:], 1<<20)
		return payload
	case msgSetMem:
		size := e.Uint64(payload[16:])
		memory, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			c.t.Errorf("mmap: %v", err)
		}
		c.memory = memory
		for at, b := range memory {
			if b != 0 {
				c.t.Errorf("the memory of a session has %#x of an earlier one at %#x", b, at)
				break
			}
		}
	case msgSetAddr:
		at := func(i int) int { return int(e.Uint64(payload[i:]) - serverBase) }
		c.rings[payload[0]] = &ring{c: c, desc: at(8), used: at(16), avail: at(24), kick: -1, stop: make(chan struct{})}
	case msgSetCall:
		c.call = fd
	case msgSetKick:
		q := c.rings[payload[0]]
		q.kick = fd
		c.wg.Go(q.run)
	case msgGetBase:
		q := c.rings[payload[0]]
		close(q.stop)
		return payload[:8]
	}
	return nil
}

// run calls work for each kick.
func (q *ring) run() {
	for {
		select {
		case <-q.stop:
			return
		case <-q.c.stopped:
			return
		default:
		}
		fds := []unix.PollFd{{Fd: int32(q.kick), Events: unix.POLLIN}}
		if n, _ := unix.Poll(fds, 10); n == 0 {
			continue
		}
		var b [8]byte
		_, _ = unix.Read(q.kick, b[:])
		q.c.mu.Lock()
		q.c.work(q)
		q.c.mu.Unlock()
	}
}

func (q *ring) u16(at int) uint16 { return binary.LittleEndian.Uint16(q.c.memory[at:]) }

// serve ends each request that is available, with a status of success in the last byte.
func (q *ring) serve() {
	for q.seen != q.u16(q.avail+2) {
		head := q.u16(q.avail + 4 + 2*int(q.seen%serverQueueSize))
		q.seen++
		q.c.requests++
		n := uint32(0)
		for d := int(head); ; d = int(q.u16(q.desc + 16*d + 14)) {
			desc := q.c.memory[q.desc+16*d:]
			addr, size := int(binary.LittleEndian.Uint64(desc)-serverBase), binary.LittleEndian.Uint32(desc[8:])
			flags := binary.LittleEndian.Uint16(desc[12:])
			if flags&2 != 0 {
				clear(q.c.memory[addr : addr+int(size)])
				n += size
			}
			if flags&1 == 0 {
				break
			}
		}
		q.end(uint32(head), n)
	}
}

// end ends a request.
func (q *ring) end(id, n uint32) {
	q.put(id, n)
	q.publish(q.done)
}

// put writes a used element.
func (q *ring) put(id, n uint32) {
	e := q.c.memory[q.used+4+8*int(q.done%serverQueueSize):]
	binary.LittleEndian.PutUint32(e, id)
	binary.LittleEndian.PutUint32(e[4:], n)
	q.done++
}

func (q *ring) publish(index uint16) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&q.c.memory[q.used])), uint32(index)<<16)
	_, _ = unix.Write(q.c.call, word(1))
}

// slot is a device of the server in a box, with a driver.
func (s *server) slot() (*pair, *vhostuser.Device, *disk) {
	s.t.Helper()
	dev := newDevice(s.t, vhostuser.Spec{Socket: s.path(), Grace: time.Minute})
	p := newPair(s.t, dev)
	p.until("healthy disk", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
	p.bind(true)
	return p, dev, p.open().disk()
}

// A back end that lies about a request loses its connection, and the next connection
// carries the request out. The guest sees one result, within its buffer.
func TestLyingBackend(t *testing.T) {
	for _, c := range []struct {
		name string
		work func(q *ring)
	}{
		{"ends a request that it does not have", func(q *ring) { q.end(40, 0) }},
		{"ends a descriptor that does not exist", func(q *ring) { q.end(0xffffffff, 0) }},
		{"ends a request twice", func(q *ring) { // at once: later, the guest may have another request of that number
			q.put(uint32(q.u16(q.avail+4)), 0)
			q.end(uint32(q.u16(q.avail+4)), 0)
		}},
		{"ends more requests than it has", func(q *ring) { q.publish(1000) }},
		{"closes the connection", func(q *ring) { _ = q.c.socket.Close() }},
		{"sends an answer without a request", func(q *ring) { q.c.reply(msgGetFeatures, word(1)); q.c.reply(msgGetFeatures, word(1)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			var lied atomic.Bool
			s.set(func() {
				s.work = func(q *ring) {
					if lied.CompareAndSwap(false, true) {
						c.work(q)
						return
					}
					q.serve()
				}
			})
			_, dev, d := s.slot()
			for range 3 {
				d.do(blkRead, 0, 4096)
			}
			if !lied.Load() {
				t.Error("the back end has not lied")
			}
			if ok, why := dev.Check(); !ok {
				t.Errorf("unhealthy: %s", why)
			}
		})
	}
}

// A back end that says it has written more than there is room for writes no more than
// that; the driver gets the true length.
func TestTooLongResult(t *testing.T) {
	s := newServer(t)
	s.set(func() { s.work = func(q *ring) { q.seen++; q.end(uint32(q.u16(q.avail+4)), 1<<31) } })
	_, _, d := s.slot()
	beyond := d.data[512:1024]
	for i := range beyond {
		beyond[i] = 7
	}
	d.begin(blkRead, 0, 512)
	var n uint32
	for ok := false; !ok; {
		if _, n, ok = d.Queues[0].Used(); !ok {
			if _, err := d.g.bus.WaitInterrupt(t.Context(), 1, 20*time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n != 513 {
		t.Errorf("used length %d, want 513", n)
	}
	for i, b := range beyond {
		if b != 7 {
			t.Fatalf("byte %d behind the buffer is %d", i, b)
		}
	}
}

// A slot whose back end does not fit is unhealthy with the reason.
func TestRefusedBackend(t *testing.T) {
	answer := func(request uint32, reply []byte) func(*conn, uint32, []byte) ([]byte, bool) {
		return func(_ *conn, r uint32, _ []byte) ([]byte, bool) { return reply, r == request }
	}
	for _, c := range []struct {
		name, why string
		message   func(c *conn, request uint32, payload []byte) ([]byte, bool)
	}{
		{"legacy", "VERSION_1", answer(msgGetFeatures, word(1<<30))},
		{"no configuration", "CONFIG", answer(msgGetProtocol, word(1))},
		{"short configuration", "GET_CONFIG", answer(msgGetConfig, make([]byte, 12))},
		{"no virtqueues", "0 virtqueues", answer(msgGetQueueNum, word(0))},
		{"wrong length", "want 8", answer(msgGetFeatures, make([]byte, 4))},
		{"huge answer", "at most", answer(msgGetFeatures, make([]byte, 8192))},
		{"other answer", "answer is one to", func(c *conn, r uint32, _ []byte) ([]byte, bool) {
			if r == msgGetFeatures {
				c.reply(msgGetProtocol, word(0))
			}
			return nil, r == msgGetFeatures
		}},
		{"closes", "closed the connection", func(c *conn, r uint32, _ []byte) ([]byte, bool) { _ = c.socket.Close(); return nil, true }},
		{"silent", "no connection within", func(*conn, uint32, []byte) ([]byte, bool) { return nil, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.set(func() { s.message = c.message })
			p := newPair(t, newDevice(t, vhostuser.Spec{Socket: s.path()}))
			slot := p.box.Observe().Slots[0]
			if slot.Health != dxpuv1.Health_HEALTH_FAILED || !strings.Contains(slot.HealthDetail, c.why) {
				t.Errorf("health %v: %q, want %q", slot.Health, slot.HealthDetail, c.why)
			}
			s.set(func() { s.message = nil })
			p.until("healthy disk", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
		})
	}
}

// A guest that resets its driver again and again, with requests under way, gets a working
// device each time, and the server sees every stop before the next start.
func TestDriverRestarts(t *testing.T) {
	s := newServer(t)
	_, _, d := s.slot()
	for range 20 {
		d.begin(blkRead, 0, 64<<10)
		d = d.g.disk()
	}
	d.do(blkRead, 0, pcie.PageSize)
	if st := d.g.Read(virtiotest.Status, 1); st&virtiotest.NeedsReset != 0 {
		t.Errorf("status %#x", st)
	}
}

// A back end that has state of the last driver gets a new connection for the next lease, and
// stays healthy meanwhile. A disk has none.
func TestStateEndsWithLease(t *testing.T) {
	for _, kind := range []string{"blk", "net", "fs"} {
		t.Run(kind, func(t *testing.T) {
			s := newServer(t)
			connected, started := make(chan struct{}, 8), make(chan struct{}, 8)
			s.set(func() {
				s.message = func(_ *conn, r uint32, payload []byte) ([]byte, bool) {
					switch r {
					case msgGetProtocol:
						connected <- struct{}{}
					case msgSetKick:
						if payload[0] == 0 {
							started <- struct{}{}
						}
					case msgGetQueueNum:
						return word(2), true
					}
					return nil, false
				}
			})
			dev := newDevice(t, vhostuser.Spec{Type: kind, Socket: s.path(), Grace: time.Minute})
			await := func(what string, c <-chan struct{}) {
				t.Helper()
				select {
				case <-c:
				case <-time.After(20 * time.Second):
					t.Fatalf("no %s", what)
				}
			}
			await("connection", connected)
			p := newPair(t, dev)
			p.until("healthy device", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
			for range 2 {
				p.bind(true)
				g := p.open()
				d := &virtiotest.Driver{Host: g}
				if err := d.Start(virtiotest.Version1, 64); err != nil {
					t.Fatal(err)
				}
				await("start of virtqueue 0", started)
				if err := g.bus.Close(); err != nil {
					t.Error(err)
				}
				p.bind(false)
				if kind != "blk" {
					await("new connection", connected)
				}
				if ok, why := dev.Check(); !ok {
					t.Errorf("unhealthy: %s", why)
				}
			}
			if len(connected) > 0 {
				t.Error("more connections than needed")
			}
		})
	}
}

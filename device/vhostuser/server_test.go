package vhostuser_test

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/vhostuser"
	"github.com/dxpu-project/dxpu/device/vhostuser/vhostusertest"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
)

func newServer(t *testing.T) *vhostusertest.Server {
	t.Helper()
	return vhostusertest.NewServer(t, filepath.Join(tempDir(t), "backend.sock"))
}

func word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// slotOf returns a device of the server in a box, with a driver.
func slotOf(t *testing.T, s *vhostusertest.Server) (*pair, *vhostuser.Device, *disk) {
	t.Helper()
	dev := newDevice(t, vhostuser.Spec{Socket: s.Path(), Grace: time.Minute})
	p := newPair(t, dev)
	p.until("healthy disk", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
	p.bind(true)
	return p, dev, p.open().disk()
}

// A back end that lies about a request loses its connection, and the next connection
// carries the request out. The guest sees one result, within its buffer.
func TestLyingBackend(t *testing.T) {
	for _, c := range []struct {
		name string
		work func(q *vhostusertest.Ring)
	}{
		{"ends a request that it does not have", func(q *vhostusertest.Ring) { q.End(40, 0) }},
		{"ends a descriptor that does not exist", func(q *vhostusertest.Ring) { q.End(0xffffffff, 0) }},
		{"ends a request twice", func(q *vhostusertest.Ring) { // at once: later, the guest may have another request of that number
			q.Put(q.First(), 0)
			q.End(q.First(), 0)
		}},
		{"ends more requests than it has", func(q *vhostusertest.Ring) { q.Publish(1000) }},
		{"closes the connection", func(q *vhostusertest.Ring) { q.Conn.Close() }},
		{"sends an answer without a request", func(q *vhostusertest.Ring) {
			q.Conn.Reply(vhostusertest.GetFeatures, word(1))
			q.Conn.Reply(vhostusertest.GetFeatures, word(1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			var lied atomic.Bool
			s.Set(func() {
				s.Work = func(q *vhostusertest.Ring) {
					if lied.CompareAndSwap(false, true) {
						c.work(q)
						return
					}
					q.Serve()
				}
			})
			_, dev, d := slotOf(t, s)
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
	s.Set(func() { s.Work = func(q *vhostusertest.Ring) { q.EndFirst(1 << 31) } })
	_, _, d := slotOf(t, s)
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

// A virtqueue that the driver enables after DRIVER_OK works, also after a reset.
func TestLateQueue(t *testing.T) {
	s := newServer(t)
	s.Set(func() { s.Work = func(q *vhostusertest.Ring) { q.Serve() } })
	p, dev, d := slotOf(t, s)
	d.do(blkRead, 0, 4096)
	d = d.g.diskOf(&virtiotest.Driver{Host: d.g, Late: true})
	d.do(blkRead, 0, 4096)
	if ok, why := dev.Check(); !ok {
		t.Errorf("unhealthy: %s", why)
	}
	p.bind(false)
}

// A slot whose back end does not fit is unhealthy with the reason.
func TestRefusedBackend(t *testing.T) {
	answer := func(request uint32, reply []byte) func(*vhostusertest.Conn, uint32, []byte) ([]byte, bool) {
		return func(_ *vhostusertest.Conn, r uint32, _ []byte) ([]byte, bool) { return reply, r == request }
	}
	for _, c := range []struct {
		name, why string
		message   func(c *vhostusertest.Conn, request uint32, payload []byte) ([]byte, bool)
	}{
		{"legacy", "VERSION_1", answer(vhostusertest.GetFeatures, word(1<<30))},
		{"no configuration", "CONFIG", answer(vhostusertest.GetProtocol, word(1))},
		{"short configuration", "GET_CONFIG", answer(vhostusertest.GetConfig, make([]byte, 12))},
		{"no virtqueues", "0 virtqueues", answer(vhostusertest.GetQueueNum, word(0))},
		{"wrong length", "want 8", answer(vhostusertest.GetFeatures, make([]byte, 4))},
		{"huge answer", "at most", answer(vhostusertest.GetFeatures, make([]byte, 8192))},
		{"other answer", "answer is one to", func(c *vhostusertest.Conn, r uint32, _ []byte) ([]byte, bool) {
			if r == vhostusertest.GetFeatures {
				c.Reply(vhostusertest.GetProtocol, word(0))
			}
			return nil, r == vhostusertest.GetFeatures
		}},
		{"closes", "closed the connection", func(c *vhostusertest.Conn, r uint32, _ []byte) ([]byte, bool) { c.Close(); return nil, true }},
		{"silent", "no connection within", func(*vhostusertest.Conn, uint32, []byte) ([]byte, bool) { return nil, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.Set(func() { s.Message = c.message })
			p := newPair(t, newDevice(t, vhostuser.Spec{Socket: s.Path()}))
			slot := p.box.Observe().Slots[0]
			if slot.Health != dxpuv1.Health_HEALTH_FAILED || !strings.Contains(slot.HealthDetail, c.why) {
				t.Errorf("health %v: %q, want %q", slot.Health, slot.HealthDetail, c.why)
			}
			s.Set(func() { s.Message = nil })
			p.until("healthy disk", func() bool { return p.box.Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
		})
	}
}

// A guest that resets its driver again and again, with requests under way, gets a working
// device each time, and the server sees every stop before the next start.
func TestDriverRestarts(t *testing.T) {
	s := newServer(t)
	_, _, d := slotOf(t, s)
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
	for _, kind := range []string{"blk", "net", "fs", "vsock"} {
		t.Run(kind, func(t *testing.T) {
			s := newServer(t)
			connected, started := make(chan struct{}, 8), make(chan struct{}, 8)
			s.Set(func() {
				s.Message = func(_ *vhostusertest.Conn, r uint32, payload []byte) ([]byte, bool) {
					switch r {
					case vhostusertest.GetProtocol:
						connected <- struct{}{}
					case vhostusertest.SetKick:
						if payload[0] == 0 {
							started <- struct{}{}
						}
					case vhostusertest.GetQueueNum:
						return word(2), true
					}
					return nil, false
				}
			})
			dev := newDevice(t, vhostuser.Spec{Type: kind, Socket: s.Path(), Grace: time.Minute})
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

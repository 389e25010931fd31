package virtio_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const memBase = 0x10000000

// host is a root complex with a device, as the driver of virtiotest needs it.
type host struct {
	*devicetest.TestHost
	t    testing.TB
	dev  *virtio.Device
	mem  []byte
	bars [pcie.MaxBARs]cfgspace.BAR
}

func newDevice(t testing.TB) *virtio.Device {
	d, err := virtio.New(virtio.Spec{Kind: virtio.Block, Queues: 2, Pool: 64 << 10, Serial: 7})
	if err != nil {
		t.Fatal(err)
	}
	config := make([]byte, 60)
	binary.LittleEndian.PutUint64(config, 2048)
	d.Offer(1<<6|1<<9|virtio.FeatureVersion1, config)
	return d
}

func newHost(t testing.TB) *host { return newHostOf(t, newDevice(t)) }

func newHostOf(t testing.TB, dev *virtio.Device) *host {
	h := &host{t: t, dev: dev}
	h.TestHost = devicetest.NewHost(h.dev)
	h.Latency = time.Microsecond
	h.mem = h.AddMemory(memBase, 4<<20)
	h.bars = h.Enumerate()
	m, ok := cfgspace.FindMSIX(h.ReadConfigSpace())
	if !ok {
		t.Fatal("no MSI-X")
	}
	for v := range m.Vectors {
		entry := binary.LittleEndian.AppendUint64(nil, devicetest.InterruptBase)
		entry = binary.LittleEndian.AppendUint64(entry, uint64(v))
		h.TestHost.Write(h.bars[m.TableBAR].Addr+uint64(16*v), entry)
	}
	at := cfgspace.Find(h.ReadConfigSpace(), cfgspace.CapMSIX)
	h.ConfigWrite(at+2, 2, 0x8000)
	return h
}

func (h *host) Read(off uint64, n int) uint64 {
	b, err := h.TestHost.Read(h.bars[0].Addr+off, n)
	if err != nil {
		h.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(append(b, make([]byte, 8)...))
}

func (h *host) Write(off uint64, n int, v uint64) {
	h.TestHost.Write(h.bars[0].Addr+off, binary.LittleEndian.AppendUint64(nil, v)[:n])
}

func (h *host) Memory() ([]byte, uint64) { return h.mem, memBase }

// echo is a back end that answers each request with the bytes that it reads, plus one.
type echo struct {
	t       testing.TB
	pools   [2][]byte
	waiting [2][]request
	done    [2][]request
	hold    bool
	kicks   int
}

type request struct {
	id          uint16
	at, out, in int
}

func newEcho(t testing.TB) *echo {
	return &echo{t: t, pools: [2][]byte{make([]byte, 64<<10), make([]byte, 64<<10)}}
}

func (e *echo) Pool(q int) []byte { return e.pools[q] }

func (e *echo) Submit(q int, id uint16, at, out, in int) {
	if at < 0 || at+out+in > len(e.pools[q]) {
		e.t.Fatalf("request outside the pool: %d+%d+%d", at, out, in)
	}
	e.waiting[q] = append(e.waiting[q], request{id, at, out, in})
}

func (e *echo) Kick(q int) {
	e.kicks++
	if !e.hold {
		e.work(q)
	}
}

func (e *echo) work(q int) {
	for _, r := range e.waiting[q] {
		p := e.pools[q][r.at:]
		for i := range r.in {
			p[r.out+i] = 0xee
			if i < r.out {
				p[r.out+i] = p[i] + 1
			}
		}
		e.done[q] = append(e.done[q], r)
	}
	e.waiting[q] = nil
}

func (e *echo) Used(q int) (uint16, uint32, bool) {
	if len(e.done[q]) == 0 {
		return 0, 0, false
	}
	r := e.done[q][0]
	e.done[q] = e.done[q][1:]
	return r.id, uint32(r.in), true
}

// start gives a running device with its driver and a back end.
func start(t testing.TB) (*host, *virtiotest.Driver, *echo) {
	t.Helper()
	h, e := newHost(t), newEcho(t)
	d := &virtiotest.Driver{Host: h}
	if err := d.Start(d.Features()&(virtiotest.Version1|1<<28), 16); err != nil {
		t.Fatal(err)
	}
	h.dev.SetBackend(e)
	return h, d, e
}

// settle runs until nothing happens any more. The end of a request is an event of the back
// end, so the owner calls Transmit after it.
func (h *host) settle() {
	for range 2 {
		h.Run(2 * time.Second) // longer than the quarantine of tags
	}
}

func TestConform(t *testing.T) {
	devicetest.Conform(t, func(t testing.TB) device.Device { return newDevice(t) })
}

// Requests of any shape come back with the data of the back end, with their used length,
// and with an interrupt of their virtqueue.
func TestRequests(t *testing.T) {
	h, d, _ := start(t)
	for q, ring := range d.Queues {
		for i, n := range []int{1, 3, 16, 511, 4096, 20000} {
			t.Run(fmt.Sprintf("queue %d, %d bytes", q, n), func(t *testing.T) {
				in, inAt := d.Alloc(n + 16)
				out, outAt := d.Alloc(n + 16)
				for j := range in {
					in[j] = byte(j * 7)
				}
				first := min(n, 5)
				before := len(h.Interrupts)
				ring.Submit(3, virtiotest.Buffer{Addr: inAt + 1, Len: first},
					virtiotest.Buffer{Addr: inAt + 1 + uint64(first), Len: n - first},
					virtiotest.Buffer{Addr: outAt + 3, Len: first, Write: true},
					virtiotest.Buffer{Addr: outAt + 3 + uint64(first), Len: n - first, Write: true})
				h.settle()
				head, used, ok := ring.Used()
				if !ok || head != 3 || used != uint32(n) {
					t.Fatalf("used %d, %d bytes, %v (%s)", head, used, ok, h.dev.Broken())
				}
				for j := range n {
					if out[3+j] != in[1+j]+1 {
						t.Fatalf("byte %d is %#x, want %#x", j, out[3+j], in[1+j]+1)
					}
				}
				if out[2] != 0 || out[3+n] != 0 {
					t.Error("the device wrote beside the buffer")
				}
				if got := h.Interrupts[before:]; len(got) != 1 || got[0].Data != uint32(q+1) {
					t.Errorf("interrupts %v of round %d", got, i)
				}
			})
		}
	}
}

// An indirect table may lie anywhere.
func TestIndirect(t *testing.T) {
	h, d, _ := start(t)
	q := d.Queues[0]
	const entries = 200
	table, tableAt := d.Alloc(16*entries + 64)
	in, inAt := d.Alloc(entries)
	out, outAt := d.Alloc(64)
	for i := range in {
		in[i] = byte(i)
	}
	for _, shift := range []int{0, 4, 12} {
		for i := range entries - 1 {
			e := table[shift+16*i:]
			binary.LittleEndian.PutUint64(e, inAt+uint64(i))
			binary.LittleEndian.PutUint32(e[8:], 1)
			binary.LittleEndian.PutUint16(e[12:], virtiotest.FlagNext)
			binary.LittleEndian.PutUint16(e[14:], uint16(i+1))
		}
		e := table[shift+16*(entries-1):]
		binary.LittleEndian.PutUint64(e, outAt)
		binary.LittleEndian.PutUint32(e[8:], 64)
		binary.LittleEndian.PutUint16(e[12:], virtiotest.FlagWrite)
		clear(out)
		q.Describe(5, tableAt+uint64(shift), 16*entries, virtiotest.FlagIndirect, 0)
		q.Offer(5)
		h.settle()
		if head, n, ok := q.Used(); !ok || head != 5 || n != 64 {
			t.Fatalf("used %d, %d bytes, %v (%s)", head, n, ok, h.dev.Broken())
		}
		if out[10] != in[10]+1 {
			t.Errorf("byte 10 is %d", out[10])
		}
	}
}

// More requests than the pool holds wait for their turn, and none is lost.
func TestBackPressure(t *testing.T) {
	h, d, e := start(t)
	e.hold = true
	q := d.Queues[0]
	_, in := d.Alloc(30000)
	for i := range 8 {
		q.Submit(2*i, virtiotest.Buffer{Addr: in, Len: 20000}, virtiotest.Buffer{Addr: in, Len: 10000, Write: true})
	}
	h.settle()
	if n := len(e.waiting[0]); n != 2 {
		t.Errorf("the back end has %d requests of 30000 bytes in a pool of 65536, want 2", n)
	}
	e.hold = false
	e.work(0)
	h.settle()
	for i := range 8 {
		if head, _, ok := q.Used(); !ok || head != uint32(2*i) {
			t.Fatalf("request %d: used %d, %v", i, head, ok)
		}
	}
	if h.dev.Pending() != 0 {
		t.Error("requests are left")
	}
}

// Requests that end together appear in the used ring at once: a driver that finds the first
// buffer of a packet expects the others.
func TestUsedAtOnce(t *testing.T) {
	h, d, e := start(t)
	if err := d.Start(virtiotest.Version1, 256); err != nil {
		t.Fatal(err)
	}
	h.dev.SetBackend(e)
	e.hold = true
	q := d.Queues[0]
	const buffers = 100
	_, at := d.Alloc(buffers * 200)
	for i := range buffers {
		q.Submit(i, virtiotest.Buffer{Addr: at + uint64(200*i), Len: 200, Write: true})
	}
	h.settle()
	h.Write(22, 2, 0) // queue_select
	index := h.Read(48, 8) + 2
	var seen []uint16
	h.OnWrite = func(p *tlp.Packet) {
		if addr, n := p.ByteRange(); addr == index && n == 2 {
			seen = append(seen, binary.LittleEndian.Uint16(p.Data[index%4:]))
		}
	}
	e.hold = false
	e.work(0)
	h.settle()
	if len(seen) != 1 || seen[0] != buffers {
		t.Errorf("the driver sees the used indices %d, want %d at once", seen, buffers)
	}
}

// A back end that returns gets the requests again that the former one had, in their order,
// with the data of the host's memory.
func TestBackendReturns(t *testing.T) {
	h, d, e := start(t)
	e.hold = true
	q := d.Queues[1]
	in, inAt := d.Alloc(64)
	out, outAt := d.Alloc(64)
	for i := range 3 {
		in[i] = byte(10 * i)
		q.Submit(2*i, virtiotest.Buffer{Addr: inAt + uint64(i), Len: 1}, virtiotest.Buffer{Addr: outAt + uint64(i), Len: 1, Write: true})
	}
	h.settle()
	h.dev.SetBackend(nil)
	h.settle()
	next := newEcho(t)
	h.dev.SetBackend(next)
	h.settle()
	for i := range 3 {
		head, _, ok := q.Used()
		if !ok || head != uint32(2*i) || out[i] != in[i]+1 {
			t.Errorf("request %d: used %d, %v, result %d", i, head, ok, out[i])
		}
	}
}

// A reset ends the session: late results of the back end do not reach the host.
func TestResetInFlight(t *testing.T) {
	h, d, e := start(t)
	e.hold = true
	_, at := d.Alloc(64)
	d.Queues[0].Submit(0, virtiotest.Buffer{Addr: at, Len: 8}, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
	h.Pump() // the reads are outstanding
	number := h.dev.Session().Number
	h.Write(virtiotest.Status, 1, 0)
	if s := h.dev.Session(); s.Running || s.Number == number {
		t.Errorf("session %+v after a reset", s)
	}
	writes := 0
	h.OnWrite = func(*tlp.Packet) { writes++ }
	h.Run(20 * time.Second)
	if writes > 0 || h.dev.Pending() > 0 || h.dev.Broken() != "" {
		t.Errorf("%d writes, %d requests, %q after a reset", writes, h.dev.Pending(), h.dev.Broken())
	}
	if err := d.Start(virtiotest.Version1, 16); err != nil {
		t.Fatal(err)
	}
	h.dev.SetBackend(newEcho(t))
	d.Queues[0].Submit(0, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
	h.settle()
	if _, _, ok := d.Queues[0].Used(); !ok {
		t.Error("no request works after a reset")
	}
}

// A driver that breaks the rules finds a device that needs a reset, with an interrupt, and
// the device does nothing more until then.
func TestHostileRings(t *testing.T) {
	const far = 1 << 40
	for _, c := range []struct {
		name, why string
		do        func(d *virtiotest.Driver, q *virtiotest.Queue)
	}{
		{"index runs away", "available index", func(_ *virtiotest.Driver, q *virtiotest.Queue) { q.SetIndex(1000) }},
		{"head outside", "descriptor 16 of 16", func(_ *virtiotest.Driver, q *virtiotest.Queue) { q.Offer(16) }},
		{"loop", "more than 1024", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 1, virtiotest.FlagNext, 0)
			q.Offer(0)
		}},
		{"loop without bytes", "more than 1024", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 0, virtiotest.FlagNext, 9)
			q.Describe(9, memBase, 0, virtiotest.FlagNext, 0)
			q.Offer(0)
		}},
		{"next outside", "descriptor 77 of 16", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 1, virtiotest.FlagNext, 77)
			q.Offer(0)
		}},
		{"huge buffer", "more than 65536", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 0xffffffff, 0, 0)
			q.Offer(0)
		}},
		{"huge sum", "more than 65536", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Submit(0, virtiotest.Buffer{Addr: memBase, Len: 40000}, virtiotest.Buffer{Addr: memBase, Len: 40000, Write: true})
		}},
		{"end of the address space", "at 0xffffffffffffffff", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, 0xffffffffffffffff, 2, 0, 0)
			q.Offer(0)
		}},
		{"read behind write", "behind one to write", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Submit(0, virtiotest.Buffer{Addr: memBase, Len: 4, Write: true}, virtiotest.Buffer{Addr: memBase, Len: 4})
		}},
		{"nothing", "without buffers", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 0, 0, 0)
			q.Offer(0)
		}},
		{"table of a table", "indirect table", func(d *virtiotest.Driver, q *virtiotest.Queue) {
			table, at := d.Alloc(16)
			binary.LittleEndian.PutUint64(table, at)
			binary.LittleEndian.PutUint32(table[8:], 16)
			binary.LittleEndian.PutUint16(table[12:], virtiotest.FlagIndirect)
			q.Describe(0, at, 16, virtiotest.FlagIndirect, 0)
			q.Offer(0)
		}},
		{"huge table", "indirect table", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 0xfffffff0, virtiotest.FlagIndirect, 0)
			q.Offer(0)
		}},
		{"odd table", "indirect table", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, memBase, 17, virtiotest.FlagIndirect, 0)
			q.Offer(0)
		}},
		{"data outside memory", "status UR", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Submit(0, virtiotest.Buffer{Addr: far, Len: 64})
		}},
		{"table outside memory", "status UR", func(_ *virtiotest.Driver, q *virtiotest.Queue) {
			q.Describe(0, far, 64, virtiotest.FlagIndirect, 0)
			q.Offer(0)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, d, e := start(t)
			c.do(d, d.Queues[0])
			h.settle()
			if why := h.dev.Broken(); !strings.Contains(why, c.why) {
				t.Fatalf("broken: %q, want %q", why, c.why)
			}
			if s := h.Read(virtiotest.Status, 1); s&virtiotest.NeedsReset == 0 {
				t.Errorf("status %#x does not tell", s)
			}
			if n := len(h.Interrupts); n != 1 || h.Interrupts[0].Data != 0 {
				t.Errorf("interrupts %v, want one for the configuration", h.Interrupts)
			}
			if len(e.waiting[0])+len(e.done[0]) > 0 {
				t.Error("the back end has a request")
			}
			if err := d.Start(virtiotest.Version1, 16); err != nil {
				t.Fatal(err)
			}
			h.dev.SetBackend(e)
			in, at := d.Alloc(8)
			d.Queues[0].Submit(0, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
			h.settle()
			if _, _, ok := d.Queues[0].Used(); !ok || !bytes.Equal(in, bytes.Repeat([]byte{0xee}, 8)) {
				t.Errorf("used: %v, data %x after a reset", ok, in)
			}
		})
	}
}

// The device does not run without VIRTIO_F_VERSION_1 or with features that it lacks.
func TestFeaturesRefused(t *testing.T) {
	for _, f := range []uint64{0, 1 << 6, virtiotest.Version1 | 1<<12, virtiotest.Version1 | 1<<34} {
		d := &virtiotest.Driver{Host: newHost(t)}
		if err := d.Start(f, 16); err == nil {
			t.Errorf("features %#x are accepted", f)
		}
	}
}

// A change of the configuration interrupts a running driver, and raises the generation.
func TestConfigChange(t *testing.T) {
	h, _, _ := start(t)
	before := h.Read(21, 1)
	config := make([]byte, 60)
	binary.LittleEndian.PutUint64(config, 4096)
	h.dev.Offer(1<<6|1<<9|virtio.FeatureVersion1, config)
	h.settle()
	if n := h.Read(virtiotest.DeviceConfig, 8); n != 4096 {
		t.Errorf("capacity %d", n)
	}
	if n := len(h.Interrupts); n != 1 || h.Interrupts[0].Data != 0 {
		t.Errorf("interrupts %v", h.Interrupts)
	}
	if g := h.Read(21, 1); g != before+1 {
		t.Errorf("generation %d, before the change %d", g, before)
	}
	if isr := h.Read(0x1000, 1); isr != 2 {
		t.Errorf("ISR status %d, want 2", isr)
	}
	h.Write(virtiotest.Status, 1, 0) // a driver that has not started yet reads it, too
	binary.LittleEndian.PutUint64(config, 8192)
	h.dev.Offer(1<<6|1<<9|virtio.FeatureVersion1, config)
	if g := h.Read(21, 1); g != before+2 {
		t.Errorf("generation %d before DRIVER_OK, want %d", g, before+2)
	}
}

package virtio_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const notificationData = 1 << 38 // VIRTIO_F_NOTIFICATION_DATA

// world is a driver that does at random what a driver may do, beside a back end that answers
// late and in any order, and hosts whose answers pass each other. It knows what each byte of
// memory must be, and which bytes the device may read and write.
type world struct {
	*host
	r       *rand.Rand
	session int
	running bool // DRIVER_OK, and no reset since
	master  bool // Bus Master
	queues  []*ring
	want    []byte // memory as it has to be
	answers bool   // the back end answers
	back    *lateBackend
	err     string
}

// ring is a virtqueue of the driver.
type ring struct {
	size              int
	desc, avail, used uint64
	freeDesc          []uint16
	open              map[uint16]*job // by head
	freeSlot          []int
	next, seen        uint16   // available and used index
	late              []uint16 // notifications that a processor has not got round to
	owed              bool     // the used index was written, and no interrupt has followed
}

// job is a request of the driver.
type job struct {
	slot    int
	descs   []uint16
	read    []extent
	write   []extent
	content []byte // of read
	n       int    // bytes that the back end writes
	tables  []extent
}

type extent struct {
	addr uint64
	n    int
}

func (e extent) holds(addr uint64, n int) bool {
	return addr >= e.addr && addr+uint64(n) <= e.addr+uint64(e.n)
}

const (
	worldQueues = 3
	worldPool   = 16 << 10
	worldMemory = 1 << 20
	queueArea   = 256 << 10 // of each virtqueue: rings, then slots
	ringArea    = 16 << 10
	slotArea    = 14 << 10
)

// answer is the number of bytes and the content that the back end writes for a request.
func answer(content []byte, in int) []byte {
	sum := uint32(2166136261)
	for _, c := range content {
		sum = (sum ^ uint32(c)) * 16777619
	}
	n := in
	if sum%4 == 0 && in > 0 {
		n = int(sum/4) % (in + 1)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(sum>>(8*(i%4))) + byte(i)
	}
	return b
}

// lateBackend answers after a while.
type lateBackend struct {
	w      *world
	pools  [worldQueues][]byte
	has    [worldQueues]map[uint16]bool
	done   [worldQueues][]used
	closed bool
}

type used struct {
	id uint16
	n  uint32
}

func newLateBackend(w *world) *lateBackend {
	b := &lateBackend{w: w}
	for i := range b.pools {
		b.pools[i], b.has[i] = make([]byte, worldPool), map[uint16]bool{}
	}
	return b
}

func (b *lateBackend) Pool(q int) []byte { return b.pools[q] }

func (b *lateBackend) Submit(q int, id uint16, at, out, in int) {
	switch {
	case b.closed:
		b.w.fail("a request for a back end that is gone")
	case b.has[q][id]:
		b.w.fail("request %d twice", id)
	case at < 0 || at+out+in > worldPool:
		b.w.fail("request at %d+%d+%d", at, out, in)
	}
	b.has[q][id] = true
	wait := time.Duration(b.w.r.IntN(60)) * time.Microsecond
	var do func()
	do = func() {
		if b.closed {
			return
		}
		if !b.w.answers {
			b.w.After(5*time.Microsecond, do)
			return
		}
		n := copy(b.pools[q][at+out:], answer(b.pools[q][at:][:out], in))
		b.done[q] = append(b.done[q], used{id, uint32(n)})
	}
	b.w.After(wait, do)
}

func (b *lateBackend) Kick(int) {}

func (b *lateBackend) Used(q int) (uint16, uint32, bool) {
	if len(b.done[q]) == 0 {
		return 0, 0, false
	}
	u := b.done[q][0]
	b.done[q] = b.done[q][1:]
	delete(b.has[q], u.id)
	return u.id, u.n, true
}

func (w *world) fail(format string, args ...any) {
	if w.err == "" {
		w.err = fmt.Sprintf(format, args...)
	}
}

func newWorld(t testing.TB, seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 1))
	w := &world{r: r, answers: true}
	dev, err := virtio.New(virtio.Spec{
		Kind: []*virtio.Kind{virtio.Block, virtio.Network}[r.IntN(2)], Queues: worldQueues, Pool: worldPool, Serial: 7, Tags: 1 << r.IntN(6), QueueSize: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	dev.Offer(virtio.FeatureVersion1, make([]byte, 8))
	w.host = &host{t: t, dev: dev}
	w.TestHost = devicetest.NewHost(dev)
	w.Latency = time.Microsecond
	w.mem = w.AddMemory(memBase, worldMemory)
	w.want = make([]byte, worldMemory)
	w.OnRead, w.OnWrite = w.onRead, w.onWrite
	if r.IntN(3) == 0 {
		w.UpRate = 1e9
	}
	w.powerUp()
	return w
}

// powerUp does what a system does after a reset of the function.
func (w *world) powerUp() {
	w.bars = w.Enumerate()
	w.master = true
	m, ok := cfgspace.FindMSIX(w.ReadConfigSpace())
	if !ok {
		w.t.Fatal("no MSI-X")
	}
	for v := range m.Vectors {
		entry := binary.LittleEndian.AppendUint64(nil, devicetest.InterruptBase)
		w.TestHost.Write(w.bars[m.TableBAR].Addr+uint64(16*v), binary.LittleEndian.AppendUint64(entry, uint64(v)))
	}
	w.msix(0x8000)
}

func (w *world) msix(v uint32) {
	w.ConfigWrite(cfgspace.Find(w.ReadConfigSpace(), cfgspace.CapMSIX)+2, 2, v)
}

// start begins a session with rings of any size at any place that is allowed.
func (w *world) start() {
	w.session++
	for i := range w.mem {
		w.mem[i] = byte(i*7 + w.session)
	}
	copy(w.want, w.mem)
	w.Write(virtiotest.Status, 1, 3)
	accepted := []uint64{virtiotest.Version1, virtiotest.Version1 | 1<<28 | notificationData}[w.r.IntN(2)]
	for i := range uint64(2) {
		w.Write(8, 4, i)
		w.Write(12, 4, accepted>>(32*i)&0xffffffff)
	}
	w.Write(virtiotest.Status, 1, 3|virtiotest.FeaturesOK)
	w.Write(16, 2, 0)
	w.queues = nil
	early := worldQueues // virtqueues that are enabled before DRIVER_OK
	if w.r.IntN(4) == 0 {
		early = w.r.IntN(worldQueues)
	}
	for i := range worldQueues + 1 {
		if i == early {
			w.running = true
			w.Write(virtiotest.Status, 1, 3|virtiotest.FeaturesOK|virtiotest.DriverOK)
		}
		if i < worldQueues {
			w.queues = append(w.queues, w.ring(i))
			w.Write(28, 2, 1)
		}
	}
	w.setBackend(newLateBackend(w))
}

func (w *world) ring(i int) *ring {
	q := &ring{size: 2 << w.r.IntN(6), open: map[uint16]*job{}}
	base := memBase + uint64(i*queueArea)
	q.desc = base + 16*uint64(w.r.IntN(16))
	q.avail = base + 4096 + 2*uint64(w.r.IntN(1024))
	if w.r.IntN(2) == 0 {
		q.avail = base + 8192 - 2*uint64(w.r.IntN(8))
	}
	q.used = base + 10240 + 4*uint64(w.r.IntN(512))
	if w.r.IntN(2) == 0 {
		q.used = base + 12288 - 4*uint64(w.r.IntN(8))
	}
	for n := range q.size {
		q.freeDesc = append(q.freeDesc, uint16(n))
	}
	for n := range 16 {
		q.freeSlot = append(q.freeSlot, n)
	}
	w.put(q.avail, make([]byte, 4))
	w.put(q.used, make([]byte, 4))
	w.Write(22, 2, uint64(i))
	w.Write(24, 2, uint64(q.size))
	w.Write(26, 2, uint64(i+1))
	w.Write(32, 8, q.desc)
	w.Write(40, 8, q.avail)
	w.Write(48, 8, q.used)
	return q
}

// put writes memory as the driver.
func (w *world) put(addr uint64, b []byte) {
	copy(w.mem[addr-memBase:], b)
	copy(w.want[addr-memBase:], b)
}

func (w *world) put16(addr uint64, v uint16) { w.put(addr, binary.LittleEndian.AppendUint16(nil, v)) }

func (w *world) get16(addr uint64) uint16 { return binary.LittleEndian.Uint16(w.mem[addr-memBase:]) }

// reap takes the results of a virtqueue.
func (w *world) reap(index int) {
	q := w.queues[index]
	for q.seen != w.get16(q.used+2) {
		e := w.mem[q.used+4+8*uint64(int(q.seen)%q.size)-memBase:]
		head, n := binary.LittleEndian.Uint32(e), int(binary.LittleEndian.Uint32(e[4:]))
		copy(w.want[q.used+4+8*uint64(int(q.seen)%q.size)-memBase:], e[:8])
		q.seen++
		j := q.open[uint16(head)]
		if head >= uint32(q.size) || j == nil {
			w.fail("queue %d: used %d, which the driver has not made available", index, head)
			return
		}
		if n != j.n {
			w.fail("queue %d: used %d of %d bytes, want %d", index, head, n, j.n)
			return
		}
		in := 0
		for _, e := range j.write {
			in += e.n
		}
		left := answer(j.content, in)
		for _, e := range j.write {
			left = left[copy(w.want[e.addr-memBase:][:e.n], left):]
			if got, want := w.mem[e.addr-memBase:][:e.n], w.want[e.addr-memBase:][:e.n]; !slices.Equal(got, want) {
				w.fail("queue %d: request %d has other data than the back end wrote", index, head)
				return
			}
		}
		delete(q.open, uint16(head))
		q.freeDesc = append(q.freeDesc, j.descs...)
		q.freeSlot = append(q.freeSlot, j.slot)
	}
	copy(w.want[q.used+2-memBase:][:2], w.mem[q.used+2-memBase:])
}

// onRead checks a read of the device.
func (w *world) onRead(p *tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
	addr, n := p.ByteRange()
	if !w.running || !w.master {
		w.fail("a read of %d at %#x without a driver", n, addr)
	}
	if addr/4096 != (addr+uint64(n)-1)/4096 {
		w.fail("a read of %d at %#x crosses 4 KiB", n, addr)
	}
	if !w.mayRead(addr, n) {
		w.fail("a read of %d at %#x", n, addr)
	}
	return pcie.SuccessfulCompletion, time.Duration(w.r.IntN(1+w.r.IntN(30))) * time.Microsecond, true
}

func (w *world) mayRead(addr uint64, n int) bool {
	for _, q := range w.queues {
		if (extent{q.desc, 16 * q.size}).holds(addr, n) || (extent{q.avail, 6 + 2*q.size}).holds(addr, n) {
			return true
		}
		for _, j := range q.open {
			for _, e := range append(j.read, j.tables...) {
				if e.holds(addr, n) {
					return true
				}
			}
		}
	}
	return false
}

// onWrite checks a write of the device.
func (w *world) onWrite(p *tlp.Packet) {
	addr, n := p.ByteRange()
	if !w.running || !w.master {
		w.fail("a write of %d at %#x without a driver", n, addr)
	}
	if addr/4096 != (addr+uint64(n)-1)/4096 {
		w.fail("a write of %d at %#x crosses 4 KiB", n, addr)
	}
	if addr == devicetest.InterruptBase {
		if v := int(binary.LittleEndian.Uint32(p.Data)); v > 0 && v <= len(w.queues) {
			w.queues[v-1].owed = false
		}
		return
	}
	for _, q := range w.queues {
		if addr == q.used+2 && n == 2 {
			q.owed = true
			return
		}
		if (extent{q.used + 4, 8 * q.size}).holds(addr, n) {
			return
		}
		for _, j := range q.open {
			for _, e := range j.write {
				if e.holds(addr, n) {
					return
				}
			}
		}
	}
	w.fail("a write of %d at %#x", n, addr)
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

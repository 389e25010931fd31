package virtio_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// act does one thing.
func (w *world) act() {
	i := w.r.IntN(worldQueues)
	q := w.queues[i]
	switch k := w.r.IntN(100); {
	case k < 50:
		for range 1 + w.r.IntN(6) {
			w.submit(i)
		}
		if w.r.IntN(4) == 0 {
			q.late = append(q.late, q.next)
		} else {
			w.notify(i, q.next)
		}
	case k < 70:
		w.reap(i)
	case k < 78 && len(q.late) > 0:
		k := w.r.IntN(len(q.late))
		w.notify(i, q.late[k])
		q.late = slices.Delete(q.late, k, k+1)
	case k < 82:
		w.answers = !w.answers
	case k < 85:
		w.setBackend(nil)
	case k < 90:
		w.setBackend(newLateBackend(w))
	case k < 92:
		w.msix(0xc000) // all vectors are masked
	case k < 94:
		w.msix(0x8000)
	case k < 97:
		w.setMaster(!w.master)
	case k < 98:
		w.reset()
	}
}

func (w *world) setMaster(on bool) {
	w.master = on
	command := uint32(cfgspace.CmdMemory)
	if on {
		command |= cfgspace.CmdBusMaster
	}
	w.ConfigWrite(cfgspace.OffCommand, 2, command)
}

// reset resets the device or the function, and begins another session. The answers of the host
// and of the back end to the one before come meanwhile.
func (w *world) reset() {
	if w.r.IntN(2) == 0 {
		w.running = false
		w.Write(virtiotest.Status, 1, 0)
	} else {
		at := cfgspace.Find(w.ReadConfigSpace(), cfgspace.CapExpress) + 8
		control := w.ConfigRead(at, 2)
		w.running = false
		w.ConfigWrite(at, 2, control|1<<15)
		w.powerUp()
	}
	if w.back != nil {
		w.back.closed = true
	}
	w.Run(time.Duration(w.r.IntN(50)) * time.Microsecond)
	w.setMaster(true)
	w.msix(0x8000)
	w.start()
}

// setBackend changes the back end. The former one answers no more.
func (w *world) setBackend(b *lateBackend) {
	if w.back != nil {
		w.back.closed = true
	}
	w.back = b
	if b == nil {
		w.dev.SetBackend(nil)
		return
	}
	w.dev.SetBackend(b)
}

// Drivers that keep the rules get each request back once, with the data of the back end, and an
// interrupt behind it, whatever happens besides: late notifications, other back ends, resets,
// no Bus Master. The device touches nothing that the driver has not made available.
func TestDriversAgainstModel(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(t, seed)
		w.start()
		for step := range 300 {
			w.act()
			w.Run(time.Duration(w.r.IntN(20)) * time.Microsecond)
			if w.err != "" || w.dev.Broken() != "" {
				t.Fatalf("seed %d, step %d: %s %s", seed, step, w.err, w.dev.Broken())
			}
		}
		w.finish(seed)
	}
}

// finish lets all requests end.
func (w *world) finish(seed uint64) {
	w.answers = true
	w.setMaster(true)
	w.msix(0x8000)
	w.setBackend(newLateBackend(w))
	for i, q := range w.queues {
		w.notify(i, q.next)
	}
	w.settle()
	for i, q := range w.queues {
		w.reap(i)
		if len(q.open) > 0 || q.owed {
			w.fail("queue %d: %d requests are left; an interrupt is missing: %v", i, len(q.open), q.owed)
		}
	}
	if i := firstDifference(w.mem, w.want); i >= 0 {
		w.fail("byte %#x is %#x, want %#x", i, w.mem[i], w.want[i])
	}
	if w.err != "" || w.dev.Broken() != "" {
		w.t.Fatalf("seed %d, at the end: %s %s", seed, w.err, w.dev.Broken())
	}
}

// submit makes a request available, if there is room for one.
func (w *world) submit(index int) {
	q := w.queues[index]
	if len(q.freeSlot) == 0 || len(q.freeDesc) == 0 || len(q.open) == q.size {
		return
	}
	j := &job{slot: q.freeSlot[0]}
	at := memBase + uint64(index*queueArea+ringArea+j.slot*slotArea)
	end := at + slotArea
	take := func(n int) extent {
		at += uint64(w.r.IntN(3))
		e := extent{at, min(n, int(end-at))}
		at += uint64(e.n)
		return e
	}
	indirect := w.r.IntN(3) == 0
	buffers := 1 + w.r.IntN(4)
	if !indirect {
		buffers = min(buffers, len(q.freeDesc))
	}
	reads := w.r.IntN(buffers + 1)
	var all []extent
	for i := range buffers {
		e := take([]int{1 + w.r.IntN(12), 1 + w.r.IntN(12), 1 + w.r.IntN(3500), min(i, 1) * w.r.IntN(2)}[w.r.IntN(4)])
		if i == 0 && e.n == 0 {
			e = take(1)
		}
		all = append(all, e)
		if i >= reads {
			j.write = append(j.write, e)
			continue
		}
		b := make([]byte, e.n)
		for k := range b {
			b[k] = byte(w.r.Uint32())
		}
		w.put(e.addr, b)
		j.read, j.content = append(j.read, e), append(j.content, b...)
	}
	direct, used := buffers, buffers // descriptors of buffers, and with that of the table
	if indirect {
		direct = w.r.IntN(min(buffers, len(q.freeDesc)))
		used = direct + 1
	}
	for _, p := range w.r.Perm(len(q.freeDesc))[:used] {
		j.descs = append(j.descs, q.freeDesc[p])
	}
	q.freeDesc = slices.DeleteFunc(q.freeDesc, func(d uint16) bool { return slices.Contains(j.descs, d) })
	w.chain(q.desc, j.descs, all[:direct], reads, !indirect)
	if indirect {
		places := []uint16{0}
		for _, p := range w.r.Perm(buffers - direct - 1 + w.r.IntN(4)) {
			places = append(places, uint16(p+1))
		}
		table := take(16 * len(places))
		j.tables = append(j.tables, table)
		w.chain(table.addr, places, all[direct:], reads-direct, true)
		flags := virtiotest.FlagIndirect | uint16(w.r.IntN(2)*virtiotest.FlagWrite) // that is ignored
		w.describe(q.desc+16*uint64(j.descs[direct]), table, flags, uint16(w.r.Uint32()))
	}
	in := 0
	for _, e := range j.write {
		in += e.n
	}
	j.n = len(answer(j.content, in))
	q.freeSlot = q.freeSlot[1:]
	q.open[j.descs[0]] = j
	w.put16(q.avail+4+2*uint64(int(q.next)%q.size), j.descs[0])
	q.next++
	w.put16(q.avail+2, q.next)
}

// chain writes descriptors, of which the first ones are read by the device.
func (w *world) chain(table uint64, places []uint16, buffers []extent, reads int, ends bool) {
	for i, e := range buffers {
		next, flags := uint16(w.r.Uint32()), uint16(0)
		if i+1 < len(buffers) || !ends {
			next, flags = places[i+1], virtiotest.FlagNext
		}
		if i >= reads {
			flags |= virtiotest.FlagWrite
		}
		w.describe(table+16*uint64(places[i]), e, flags, next)
	}
}

func (w *world) describe(at uint64, e extent, flags, next uint16) {
	b := binary.LittleEndian.AppendUint64(nil, e.addr)
	b = binary.LittleEndian.AppendUint32(b, uint32(e.n))
	b = binary.LittleEndian.AppendUint16(b, flags)
	w.put(at, binary.LittleEndian.AppendUint16(b, next))
}

// notify writes the notification of an available index, which may be an old one.
func (w *world) notify(index int, avail uint16) {
	at := virtiotest.Notify + 4*uint64(index)
	if w.r.IntN(2) == 0 && w.dev.Session().Features&notificationData == 0 {
		w.Write(at, 2, uint64(index))
		return
	}
	w.Write(at, 4, uint64(index)|uint64(avail)<<16)
}

// notified returns a device whose notifications have the available index, one of its virtqueues,
// and a buffer of 8 bytes.
func notified(t *testing.T, entries int) (*host, *virtiotest.Queue, uint64) {
	t.Helper()
	h, d, e := start(t)
	if err := d.Start(virtiotest.Version1|notificationData, entries); err != nil {
		t.Fatal(err)
	}
	h.dev.SetBackend(e)
	_, at := d.Alloc(8)
	return h, d.Queues[0], at
}

// A processor of the guest may stand still between the read of the available index and its
// notification, while others get more requests done than the virtqueue has entries.
func TestOldNotification(t *testing.T) {
	const entries = 16
	h, q, at := notified(t, entries)
	for i := range 5 * entries {
		q.Submit(i%entries, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
		h.settle()
		if _, _, ok := q.Used(); !ok {
			t.Fatalf("request %d has not ended (%s)", i, h.dev.Broken())
		}
		h.Write(virtiotest.Notify, 4, 1<<16)
	}
	h.settle()
	if h.dev.Broken() != "" || h.dev.Pending() > 0 {
		t.Errorf("%d requests, %s", h.dev.Pending(), h.dev.Broken())
	}
}

// A notification that is older by almost 65536 requests has an index ahead of the ring's. The
// device begins nothing for it.
func TestVeryOldNotification(t *testing.T) {
	const entries = 16
	h, q, at := notified(t, entries)
	submit := func() {
		t.Helper()
		q.Submit(0, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
		h.settle()
		if _, _, ok := q.Used(); !ok {
			t.Fatalf("a request has not ended (%s)", h.dev.Broken())
		}
	}
	for ahead := range 3 * entries {
		submit()
		h.Write(virtiotest.Notify, 4, uint64(ahead+1+ahead)<<16)
		h.settle()
		if n := h.dev.Pending(); n > 0 || h.dev.Broken() != "" {
			t.Fatalf("%d requests (%s)", n, h.dev.Broken())
		}
		if _, _, ok := q.Used(); ok {
			t.Fatal("a request has ended that was not made")
		}
	}
	submit()
}

// Entries that a very old notification has promised are read before the driver writes them. They
// are read again for a later index, although its read was sent before they came.
func TestEntriesOlderThanTheirIndex(t *testing.T) {
	h, q, at := notified(t, 16)
	h.settle()
	h.Latency = time.Millisecond
	h.OnRead = func(p *tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
		late := time.Duration(0)
		if _, n := p.ByteRange(); n > 2 { // not the index
			late = h.Latency / 2
		}
		return pcie.SuccessfulCompletion, late, true
	}
	h.Write(virtiotest.Notify, 4, 3<<16) // the ring is empty
	h.Run(h.Latency / 2)
	h.Write(virtiotest.Notify, 4, 3<<16)
	h.Run(h.Latency * 5 / 4)
	for head := range uint16(3) {
		q.Describe(int(head+5), at, 8, virtiotest.FlagWrite, 0)
		q.Put(head + 5)
	}
	h.settle()
	for want := range uint32(3) {
		if head, _, ok := q.Used(); !ok || head != want+5 {
			t.Errorf("request %d has ended: %v, want %d (%s)", head, ok, want+5, h.dev.Broken())
		}
	}
}

// A notification with an index saves a round trip: the device reads the ring beside the index.
func TestNotificationWithIndex(t *testing.T) {
	var took [2]time.Duration
	for i, features := range []uint64{virtiotest.Version1, virtiotest.Version1 | notificationData} {
		h, d, e := start(t)
		if err := d.Start(features, 16); err != nil {
			t.Fatal(err)
		}
		h.dev.SetBackend(e)
		h.settle()
		h.Latency = time.Millisecond
		_, at := d.Alloc(8)
		q := d.Queues[0]
		q.Describe(0, at, 8, virtiotest.FlagWrite, 0)
		q.Put(0)
		begun := h.Now
		h.Write(virtiotest.Notify, 4, 1<<16)
		for ok := false; !ok; _, _, ok = q.Used() {
			if took[i] = h.Now - begun; took[i] > time.Second {
				t.Fatal("the request has not ended")
			}
			h.Run(100 * time.Microsecond)
		}
	}
	if took[1] >= took[0] {
		t.Errorf("a request takes %v without an index, and %v with one in the notification", took[0], took[1])
	}
}

// The indexes of a virtqueue wrap at 65536, with notifications of now and of a while ago.
func TestIndexesWrap(t *testing.T) {
	const entries = 16
	h, q, at := notified(t, entries)
	notify := func(index int) { h.Write(virtiotest.Notify, 4, uint64(index&0xffff)<<16) }
	for n := entries; n < 1<<16+10*entries; n += entries {
		for i := range entries {
			q.Submit(i, virtiotest.Buffer{Addr: at, Len: 8, Write: true})
		}
		notify(n)
		h.settle()
		notify(max(n-5*entries, 0))
		h.settle()
		used := 0
		for _, _, ok := q.Used(); ok; _, _, ok = q.Used() {
			used++
		}
		if used != entries || h.dev.Broken() != "" {
			t.Fatalf("%d of %d requests have ended at index %#x: %s", used, entries, n, h.dev.Broken())
		}
	}
}

// A request as long as the pool has room in it, in whole lines of the cache, and a longer one is
// refused.
func TestRequestOfThePoolsSize(t *testing.T) {
	dev, err := virtio.New(virtio.Spec{Kind: virtio.Block, Queues: 1, Pool: 5000})
	if err != nil {
		t.Fatal(err)
	}
	dev.Offer(virtio.FeatureVersion1, nil)
	for _, n := range []int{4992, 5000} {
		h, d := newHostOf(t, dev), &virtiotest.Driver{}
		d.Host = h
		if err := d.Start(virtiotest.Version1, 16); err != nil {
			t.Fatal(err)
		}
		dev.SetBackend(newEcho(t))
		_, at := d.Alloc(n)
		d.Queues[0].Submit(0, virtiotest.Buffer{Addr: at, Len: n, Write: true})
		h.settle()
		_, _, ok := d.Queues[0].Used()
		if fits := n == 4992; ok != fits || (dev.Broken() == "") != fits {
			t.Errorf("%d bytes: used %v, broken %q, want used: %v", n, ok, dev.Broken(), fits)
		}
	}
}

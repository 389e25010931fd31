package virtio

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/dxpu-project/dxpu/tlp"
)

// queue is a split virtqueue (section 2.7).
type queue struct {
	index   int
	ordered bool // see Kind

	// Registers.
	size, vector      uint16
	desc, avail, used uint64
	enabled           bool

	// The available ring: entries from next to end are available, and not yet fetched. Those
	// from end to hint are so if a notification is right.
	look, looking   bool // the available index is to be read; its read is outstanding
	next, end, hint uint16
	fetching        int  // entries that an outstanding read brings
	sure            int  // those of them that were available before it
	beside          bool // an index read from before it is outstanding, which may make more sure
	fetched         bool // the entries are there, and wait for that index
	head            [2]byte
	entries         [2 * MaxRequests]byte

	chains  []chain // by ID
	free    fifo
	active  int    // chains that are not free
	arrived uint64 // number of chains so far
	walking fifo   // descriptors to read
	loading fifo   // data to read
	ended   fifo   // to write back
	// line has the chains that the back end of an ordered virtqueue does not have yet, in the
	// order of arrival. The first entered of them have come to loading.
	line    fifo
	entered int
	given   int  // chains that the back end has
	kick    bool // Submit was called
	pool    pool

	// The used ring.
	back      writeBack
	usedIndex uint16
	published uint16 // used index that the driver sees
}

// fifo is a queue of chains.
type fifo struct {
	ids     [MaxRequests]uint16
	head, n int
}

func (f *fifo) push(id uint16) { f.ids[(f.head+f.n)%MaxRequests] = id; f.n++ }

func (f *fifo) front() uint16 { return f.ids[f.head] }

func (f *fifo) at(i int) uint16 { return f.ids[(f.head+i)%MaxRequests] }

func (f *fifo) pop() uint16 {
	id := f.ids[f.head]
	f.head, f.n = (f.head+1)%MaxRequests, f.n-1
	return id
}

// reset brings a virtqueue to the state after a device reset. The chains keep their memory.
func (q *queue) reset(size uint16) {
	*q = queue{index: q.index, ordered: q.ordered, size: size, vector: noVector, chains: q.chains}
	for i := range q.chains {
		c := &q.chains[i]
		*c = chain{segments: c.segments[:0], window: c.window[:0]}
		q.free.push(uint16(i))
	}
}

// inRange reports whether the rings lie in the address space (section 2.7: 16 bytes, 2 and
// 8 for each entry).
func (q *queue) inRange() bool {
	n := uint64(q.size)
	return q.desc+16*n >= q.desc && q.avail+6+2*n >= q.avail && q.used+6+8*n >= q.used
}

// notified takes a write to the notification address of a virtqueue (section 4.1.5.2). The
// index in a notification may be old by any number of requests, since the processor that writes
// it may stand still before. So it is a hint: the ring is read at once, beside the index in
// memory, and only that index makes its entries available.
func (d *Device) notified(index int, b []byte) {
	q := &d.queues[index]
	if !d.session.Running || !q.enabled || d.broken != "" {
		return
	}
	q.look = true
	if d.session.Features&featureNotificationData == 0 || len(b) != 4 {
		return
	}
	if hint := binary.LittleEndian.Uint16(b[2:]); q.ahead(hint) {
		q.hint = hint
	}
}

// ahead reports whether an available index is at most the size of the virtqueue beyond the
// entries that were fetched, and not before the last one.
func (q *queue) ahead(index uint16) bool {
	return index-q.next <= q.size && index-q.end <= q.size
}

// lookedUp takes the available index that was read.
func (d *Device) lookedUp(q *queue) {
	q.looking = false
	index := binary.LittleEndian.Uint16(q.head[:])
	if !q.ahead(index) {
		d.Break(fmt.Sprintf("virtqueue %d: available index %d, after %d", q.index, index, q.end))
		return
	}
	q.end = index
	if !q.look { // no notification has come since
		q.hint = index
	}
	if q.beside {
		q.beside, q.sure = false, min(q.fetching, int(q.end-q.next))
	}
	if q.fetched {
		d.fetchedRing(q)
	}
}

// stepResult is the outcome of a step.
type stepResult uint8

const (
	stepIdle stepResult = iota
	stepMoved
	stepRefused // emit has refused a TLP
)

// step advances a virtqueue: results first, because they free chains and memory.
func (d *Device) step(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	if !q.enabled {
		return stepIdle
	}
	if d.behind(q) != nil {
		d.kick(q)
		d.collect(q)
	}
	if r := d.writeBack(q, emit); r != stepIdle {
		return r
	}
	r := d.fetch(q, emit)
	if r != stepMoved { // after the last of several requests
		d.kick(q)
	}
	return r
}

// kick tells the back end about new requests.
func (d *Device) kick(q *queue) {
	if q.kick {
		q.kick = false
		d.behind(q).Kick(q.index)
	}
}

// collect takes the requests that have ended from the back end, when the results of the
// former ones are written. It takes all of them, and the driver sees their used elements at
// once: a network card needs that for a packet in several buffers (section 5.1.6.4).
func (d *Device) collect(q *queue) {
	if q.ended.n > 0 || q.back.active || q.usedIndex != q.published {
		return
	}
	for q.given > 0 {
		id, n, ok := d.behind(q).Used(q.index)
		if !ok {
			return
		}
		c := &q.chains[id]
		c.state, c.used = chainEnded, int(min(uint64(n), uint64(c.in)))
		q.given--
		q.ended.push(id)
	}
}

// fetch sends one read.
func (d *Device) fetch(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	for {
		switch {
		case q.look && !q.looking:
			r := d.reads.send(d, emit, q.avail+2, q.head[:], q.cookie(readIndex, 0))
			q.looking = r != readNoTag
			q.look = r == readNoTag
			return r.step()
		case q.fetching == 0 && q.promised() > 0 && q.room():
			return d.fetchRing(q, emit)
		case q.walking.n > 0:
			return d.fetchDescriptors(q, emit)
		case q.loading.n > 0 && d.behind(q) != nil:
			r, again := d.load(q, emit)
			if !again {
				return r
			}
		default:
			return stepIdle
		}
	}
}

// promised returns the number of entries to fetch: those that are available or, while the
// read of the index is under way, those that the hint promises.
func (q *queue) promised() int {
	n := q.end - q.next
	if hinted := q.hint - q.next; n == 0 && q.looking && hinted <= q.size {
		n = hinted
	}
	return int(n)
}

// room reports whether there is a free chain. The first call makes them.
func (q *queue) room() bool {
	if q.chains == nil {
		q.chains = make([]chain, MaxRequests)
		for i := range q.chains {
			q.free.push(uint16(i))
		}
	}
	return q.free.n > 0
}

// fetchRing reads entries of the available ring, up to the end of its memory.
func (d *Device) fetchRing(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	at := q.next & (q.size - 1)
	n := min(q.promised(), int(q.size-at), q.free.n)
	addr := q.avail + 4 + 2*uint64(at)
	n = tlp.NextChunk(addr, 2*n, d.readSize()) / 2
	r := d.reads.send(d, emit, addr, q.entries[:2*n], q.cookie(readRing, 0))
	if r != readNoTag {
		q.fetching, q.sure, q.beside = n, min(n, int(q.end-q.next)), q.looking
	}
	return r.step()
}

// fetchedRing begins a chain for each entry that is sure. Those that only a hint has promised
// wait for the index whose read was sent before theirs, as hosts serve reads in order. A later
// index says nothing of them: the driver may have written the entries after they were read.
func (d *Device) fetchedRing(q *queue) {
	if q.fetched = q.beside && q.sure < q.fetching; q.fetched {
		return
	}
	n := q.sure
	q.fetching, q.sure = 0, 0
	for i := range n {
		head := binary.LittleEndian.Uint16(q.entries[2*i:])
		if head >= q.size {
			d.Break(fmt.Sprintf("virtqueue %d: descriptor %d of %d is available", q.index, head, q.size))
			return
		}
		id := q.free.pop()
		c := &q.chains[id]
		q.active++
		q.arrived++
		c.head, c.order = head, q.arrived
		c.begin(q)
		q.walking.push(id)
		if q.ordered {
			q.line.push(id)
		}
	}
	q.next += uint16(n)
}

// fetchDescriptors reads the window of the first chain.
func (d *Device) fetchDescriptors(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	id := q.walking.front()
	c := &q.chains[id]
	addr := c.table + uint64(c.first*descSize+c.issued)
	n := tlp.NextChunk(addr, len(c.window)-c.issued, d.readSize())
	r := d.reads.send(d, emit, addr, c.window[c.issued:c.issued+n], q.cookie(readDescriptors, id))
	if r == readNoTag {
		return stepIdle
	}
	c.pending++
	if c.issued += n; c.issued == len(c.window) {
		q.walking.pop()
	}
	return r.step()
}

// fetchedDescriptors continues the walk of a chain whose window is complete.
func (d *Device) fetchedDescriptors(q *queue, id uint16) {
	c := &q.chains[id]
	if c.pending--; c.pending > 0 || c.issued < len(c.window) {
		return
	}
	end, err := c.parse(d.poolSize(q))
	switch {
	case err != nil:
		d.Break(fmt.Sprintf("virtqueue %d: %v", q.index, err))
	case end:
		c.state = chainLoading
		q.enter(id)
	default:
		q.walking.push(id)
	}
}

// enter brings a chain to loading. In an ordered virtqueue it waits there for the chains
// before it: they could find no room in the pool behind it, and never get out of its way.
func (q *queue) enter(id uint16) {
	if !q.ordered {
		q.loading.push(id)
		return
	}
	for q.entered < q.line.n && q.chains[q.line.at(q.entered)].state == chainLoading {
		q.loading.push(q.line.at(q.entered))
		q.entered++
	}
}

// load finds a place for the first request and reads its data. again tells the caller to
// go on without a read.
func (d *Device) load(q *queue, emit func(p *tlp.Packet) bool) (r stepResult, again bool) {
	id := q.loading.front()
	c := &q.chains[id]
	if !c.placed {
		if c.at, c.placed = q.pool.take(c.out + c.in); !c.placed {
			return stepIdle, false // until a request ends
		}
		c.segment, c.off, c.loaded = 0, 0, 0
	}
	if c.loaded == c.out {
		q.loading.pop()
		d.submit(q, id)
		return stepIdle, true
	}
	s := &c.segments[c.segment]
	addr := s.addr + uint64(c.off)
	n := tlp.NextChunk(addr, int(s.n)-c.off, d.readSize())
	dst := d.behind(q).Pool(q.index)[c.at+c.loaded:][:n]
	sent := d.reads.send(d, emit, addr, dst, q.cookie(readData, id))
	if sent == readNoTag {
		return stepIdle, false
	}
	c.pending++
	c.loaded += n
	if c.off += n; c.off == int(s.n) {
		c.segment, c.off = c.segment+1, 0
	}
	if c.loaded == c.out {
		q.loading.pop()
	}
	return sent.step(), false
}

// submit gives a request to the back end when its data is complete, and in an ordered
// virtqueue also those before it.
func (d *Device) submit(q *queue, id uint16) {
	if !q.ordered {
		if q.chains[id].complete() {
			d.give(q, id)
		}
		return
	}
	for q.entered > 0 && q.chains[q.line.front()].complete() {
		q.entered--
		d.give(q, q.line.pop())
	}
}

func (d *Device) give(q *queue, id uint16) {
	c := &q.chains[id]
	c.state = chainSubmitted
	q.given++
	q.kick = true
	d.behind(q).Submit(q.index, id, c.at, c.out, c.in)
}

// rewind brings the chains back to the state without a back end.
func (q *queue) rewind(poolSize int) {
	q.look, q.looking = q.look || q.looking, false
	q.hint, q.fetched, q.beside = q.end, false, false
	q.fetching, q.sure, q.given, q.kick = 0, 0, 0, false
	q.walking, q.loading, q.ended = fifo{}, fifo{}, fifo{}
	q.line, q.entered = fifo{}, 0
	q.back = writeBack{}
	q.pool.reset(poolSize)
	var ids []uint16
	for i := range q.chains {
		if q.chains[i].state != chainFree {
			ids = append(ids, uint16(i))
		}
	}
	slices.SortFunc(ids, func(a, b uint16) int { return cmp.Compare(q.chains[a].order, q.chains[b].order) })
	for _, id := range ids {
		c := &q.chains[id]
		c.placed, c.pending = false, 0
		if q.ordered {
			q.line.push(id)
		}
		if c.state == chainWalking {
			c.begin(q)
			q.walking.push(id)
			continue
		}
		c.state = chainLoading
		q.enter(id)
	}
}

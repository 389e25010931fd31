package gpu

import (
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// listEntries is the number of scatter-gather entries that a list reads ahead: 2
// MiB of 4 KiB pages, more than 256 tags of 4096 bytes move in one round trip.
const (
	listEntries   = 512
	listsPerQueue = 2 // of the present COPY and of the next, read ahead
	// lookAhead is the number of commands that are searched for the two: two
	// COPYs, each with its fence.
	lookAhead = 4
)

// segmentList is the window on the scatter-gather list of one COPY.
//
// Invariant: used <= asked <= used+listEntries; entry i stands at i mod listEntries.
type segmentList struct {
	busy  bool
	base  uint64
	total uint32 // entries of the whole list
	asked uint32 // entries requested so far
	used  uint32 // entries taken so far
	here  [listEntries]bool
	raw   [listEntries * reg.SegmentSize]byte
}

func (l *segmentList) arrived(first, n uint32) {
	for i := first; i != first+n; i++ {
		l.here[i%listEntries] = true
	}
}

// next takes the next entry. ok is false until it has arrived.
func (l *segmentList) next() (s reg.Segment, ok bool) {
	i := l.used % listEntries
	if !l.here[i] {
		return reg.Segment{}, false
	}
	// raw holds whole entries: ParseSegment cannot fail.
	s, _, _ = reg.ParseSegment(l.raw[i*reg.SegmentSize:])
	l.here[i] = false
	l.used++
	return s, true
}

// checkCopy checks the parameters of a COPY that do not depend on a list.
func (g *GPU) checkCopy(c *reg.Command) (reg.Error, uint64) {
	const both = reg.CopySrcBus | reg.CopyDstBus
	n := c.Arg2
	if c.Flags&^(both|reg.CopySegment) != 0 || c.Flags&both == both || n == 0 || n > reg.MaxTransfer {
		return reg.ErrParameter, c.Arg0
	}
	if c.Flags&both == 0 {
		return flagsOnly(c, 0)
	}
	bus, local := c.Arg0, c.Arg1
	if c.Flags&reg.CopySrcBus != 0 {
		bus, local = c.Arg1, c.Arg0
	}
	switch {
	case !g.vram.contains(local, n):
		return reg.ErrRange, local
	case c.Flags&reg.CopySegment == 0:
		if bus > -n {
			return reg.ErrParameter, bus
		}
	case c.Dim0 == 0 || c.Dim0 > reg.MaxSegmentEntries || bus%reg.SegmentSize != 0 || bus > -uint64(c.Dim0)*reg.SegmentSize:
		return reg.ErrSegments, bus
	}
	return reg.NoError, 0
}

// isUpload reports whether a COPY goes from the bus to VRAM.
func (c *command) isUpload() bool { return c.Op == reg.OpCopy && c.Flags&reg.CopySrcBus != 0 }

func (c *command) busAddr() uint64 {
	if c.isUpload() {
		return c.Arg1
	}
	return c.Arg0
}

// mayStart reports whether the COPY at q.issue can go ahead of the commands
// before it that have not retired (README.md, section "Order").
func (q *queue) mayStart(c *command) bool {
	if q.issue == q.head {
		return true
	}
	if !c.isUpload() {
		return false
	}
	for i := q.head; i != q.issue; i++ {
		o := q.command(i)
		switch {
		case o.fail != reg.NoError:
			return false
		case o.Op == reg.OpFence || o.Op == reg.OpTimestamp || o.Op == reg.OpNop || o.state == commandDone:
		case !o.isUpload() || o.Arg0 < c.Arg0+c.Arg2 && c.Arg0 < o.Arg0+o.Arg2:
			return false
		}
	}
	return true
}

// copyBus advances a COPY between bus and VRAM by one TLP.
func (g *GPU) copyBus(q *queue, c *command, emit func(p *tlp.Packet) bool) stepResult {
	if c.state == commandReady {
		if !q.mayStart(c) {
			return stepIdle
		}
		c.state = commandIssuing
		if c.Flags&reg.CopySegment == 0 {
			c.addr, c.left = c.busAddr(), c.Arg2
		}
	}
	if !q.engine {
		if g.engines == 0 {
			return stepIdle
		}
		g.engines--
		q.engine = true
	}
	if c.left == 0 {
		if r := g.nextSegment(q, c); r != stepIdle || c.left == 0 {
			return r
		}
	}
	var r stepResult
	if c.isUpload() {
		r = g.upload(q, c, emit)
	} else {
		r = g.download(c, emit)
	}
	if c.pos == c.Arg2 {
		g.copyIssued(q, c)
	}
	return r
}

// copyIssued ends the issuing of a COPY and lets another queue have the engine.
func (g *GPU) copyIssued(q *queue, c *command) {
	c.state = commandWaiting
	if c.out == 0 {
		c.state = commandDone
	}
	if c.list != nil {
		c.list.busy = false
	}
	g.releaseEngine(q)
	q.issue++
}

func (g *GPU) releaseEngine(q *queue) {
	if q.engine {
		q.engine = false
		g.engines++
	}
}

// nextSegment takes the next piece of bus memory from the list.
func (g *GPU) nextSegment(q *queue, c *command) stepResult {
	fail := func(addr uint64) stepResult {
		c.fail, c.at = reg.ErrSegments, addr
		g.releaseEngine(q)
		return stepMoved
	}
	l := c.list
	if l == nil {
		return stepIdle // prefetchSegments gives it one when one is free
	}
	if l.used == l.total {
		return fail(l.base)
	}
	s, ok := l.next()
	if !ok {
		return stepIdle
	}
	if s.Length == 0 || s.Addr > -uint64(s.Length) {
		return fail(l.base + uint64(l.used-1)*reg.SegmentSize)
	}
	c.addr, c.left = s.Addr, min(uint64(s.Length), c.Arg2-c.pos)
	return stepIdle
}

// upload sends one read request.
func (g *GPU) upload(q *queue, c *command, emit func(p *tlp.Packet) bool) stepResult {
	n := g.readChunk(c.addr, c.left)
	r := g.sendRead(emit, c.addr, n, nil, read{
		kind: readData, queue: q.index, epoch: q.epoch, first: q.issue, vram: int64(c.Arg0 + c.pos),
	})
	if r == readNoTag {
		return stepIdle
	}
	c.out++
	c.took(n)
	return r.step()
}

// download sends one posted write.
func (g *GPU) download(c *command, emit func(p *tlp.Packet) bool) stepResult {
	n := chunkAt(c.addr, c.left, g.maxPayload())
	payload := g.payload(int64(c.Arg1+c.pos), int(c.addr%pcie.DW), n)
	p := &g.out
	*p = tlp.Packet{} // in place: the compiler would copy a literal with fields
	p.Type, p.Requester, p.Data = tlp.MWr, g.id, payload
	p.SetMemory(c.addr, n)
	if !emit(p) {
		return stepRefused
	}
	g.regs.count(reg.CountWriteTLPs, 1)
	g.regs.count(reg.CountWriteBytes, uint64(n))
	c.took(n)
	return stepMoved
}

// payload returns n bytes of VRAM behind pad zeros, filled up to double words. The
// slice aliases VRAM if the bytes lie together there.
func (g *GPU) payload(off int64, pad, n int) []byte {
	if pad == 0 && n%pcie.DW == 0 {
		if p := g.vram.look(off, n); p != nil {
			return p
		}
	}
	p := g.buf[:(pad+n+pcie.DW-1)&^(pcie.DW-1)]
	clear(p[:pad])
	clear(p[pad+n:])
	g.vram.read(p[pad:pad+n], off)
	return p
}

func (c *command) took(n int) {
	c.pos += uint64(n)
	c.addr += uint64(n)
	c.left -= uint64(n)
}

// prefetchSegments gives lists to the COPYs at and behind q.issue and requests
// their entries ahead, so that no COPY waits for its list while tags are free.
func (g *GPU) prefetchSegments(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	for i := q.issue; i != q.fetched && i != q.issue+lookAhead; i++ {
		c := q.command(i)
		if c.state == commandFetching || c.fail != reg.NoError {
			return stepIdle
		}
		if c.Op != reg.OpCopy || c.Flags&reg.CopySegment == 0 {
			continue
		}
		if c.list == nil && !q.takeList(c) {
			return stepIdle
		}
		if r := g.fetchSegments(q, i, c, emit); r != stepIdle {
			return r
		}
	}
	return stepIdle
}

func (q *queue) takeList(c *command) bool {
	for i := range q.win.lists {
		l := &q.win.lists[i]
		if l.busy || l.asked != l.used && l.pending() {
			continue
		}
		l.busy, l.base, l.total, l.asked, l.used = true, c.busAddr(), c.Dim0, 0, 0
		l.here = [listEntries]bool{}
		c.list = l
		return true
	}
	return false
}

// pending reports whether requested entries have not arrived: their reads still
// fill raw.
func (l *segmentList) pending() bool {
	for i := l.used; i != l.asked; i++ {
		if !l.here[i%listEntries] {
			return true
		}
	}
	return false
}

// fetchSegments requests the next entries of a list that has room for them.
func (g *GPU) fetchSegments(q *queue, index uint32, c *command, emit func(p *tlp.Packet) bool) stepResult {
	l := c.list
	slot := l.asked % listEntries
	room := min(l.total-l.asked, listEntries-(l.asked-l.used), listEntries-slot)
	addr := l.base + uint64(l.asked)*reg.SegmentSize
	n := uint32(g.readChunk(addr, uint64(room)*reg.SegmentSize)) / reg.SegmentSize
	// Small reads cost tags: request less than a full read only at the end.
	if full := uint32(g.readSize()-int(addr%uint64(g.readSize()))) / reg.SegmentSize; n == 0 || n < full && n < l.total-l.asked && n < listEntries-slot {
		return stepIdle
	}
	bytes := int(n) * reg.SegmentSize
	r := g.sendRead(emit, addr, bytes, l.raw[slot*reg.SegmentSize:][:bytes], read{
		kind: readSegment, queue: q.index, epoch: q.epoch, first: index, entry: l.asked, n: n,
	})
	if r == readNoTag {
		return stepIdle
	}
	l.asked += n
	c.out++
	return r.step()
}

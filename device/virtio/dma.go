package virtio

import (
	"encoding/binary"
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// readKind is the purpose of an outstanding read.
type readKind uint8

const (
	readIndex       readKind = iota // index of the available ring
	readRing                        // entries of the available ring
	readDescriptors                 // a window of descriptors
	readData                        // a buffer
)

// cookie identifies a read: its virtqueue, its purpose and its chain.
func (q *queue) cookie(kind readKind, id uint16) uint64 {
	return uint64(q.index)<<32 | uint64(kind)<<16 | uint64(id)
}

// reads are the outstanding reads of the host's memory.
type reads struct {
	req    *transaction.Requester
	staged tlp.Packet // a read that has its tag and that emit refused
	held   bool
}

// readOutcome is the outcome of send.
type readOutcome uint8

const (
	readSent readOutcome = iota
	readHeld             // it has a tag, but emit refused it: flush sends it
	readNoTag
)

func (o readOutcome) step() stepResult {
	return [...]stepResult{readSent: stepMoved, readHeld: stepRefused, readNoTag: stepIdle}[o]
}

// send sends a read into dst, in one TLP.
func (r *reads) send(d *Device, emit func(p *tlp.Packet) bool, addr uint64, dst []byte, cookie uint64) readOutcome {
	r.staged = tlp.Packet{Type: tlp.MRd}
	r.staged.SetMemory(addr, len(dst))
	if !r.req.Begin(d.now, d.now+completionTimeout, &r.staged, dst, cookie) {
		return readNoTag
	}
	if !emit(&r.staged) {
		r.held = true
		return readHeld
	}
	return readSent
}

// flush sends the read that emit has refused.
func (r *reads) flush(emit func(p *tlp.Packet) bool) bool {
	if r.held && !emit(&r.staged) {
		return false
	}
	r.held = false
	return true
}

// cancel ends all reads without effect.
func (r *reads) cancel(d *Device) {
	if r.req != nil {
		r.req.CancelAll(d.now, func(transaction.Result) {})
	}
	r.held = false
}

// complete takes a completion.
func (d *Device) complete(p *tlp.Packet) {
	res, ok := d.reads.req.Complete(p)
	if !ok {
		return
	}
	switch {
	case res.Status == pcie.UnsupportedRequest:
		d.cfg.PokeBits(cfgspace.OffStatus, cfgspace.StaMasterAbort, 0)
	case res.Status == pcie.CompleterAbort:
		d.cfg.PokeBits(cfgspace.OffStatus, cfgspace.StaRcvAbort, 0)
	}
	if res.Done {
		d.ended(res)
	}
}

// ended takes the end of a read. A driver whose memory cannot be read has to reset the
// device.
func (d *Device) ended(res transaction.Result) {
	if d.reads.held && d.reads.staged.Tag == res.Tag {
		d.reads.held = false
	}
	q, id := &d.queues[res.Cookie>>32], uint16(res.Cookie)
	if !res.OK() {
		d.Break(fmt.Sprintf("virtqueue %d: a read of the memory of the host has %s with status %v", q.index, res.Outcome, res.Status))
		return
	}
	if d.broken != "" {
		return
	}
	switch readKind(res.Cookie >> 16) {
	case readIndex:
		d.lookedUp(q)
	case readRing:
		d.fetchedRing(q)
	case readDescriptors:
		d.fetchedDescriptors(q, id)
	case readData:
		q.chains[id].pending--
		d.submit(q, id)
	}
}

// writeBack is the request whose results are written to the host.
type writeBack struct {
	active  bool
	id      uint16
	segment int
	off     int // in the segment
	done    int // bytes of data
	entry   int // bytes of the used element
}

// writeBatch bounds the TLPs of one step, so that the virtqueues take turns.
const writeBatch = 64

// writeBack writes results to the host: the data, the used elements, and, after the last one
// that collect has taken, the used index with an interrupt (section 2.7.8).
func (d *Device) writeBack(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	moved := stepIdle
	for range writeBatch {
		b := &q.back
		switch {
		case !b.active && q.ended.n > 0:
			id := q.ended.pop()
			*b = writeBack{active: true, id: id, segment: q.chains[id].readable}
		case !b.active && q.usedIndex != q.published:
			d.putBytes(q.used+2, binary.LittleEndian.AppendUint16(nil, q.usedIndex))
			if !emit(&d.out) {
				return stepRefused
			}
			q.published = q.usedIndex
			d.fire(q.vector, isrQueue)
			return stepMoved
		case !b.active:
			return moved
		}
		if b.active && !d.writeResult(q, emit) {
			return stepRefused
		}
		moved = stepMoved
	}
	return moved
}

// writeResult sends the next TLP of a result.
func (d *Device) writeResult(q *queue, emit func(p *tlp.Packet) bool) bool {
	b := &q.back
	c := &q.chains[b.id]
	if b.done < c.used {
		s := &c.segments[b.segment]
		addr := s.addr + uint64(b.off)
		n := tlp.NextChunk(addr, min(int(s.n)-b.off, c.used-b.done), d.maxPayload())
		d.putBytes(addr, d.behind(q).Pool(q.index)[c.at+c.out+b.done:][:n])
		if !emit(&d.out) {
			return false
		}
		b.done += n
		if b.off += n; b.off == int(s.n) {
			b.segment, b.off = b.segment+1, 0
		}
		return true
	}
	var element [8]byte
	binary.LittleEndian.PutUint32(element[:], uint32(c.head))
	binary.LittleEndian.PutUint32(element[4:], uint32(c.used))
	addr := q.used + 4 + 8*uint64(q.usedIndex&(q.size-1)) + uint64(b.entry)
	n := tlp.NextChunk(addr, len(element)-b.entry, d.maxPayload()) // it may cross a page
	d.putBytes(addr, element[b.entry:][:n])
	if !emit(&d.out) {
		return false
	}
	if b.entry += n; b.entry == len(element) {
		q.pool.give(c.at, c.out+c.in)
		c.state, c.placed = chainFree, false
		q.free.push(b.id)
		q.active--
		q.usedIndex++
		*b = writeBack{}
	}
	return true
}

// putBytes makes the write of bytes at an address.
func (d *Device) putBytes(addr uint64, src []byte) {
	pad := transaction.Pad(addr)
	payload := d.buf[:(pad+len(src)+pcie.DW-1)&^(pcie.DW-1)]
	clear(payload[:pad])
	clear(payload[pad+copy(payload[pad:], src):])
	d.out = tlp.Packet{Type: tlp.MWr, Requester: d.id, Data: payload}
	d.out.SetMemory(addr, len(src))
}

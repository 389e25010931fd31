package engine

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
)

const (
	// maxBatch is the largest batch in bytes: what segmentation offload takes
	// in one system call.
	maxBatch = 1 << 16
	// quantum is what a link may send before it is the turn of the next one, in bytes.
	quantum = maxBatch
)

// Buffer holds one batch and, behind it, room for the largest datagram.
type Buffer [2 * maxBatch]byte

// transmit writes what the link has ready, but no more than a quantum. It
// reports whether there may be more.
func (b *Binding) transmit(now time.Duration) (more bool) {
	if b.closed {
		return false
	}
	if listened := b.group.cfg.Listened; listened != nil {
		b.link.Listened(listened())
	}
	if b.link.Doubts(now) {
		b.link.HeardElsewhere(b.group.heard(b))
	}
	out := batch{binding: b}
	more = true
	for b.deficit += quantum; b.deficit > 0; {
		n, path := out.next(now)
		if n == 0 {
			b.deficit, more = 0, false // an idle link saves nothing up
			break
		}
		b.deficit -= n
		out.add(now, n, path)
	}
	out.flush(now)
	b.noteState()
	return more
}

// batch collects a run of datagrams of one binding for one path: equal sizes,
// except a shorter last one, as segmentation offload requires. It writes a run that no
// datagram can join any more at once.
type batch struct {
	binding *Binding
	buf     *Buffer
	lent    []link.Lent // pieces of the next datagram
	parts   [][]byte    // of the run, without the last one, which is buf[from:used]
	from    int
	used    int
	run     int // bytes of the run
	segment int
	path    uint8
	ecn     link.ECN // of the run
}

// next builds the next datagram of the link, for add. Its size is 0 if there is none.
func (o *batch) next(now time.Duration) (n int, path uint8) {
	n, path, o.lent = o.binding.link.TransmitLent(now, o.space(now), o.lent[:0])
	return n, path
}

// space returns where the link may write the next datagram.
func (o *batch) space(now time.Duration) []byte {
	if o.buf == nil {
		o.buf = o.output().Buffer()
		o.lent, o.parts = o.binding.group.lent, o.binding.group.parts
	}
	if len(o.buf)-o.used < frame.MaxDatagram {
		o.write(now)
		o.from, o.used = 0, 0
	}
	return o.buf[o.used : o.used+frame.MaxDatagram]
}

// add takes a datagram of n bytes that was written into space, except the lent pieces.
func (o *batch) add(now time.Duration, n int, path uint8) {
	ecn := o.binding.link.ECN()
	if o.run > 0 && (path != o.path || ecn != o.ecn || n > o.segment || o.run+n > o.most()) {
		o.write(now)
	}
	if o.run == 0 {
		o.segment, o.path, o.ecn = n, path, ecn
	}
	o.run += n
	start := o.used
	for _, piece := range o.lent {
		at := start + piece.At
		o.parts = append(o.parts, o.buf[o.from:at], piece.Bytes)
		o.from = at
		n -= len(piece.Bytes)
	}
	o.used += n
	if o.run%o.segment != 0 || o.run+o.segment > o.most() {
		o.write(now)
		o.from, o.used = 0, 0
	}
}

func (o *batch) output() Output { return o.binding.group.cfg.Output }

// most returns how long a run may be.
func (o *batch) most() int { return o.output().MaxBatch(o.path, o.segment) }

// write writes the run, if there is one; the next one starts behind it.
func (o *batch) write(now time.Duration) {
	if o.run == 0 {
		return
	}
	if o.used > o.from {
		o.parts = append(o.parts, o.buf[o.from:o.used])
	}
	o.output().Write(now, o.path, o.binding.peers[o.path], o.parts, o.segment, o.ecn)
	clear(o.parts)
	o.parts, o.from, o.run = o.parts[:0], o.used, 0
}

// flush writes what is left.
func (o *batch) flush(now time.Duration) {
	if o.buf == nil {
		return
	}
	o.write(now)
	o.output().Release(o.buf)
	g := o.binding.group
	clear(o.lent[:cap(o.lent)])
	g.lent, g.parts, o.buf = o.lent[:0], o.parts, nil
}

package engine

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
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
	out := batch{binding: b}
	more = true
	for b.deficit += quantum; b.deficit > 0; {
		n, path := b.link.Transmit(now, out.space())
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
// except a shorter last one, as segmentation offload requires. A run that no
// datagram can join any more is written at once, so datagrams are copied only in
// the rare case that the buffer ends behind an unfinished run.
type batch struct {
	binding     *Binding
	buf         *Buffer
	start, used int // the run is buf[start:used]
	segment     int
	path        uint8
}

// space returns where the link may write the next datagram.
func (o *batch) space() []byte {
	if o.buf == nil {
		o.buf = o.output().Buffer()
	}
	if len(o.buf)-o.used < frame.MaxDatagram {
		o.used = copy(o.buf[:], o.buf[o.start:o.used])
		o.start = 0
	}
	return o.buf[o.used : o.used+frame.MaxDatagram]
}

// add takes a datagram of n bytes that was written into space.
func (o *batch) add(now time.Duration, n int, path uint8) {
	run := o.used - o.start
	if run > 0 && (path != o.path || n > o.segment || run+n > o.most()) {
		o.write(now)
		run = 0
	}
	if run == 0 {
		o.segment, o.path = n, path
	}
	o.used += n
	if n < o.segment || run+n+o.segment > o.most() {
		o.write(now)
		o.start, o.used = 0, 0
	}
}

func (o *batch) output() Output { return o.binding.group.cfg.Output }

// most returns how long a run may be.
func (o *batch) most() int { return o.output().MaxBatch(o.path, o.segment) }

// write writes the run; the next one starts behind it.
func (o *batch) write(now time.Duration) {
	o.output().Write(now, o.path, o.binding.peers[o.path], o.buf[o.start:o.used], o.segment)
	o.start = o.used
}

// flush writes what is left.
func (o *batch) flush(now time.Duration) {
	if o.buf == nil {
		return
	}
	if o.used > o.start {
		o.write(now)
	}
	o.output().Release(o.buf)
	o.buf = nil
}

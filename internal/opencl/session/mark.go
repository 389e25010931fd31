package session

import (
	"encoding/binary"
	"math/bits"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/move"
)

// While the context moves to another device, the session knows which parts of its memory have
// changed: those that a command may write to, when the command has ended. A copy that was made for the
// target meanwhile may have the old data, and does not count then.

// blockSize is the unit in which changes are known, in bytes.
const blockSize = 64 << 10

// blocks are those of a buffer or image that have changed.
type blocks struct {
	written bool     // it may hold data
	bits    []uint64 // nil: none has changed
}

// birth is the number of an object, in the order in which they were made.
type birth struct{ number uint32 }

func (b birth) born() uint32 { return b.number }

func (s *Session) birth() birth {
	s.born++
	return birth{s.born}
}

// span is a part of a buffer without parent.
type span struct {
	root     *buffer
	from, to uint64
}

// track is what a session knows of changes.
type track struct {
	generation uint32
	left       uint64            // bytes that have changed
	told       bool              // the box knows that much is left
	spans      []span            // of the packet that is being enqueued
	late       map[uint64][]span // by cookie: of commands that have not ended
	early      map[uint64]bool   // commands that were enqueued before
}

// mark notes that a command changes n bytes at offset of a buffer or of an image's memory.
func (s *Session) mark(b *buffer, offset, n uint64) {
	for b.parent != nil {
		child := b
		b, offset = b.parent, offset+b.origin
		if child.image != nil { // its rows may lie apart
			offset, n = 0, b.size
		}
	}
	b.written = true
	if s.track == nil {
		return
	}
	s.track.spans = append(s.track.spans, span{b, offset, offset + n})
}

// markArg notes that a kernel may write to the memory of an argument.
func (s *Session) markArg(a argument) {
	if a.kind == reg.ArgSVM {
		if b, _, err := s.sharedArg(a); err == nil {
			s.mark(b, 0, b.size)
		}
		return
	}
	if len(a.value) != 4 {
		return
	}
	switch o := s.objects[binary.LittleEndian.Uint32(a.value)].(type) {
	case *buffer:
		if a.kind == reg.ArgBuffer && o.flags&memReadOnly == 0 {
			s.mark(o, 0, o.size)
		}
	case *image:
		if a.kind == reg.ArgImage {
			s.mark(o.buffer, 0, o.size)
		}
	}
}

// memReadOnly is the flag of a buffer that kernels do not write to.
const memReadOnly = 1 << 2

// change notes that a span has changed.
func (s *Session) change(p span) {
	t := s.track
	if p.root.bits == nil {
		p.root.bits = make([]uint64, (p.root.size+blockSize*64-1)/(blockSize*64))
	}
	for i := p.from / blockSize; i*blockSize < p.to; i++ {
		if w, bit := &p.root.bits[i/64], uint64(1)<<(i%64); *w&bit == 0 {
			*w |= bit
			t.left += blockSize
		}
	}
	if t.left >= muchLeft && !t.told {
		t.told = true
		_ = s.say(move.Message{Type: move.Changed, Generation: t.generation, Left: t.left}) // without the box, the process ends
	}
}

// muchLeft is how many changed bytes the box learns of at once.
const muchLeft = 512 << 10

// markBegin keeps what the command of a packet changes until its end.
func (s *Session) markBegin(cookie uint64) {
	if t := s.track; t != nil && len(t.spans) > 0 {
		t.late[cookie] = t.spans
		t.spans = nil
	}
}

// markEnd notes that a command has ended.
func (s *Session) markEnd(cookie uint64) {
	t := s.track
	if t == nil {
		return
	}
	for _, p := range t.late[cookie] {
		s.change(p)
	}
	delete(t.late, cookie)
	if t.early[cookie] {
		if delete(t.early, cookie); len(t.early) == 0 {
			s.changeAll() // it is not known where they wrote
		}
	}
}

// startTracking begins to record changes: all memory that holds data has changed.
func (s *Session) startTracking(generation uint32) {
	s.track = &track{generation: generation, late: map[uint64][]span{}, early: map[uint64]bool{}, told: true}
	for cookie := range s.pending {
		s.track.early[cookie] = true
	}
	s.changeAll()
}

func (s *Session) changeAll() {
	for root := range s.roots() {
		if root.written {
			s.change(span{root, 0, root.size})
		}
	}
}

// stopTracking ends it.
func (s *Session) stopTracking() {
	s.track = nil
	for root := range s.roots() {
		root.bits = nil
	}
}

// roots returns the buffers and the memory of images that are in no other one.
func (s *Session) roots() map[*buffer]bool {
	all := map[*buffer]bool{}
	for _, o := range s.objects {
		var b *buffer
		switch o := o.(type) {
		case *buffer:
			b = o
		case *image:
			b = o.buffer
		default:
			continue
		}
		for b.parent != nil {
			b = b.parent
		}
		all[b] = true
	}
	return all
}

// next removes and returns the next part of a buffer that has changed, at most most bytes; n is 0
// if there is none.
func (b *buffer) next(t *track, most uint64) (offset, n uint64) {
	for w, word := range b.bits {
		if word == 0 {
			continue
		}
		first := uint64(w)*64 + uint64(bits.TrailingZeros64(word))
		offset = first * blockSize
		for i := first; n < most && i*blockSize < b.size && b.bits[i/64]>>(i%64)&1 == 1; i++ {
			b.bits[i/64] &^= 1 << (i % 64)
			t.left -= min(blockSize, t.left)
			n += blockSize
		}
		return offset, min(n, b.size-offset)
	}
	return 0, 0
}

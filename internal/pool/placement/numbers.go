package placement

import (
	"cmp"
	"math/bits"
	"slices"
)

// numbers is a set of numbers: the words of a bit set that are not zero, in order.
type numbers []word

type word struct {
	at   uint32 // the first of its numbers, divided by wordBits
	bits uint64
}

const wordBits = 64

func (s numbers) find(n uint32) (int, bool) {
	return slices.BinarySearchFunc(s, n/wordBits, func(w word, at uint32) int { return cmp.Compare(w.at, at) })
}

func (s *numbers) set(n uint32) {
	i, ok := s.find(n)
	if !ok {
		*s = slices.Insert(*s, i, word{at: n / wordBits})
	}
	(*s)[i].bits |= 1 << (n % wordBits)
}

func (s *numbers) clear(n uint32) {
	i, ok := s.find(n)
	if !ok {
		return
	}
	if (*s)[i].bits &^= 1 << (n % wordBits); (*s)[i].bits == 0 {
		*s = slices.Delete(*s, i, i+1)
	}
}

// keep removes the numbers that are not in another set.
func (s *numbers) keep(o numbers) {
	out := (*s)[:0]
	for _, w := range *s {
		for len(o) > 0 && o[0].at < w.at {
			o = o[1:]
		}
		if len(o) > 0 && o[0].at == w.at && o[0].bits&w.bits != 0 {
			out = append(out, word{w.at, o[0].bits & w.bits})
		}
	}
	*s = out
}

func (s numbers) len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w.bits)
	}
	return n
}

// all calls f with each number, in order.
func (s numbers) all(f func(n uint32)) {
	for _, w := range s {
		for rest := w.bits; rest != 0; rest &= rest - 1 {
			f(w.at*wordBits + uint32(bits.TrailingZeros64(rest)))
		}
	}
}

// bits returns the set with the words that are zero, for hasBit.
func (s numbers) bits() (out []uint64) {
	if len(s) > 0 {
		out = make([]uint64, s[len(s)-1].at+1)
	}
	for _, w := range s {
		out[w.at] = w.bits
	}
	return out
}

func hasBit(bits []uint64, n uint32) bool {
	return int(n/wordBits) < len(bits) && bits[n/wordBits]>>(n%wordBits)&1 != 0
}

// labelIndex numbers the boxes of a pool and knows those with each label, so that a request with
// many labels is no question to each box.
type labelIndex struct {
	boxes []*indexedBox // by number; nil: the number is free
	free  []uint32
	with  map[label]*labelled
}

// label is a label of boxes, and labelled the boxes that have it.
type label struct{ key, value string }

type labelled struct {
	numbers
	n int
}

// enter gives a box its number.
func (x *labelIndex) enter(b *indexedBox) {
	if last := len(x.free) - 1; last >= 0 {
		b.number, x.free = x.free[last], x.free[:last]
		x.boxes[b.number] = b
	} else {
		b.number, x.boxes = uint32(len(x.boxes)), append(x.boxes, b)
	}
	for key, value := range b.Labels {
		l := x.with[label{key, value}]
		if l == nil {
			l = &labelled{}
			x.with[label{key, value}] = l
		}
		l.set(b.number)
		l.n++
	}
}

// leave takes it back.
func (x *labelIndex) leave(b *indexedBox) {
	x.boxes[b.number] = nil
	x.free = append(x.free, b.number)
	for key, value := range b.Labels {
		l := x.with[label{key, value}]
		l.clear(b.number)
		if l.n--; l.n == 0 {
			delete(x.with, label{key, value})
		}
	}
}

// restricting returns the labels of a request that not every box has. ok is false if no box has
// one of them.
func (x *labelIndex) restricting(labels map[string]string) (out []label, ok bool) {
	for key, value := range labels {
		l := x.with[label{key, value}]
		if l == nil {
			return nil, false
		}
		if l.n < len(x.boxes)-len(x.free) {
			out = append(out, label{key, value})
		}
	}
	return out, true
}

// having returns the boxes that have all labels of a request. some is false if all boxes do.
func (x *labelIndex) having(labels map[string]string) (boxes numbers, some bool) {
	list, ok := x.restricting(labels)
	if !ok || len(list) == 0 {
		return nil, !ok
	}
	return x.intersect(list), true
}

// intersect returns the boxes that have all labels of a list, which is not empty.
func (x *labelIndex) intersect(list []label) numbers {
	slices.SortFunc(list, func(a, b label) int { return cmp.Compare(len(x.with[a].numbers), len(x.with[b].numbers)) })
	out := slices.Clone(x.with[list[0]].numbers)
	for _, l := range list[1:] {
		out.keep(x.with[l].numbers)
	}
	return out
}

package placement

import (
	"encoding/binary"
	"iter"
	"maps"
	"slices"
)

// A refusal counts the GPUs of the pool by what keeps them from the request. The pool counts those
// together of which every request lacks the same: a large pool has few kinds of GPUs, and a
// leader that refuses a request looks at these instead of at a hundred thousand GPUs.

// alikeKey is what requests can lack of a GPU, beside whether it is free and which one it is.
type alikeKey struct {
	kind        Kind
	paths       Paths
	labels      string // of labelsKey
	model       string
	memory      uint64 // bytes
	usable      bool
	restriction Restriction
	modes       ShareModes
}

// alike counts the GPUs of one key. Its box and its GPUs have what the key has: bound and free.
type alike struct {
	box  Box
	gpus [2]GPU
	n    [2]int
}

// records has records by key. They lie side by side: to go through them takes less time than to
// follow as many pointers.
type records[K comparable, R any] struct {
	at   map[K]int
	of   []R
	left []int // records that are not in use
}

// index returns where the record of a key is, which is made if there is none.
func (r *records[K, R]) index(k K, made func() R) int {
	at, ok := r.at[k]
	if ok {
		return at
	}
	if r.at == nil {
		r.at = map[K]int{}
	}
	if n := len(r.left); n > 0 {
		at, r.left = r.left[n-1], r.left[:n-1]
		r.of[at] = made()
	} else {
		at = len(r.of)
		r.of = append(r.of, made())
	}
	r.at[k] = at
	return at
}

// remove removes a record.
func (r *records[K, R]) remove(k K) {
	at := r.at[k]
	delete(r.at, k)
	var none R
	r.of[at] = none
	r.left = append(r.left, at)
}

// alikes has the GPUs of a pool by what requests can lack of them.
type alikes struct {
	records[alikeKey, alike]
}

// counted is a GPU that stands for n GPUs of which the request lacks the same.
type counted struct {
	box *Box
	gpu *GPU
	n   int
}

// labelsKey returns a text that differs for different labels.
func labelsKey(labels map[string]string) string {
	if len(labels) == 0 {
		return ""
	}
	var out []byte
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		for _, s := range []string{k, labels[k]} {
			out = append(binary.AppendUvarint(out, uint64(len(s))), s...)
		}
	}
	return string(out)
}

// alikeKey returns the key of a GPU of the box.
func (b *indexedBox) alikeKey(g *GPU) alikeKey {
	return alikeKey{b.Kind, b.Paths, b.labelled, g.Model, g.Memory, g.Usable, g.Restriction, g.Modes}
}

func asIndex(free bool) int {
	if free {
		return 1
	}
	return 0
}

// enter counts the GPUs of a box.
func (a *alikes) enter(b *indexedBox) {
	b.labelled, b.alike = labelsKey(b.Labels), -1
	for i := range b.GPUs {
		g := &b.GPUs[i]
		at := a.record(b, g)
		a.of[at].n[asIndex(g.Free)]++
		if i == 0 {
			b.alike = at
		} else if b.alike != at {
			b.alike = -1
		}
	}
}

// record returns the record of a GPU, which may be a new one.
func (a *alikes) record(b *indexedBox, g *GPU) int {
	return a.index(b.alikeKey(g), func() alike {
		r := alike{box: Box{Kind: b.Kind, Labels: b.Labels}}
		r.box.Paths = b.Paths
		for i := range r.gpus {
			r.gpus[i] = GPU{Model: g.Model, Memory: g.Memory, Usable: g.Usable, Restriction: g.Restriction, Modes: g.Modes, Free: i == asIndex(true)}
		}
		return r
	})
}

// leave no longer counts the GPUs of a box.
func (a *alikes) leave(b *indexedBox) {
	for i := range b.GPUs {
		g := &b.GPUs[i]
		r := &a.of[a.find(b, g)]
		if r.n[asIndex(g.Free)]--; r.n == [2]int{} {
			a.remove(b.alikeKey(g))
		}
	}
}

// find returns the record of a GPU that is counted.
func (a *alikes) find(b *indexedBox, g *GPU) int {
	if b.alike >= 0 {
		return b.alike
	}
	return a.at[b.alikeKey(g)]
}

// flip counts a GPU as free that was bound, or the other way round.
func (a *alikes) flip(b *indexedBox, g *GPU, free bool) {
	n := &a.of[a.find(b, g)].n
	n[asIndex(!free)]--
	n[asIndex(free)]++
}

// gpus returns the GPUs of a model, "" for all, without those that are not free if free is set.
// Excluded ones come one by one.
func (p *Pool) gpus(model string, free bool, exclude []Ref) iter.Seq[counted] {
	var single []counted
	less := map[int][2]int{}
	for ref := range setOf(exclude) {
		b := p.boxes[ref.Box]
		if b == nil {
			continue
		}
		at, ok := slices.BinarySearchFunc(b.GPUs, GPU{Slot: ref.Slot}, compareSlots)
		if !ok {
			continue
		}
		g := &b.GPUs[at]
		single = append(single, counted{&b.Box, g, 1})
		i := p.alikes.find(b, g)
		n := less[i]
		n[asIndex(g.Free)]++
		less[i] = n
	}
	return func(yield func(counted) bool) {
		for i := range p.alikes.of {
			r := &p.alikes.of[i]
			for j := range r.gpus {
				if n := r.n[j] - less[i][j]; n > 0 && r.gpus[j].asked(model, free) && !yield(counted{&r.box, &r.gpus[j], n}) {
					return
				}
			}
		}
		for _, c := range single {
			if c.gpu.asked(model, free) && !yield(c) {
				return
			}
		}
	}
}

// asked reports whether the GPU is of a model, "" for any, and free if it must be.
func (g *GPU) asked(model string, free bool) bool {
	return (model == "" || g.Model == model) && (g.Free || !free)
}

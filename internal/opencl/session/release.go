package session

import (
	"cmp"
	"slices"

	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// releases are objects without a handle that commands may still use. A platform counts the uses
// of a buffer or an image, but not those of shared virtual memory, and PoCL not those of a sampler.
type releases struct {
	list []release // in order of time
	left int       // the sum of theirs
}

type release struct {
	object any    // *shared or cl.Sampler
	before uint64 // the number of the last command from before it
	left   int    // commands up to that one that have not ended, without those of releases before
}

// add notes a release. unfinished commands have not ended, and last is the number of the last one.
func (r *releases) add(object any, unfinished int, last uint64) {
	r.list = append(r.list, release{object, last, unfinished - r.left})
	r.left = unfinished
}

// end notes that the command of a number has ended.
func (r *releases) end(number uint64) {
	i, _ := slices.BinarySearchFunc(r.list, number, func(e release, n uint64) int { return cmp.Compare(e.before, n) })
	if i < len(r.list) {
		r.list[i].left--
		r.left--
	}
}

// take returns an object that no command uses any more, or nil.
func (r *releases) take() any {
	if len(r.list) == 0 || r.list[0].left > 0 {
		return nil
	}
	object := r.list[0].object
	r.list = r.list[1:]
	return object
}

// releaseLater releases an object when the commands that are there have ended.
func (s *Session) releaseLater(object any) {
	s.released.add(object, len(s.pending), s.enqueued)
	s.freeReleased()
}

// freeReleased frees released objects that no command uses any more.
func (s *Session) freeReleased() {
	for o := s.released.take(); o != nil; o = s.released.take() {
		switch o := o.(type) {
		case *shared:
			s.Library.FreeSVM(s.context, o.base)
			s.used -= o.cost
			s.shared--
		case cl.Sampler:
			_ = s.Library.Release(o)
		}
	}
}

package playback

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

const none = workload.None

// Queues of the GPU that are used; more streams share them.
const Queues = reg.DefaultQueues

const queues = Queues

// maxCopy bounds the bytes of one copy, which all move.
const maxCopy = 16 << 30

// script is a plan prepared for a replay: successors by index.
type script struct {
	plan *predict.Plan
	w    *workload.Workload

	queueOf []uint8         // by stream
	order   [queues][]int32 // operations of each queue
	place   []int32         // by operation: its index in order
	tail    []time.Duration // by operation: the stream idles so long behind it; negative: the next overlaps
	fenced  []bool          // by operation: the host must know of its end
	crossed []bool          // by operation: another queue waits for it
	follow  []int32         // by operation: the next of the stream, where no call launches it
	fences  int

	ofCall    [][2]int32 // by call: the part of launched that it launches
	launched  []int32
	nextCall  []int32 // by call: the next of its thread
	crossHead []int32 // by call: the first call of another thread behind it, and
	crossNext []int32 // the one after that
}

// newScript lays out a plan.
func newScript(p *predict.Plan) (*script, error) {
	w := p.Workload()
	s := &script{
		plan: p, w: w,
		place: make([]int32, len(w.Ops)), tail: make([]time.Duration, len(w.Ops)),
		fenced: make([]bool, len(w.Ops)), crossed: make([]bool, len(w.Ops)), follow: filled(len(w.Ops)),
		ofCall: make([][2]int32, len(w.Calls)), nextCall: filled(len(w.Calls)),
		crossHead: filled(len(w.Calls)), crossNext: filled(len(w.Calls)),
	}
	for i := range w.Ops {
		if op := &w.Ops[i]; op.Bytes > maxCopy && op.Kind.IsCopy() {
			return nil, fmt.Errorf("%w: operation %d moves %d bytes, at most %d", ErrCopy, i, op.Bytes, int64(maxCopy))
		}
	}
	s.assign()
	s.layOps()
	s.layCalls()
	s.markFences()
	return s, nil
}

func filled(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = none
	}
	return out
}

// assign gives streams queues, each one the queue that has least to do: one of
// its own, as long as there are some.
func (s *script) assign() {
	const perOp = time.Microsecond // makes many short operations count too
	work := make([]time.Duration, len(s.w.Streams))
	for i := range s.w.Ops {
		work[s.w.Ops[i].Stream] += s.w.Ops[i].Dur + perOp
	}
	streams := make([]int, len(work))
	for i := range streams {
		streams[i] = i
	}
	slices.SortStableFunc(streams, func(a, b int) int { return cmp.Compare(work[b], work[a]) })
	s.queueOf = make([]uint8, len(work))
	var load [queues]time.Duration
	for _, stream := range streams {
		least := 0
		for q := range load {
			if load[q] < load[least] {
				least = q
			}
		}
		s.queueOf[stream] = uint8(least)
		load[least] += work[stream]
	}
}

func (s *script) queue(op int32) uint8 { return s.queueOf[s.w.Ops[op].Stream] }

// layOps puts the operations in the order of their queues.
func (s *script) layOps() {
	for _, i := range s.plan.Order() {
		q := s.queue(i)
		s.place[i] = int32(len(s.order[q]))
		s.order[q] = append(s.order[q], i)
		d := s.plan.Op(i)
		if d.Prev != none {
			s.tail[d.Prev] = d.PrevLag
			if s.w.Ops[i].Call == none {
				s.follow[d.Prev] = i
			}
		}
		if d.Cross != none && s.queue(d.Cross) != q {
			s.crossed[d.Cross] = true
		}
		for on := range s.plan.StreamWaits(i) {
			s.crossed[on] = s.crossed[on] || s.queue(on) != q
		}
	}
}

// layCalls lists what each call launches, and which calls follow it.
func (s *script) layCalls() {
	for i := range s.w.Ops {
		if c := s.w.Ops[i].Call; c != none {
			s.ofCall[c][1]++
		}
	}
	at := int32(0)
	for c := range s.ofCall {
		n := s.ofCall[c][1]
		s.ofCall[c] = [2]int32{at, at}
		at += n
	}
	s.launched = make([]int32, at)
	for _, i := range s.plan.Order() {
		if c := s.w.Ops[i].Call; c != none {
			s.launched[s.ofCall[c][1]] = i
			s.ofCall[c][1]++
		}
	}
	for i := range s.w.Calls {
		d := s.plan.Call(int32(i))
		if d.Prev != none {
			s.nextCall[d.Prev] = int32(i)
		}
		if d.Cross != none {
			s.crossNext[i] = s.crossHead[d.Cross]
			s.crossHead[d.Cross] = int32(i)
		}
	}
}

// markFences marks the operations whose end the host must see: those that calls
// wait for, the last of each training step in each queue, and the first of all.
func (s *script) markFences() {
	s.fenced[s.plan.Order()[0]] = true
	for i := range s.w.Calls {
		for op := range s.plan.Waits(int32(i)) {
			s.fenced[op] = true
		}
	}
	for _, ops := range s.order {
		for k, i := range ops {
			if k+1 == len(ops) || s.plan.StepOf(i) != s.plan.StepOf(ops[k+1]) {
				s.fenced[i] = true
			}
		}
	}
	for _, f := range s.fenced {
		if f {
			s.fences++
		}
	}
}

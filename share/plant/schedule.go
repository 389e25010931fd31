package plant

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Advance runs the GPU until now. Kernels that end are in Take.
func (g *GPU) Advance(now time.Duration) {
	for g.now < now {
		to := min(now, max(g.Wake(), g.now))
		g.pass(to - g.now)
		g.now = to
		if g.finish() || g.now == g.switched {
			g.dispatch()
		}
	}
}

// pass lets the time d pass for the chunks that run.
func (g *GPU) pass(d time.Duration) {
	if d == 0 || len(g.chunks) == 0 {
		return
	}
	var used int32
	for i := range g.chunks {
		k := &g.chunks[i]
		k.left -= k.rate * int64(d)
		used += k.sms
	}
	g.busy += d
	g.smTime += d * time.Duration(used)
	for _, s := range g.streams {
		if s.used > 0 {
			s.busy += d
			s.smTime += d * time.Duration(s.used)
		}
	}
}

// finish takes out the chunks and kernels that ended, and reports whether there were any.
func (g *GPU) finish() bool {
	first := slices.IndexFunc(g.chunks, func(k chunk) bool { return k.left <= 0 })
	if first < 0 {
		return false
	}
	keep := g.chunks[:first]
	for _, k := range g.chunks[first:] {
		if k.left > 0 {
			keep = append(keep, k)
			continue
		}
		g.free += k.sms
		k.s.used -= k.sms
		if k.l == nil {
			continue
		}
		k.l.running--
		if k.l.running == 0 && k.l.left == 0 {
			k.s.queue = k.s.queue[:copy(k.s.queue, k.s.queue[1:])]
			g.done = append(g.done, Completion{k.s.client, k.l.id, g.now - k.l.began})
		}
	}
	clear(g.chunks[len(keep):])
	g.chunks = keep
	return true
}

// dispatch gives free multiprocessors to waiting blocks: to launches of high priority
// first, then in the order of their submission.
func (g *GPU) dispatch() {
	if g.spec.Execution == share.Contexts {
		g.switchContext()
	}
	for g.free > 0 {
		var best *stream
		var room int32
		for _, s := range g.streams {
			if n := g.room(s); n > 0 && (best == nil || before(s.queue[0], best.queue[0])) {
				best, room = s, n
			}
		}
		if best == nil {
			break
		}
		g.start(best, room)
	}
	g.rates()
}

func before(a, b *launch) bool {
	if a.high != b.high {
		return a.high
	}
	return a.order < b.order
}

// room returns how many multiprocessors the first kernel of a stream can take now.
func (g *GPU) room(s *stream) int32 {
	if len(s.queue) == 0 || s.queue[0].left == 0 {
		return 0
	}
	if g.spec.Execution == share.Contexts && (g.context != s || g.now < g.switched || g.turnOver()) {
		return 0
	}
	l := s.queue[0]
	limit := s.limit
	if l.sms > 0 {
		limit = min(limit, l.sms)
	}
	want := (l.left + int64(l.kernel.Occupancy) - 1) / int64(l.kernel.Occupancy)
	return int32(min(int64(min(g.free, limit-s.used)), want))
}

func (g *GPU) start(s *stream, sms int32) {
	l := s.queue[0]
	if !l.started {
		l.started, l.began = true, g.now
	}
	blocks := min(l.left, int64(sms)*int64(l.kernel.Occupancy))
	l.left -= blocks
	l.running++
	g.free -= sms
	s.used += sms
	g.chunks = append(g.chunks, chunk{s: s, l: l, sms: sms, blocks: blocks, left: int64(l.kernel.BlockTime) * int64(share.Whole)})
}

// turnOver reports whether the running context has to give way.
func (g *GPU) turnOver() bool {
	if g.now < g.since+g.spec.Slice {
		return false
	}
	for _, s := range g.streams {
		if s != g.context && len(s.queue) > 0 {
			return true
		}
	}
	return false
}

// switchContext changes the context when nothing runs and the running one has no work
// or has used up its turn. The next is the one behind it with work.
func (g *GPU) switchContext() {
	if len(g.chunks) > 0 || g.now < g.switched {
		return
	}
	if c := g.context; c != nil && len(c.queue) > 0 && !g.turnOver() {
		return
	}
	at := 0
	for i, s := range g.streams {
		if s == g.context {
			at = i + 1
		}
	}
	for i := range g.streams {
		s := g.streams[(at+i)%len(g.streams)]
		if len(s.queue) == 0 {
			continue
		}
		if s != g.context {
			g.switched = g.now + g.spec.Switch
			g.context = s
		}
		g.since = max(g.now, g.switched)
		return
	}
}

// rates works out how fast the chunks run: a kernel waits for memory in its share
// Memory of the time, and these waits stretch as far as the demand of all exceeds the
// bandwidth.
func (g *GPU) rates() {
	const whole = int64(share.Whole)
	demand, clients := g.demand(nil), g.running()
	for i := range g.chunks {
		k := &g.chunks[i]
		if k.l == nil {
			k.rate = whole
			continue
		}
		d, others := demand, clients-1
		if g.spec.Execution == share.Partitions { // bandwidth of its own, in proportion
			d = g.demand(k.s) * int64(g.spec.Device.SMs) / int64(k.s.limit)
			others = 0
		}
		stretch := max(d, whole) + others*int64(g.spec.CacheLoss)
		m := int64(k.l.kernel.Memory)
		k.rate = whole * whole / (whole - m + m*stretch/whole)
		k.rate = max(1, k.rate*int64(k.s.speed)/whole)
	}
}

// demand returns the bandwidth that the chunks would use at full speed: of one stream,
// or of all for nil.
func (g *GPU) demand(only *stream) int64 {
	var sum int64
	for i := range g.chunks {
		k := &g.chunks[i]
		if k.l != nil && (only == nil || k.s == only) {
			sum += int64(k.l.kernel.Memory) * int64(k.sms) / int64(k.l.kernel.SMs(g.spec.Device))
		}
	}
	return sum
}

// running returns how many clients have blocks that run.
func (g *GPU) running() int64 {
	var n int64
	for _, s := range g.streams {
		if s.used > 0 {
			n++
		}
	}
	return n
}

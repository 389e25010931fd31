package cluster

import (
	"math"
	"math/rand/v2"
)

// scheduler places pods one after another. It keeps the scores of each shape and
// computes only those of servers that changed since.
type scheduler struct {
	servers []server
	policy  scorer
	rng     *rand.Rand // nil unless chance decides between equals
	// changed has the servers in the order of their changes, without the first dropped.
	changed []int32
	dropped int
	caches  map[shape]*scores
	most    int // scores in caches
}

// maxScores bounds the scores that a scheduler keeps, of 17 bytes each: a list may hold
// as many shapes as pods. The shapes of an openb list fit.
const maxScores = 16 << 20

// noFit is the score of a server on which the pod does not fit.
const noFit = math.MinInt64

// scores are those of one shape, by server.
type scores struct {
	seen    int // number of changes that are in it
	score   []int64
	gpu     []int8
	version []uint32
	best    winners
	fitting indexSet // of the random policy
}

// newScheduler returns a scheduler. The first of equal servers wins, except under the
// random policy.
func newScheduler(nodes []Node, policy scorer, rng *rand.Rand) *scheduler {
	c := &scheduler{servers: newServers(nodes), policy: policy, caches: map[shape]*scores{}, most: maxScores}
	if _, chance := policy.(randomFit); chance {
		c.rng = rng
	}
	return c
}

func (c *scheduler) scoresOf(p *Pod) *scores {
	k, n := p.shape(), len(c.servers)
	now := c.dropped + len(c.changed)
	s := c.caches[k]
	if s == nil {
		if (len(c.caches)+1)*n > c.most {
			clear(c.caches)
		}
		s = &scores{score: make([]int64, n), gpu: make([]int8, n), version: make([]uint32, n), best: newWinners(n)}
		if c.rng != nil {
			s.fitting = newIndexSet(n)
		}
		c.caches[k] = s
		c.refreshAll(s, p)
	} else if s.seen < c.dropped || now-s.seen >= n {
		c.refreshAll(s, p)
	} else {
		c.follow(s, p, c.changed[s.seen-c.dropped:])
	}
	s.seen = now
	return s
}

// follow computes the scores of the servers that changed.
func (c *scheduler) follow(s *scores, p *Pod, changed []int32) {
	many := len(changed) > len(c.servers)/16 // a whole tree is cheaper than its branches
	for _, i := range changed {
		if s.version[i] == c.servers[i].version {
			continue
		}
		if c.refresh(s, p, int(i)); !many {
			s.best.update(s.score, int(i))
		}
	}
	if many {
		s.best.build(s.score)
	}
}

func (c *scheduler) refreshAll(s *scores, p *Pod) {
	for i := range c.servers {
		c.refresh(s, p, i)
	}
	s.best.build(s.score)
}

func (c *scheduler) refresh(s *scores, p *Pod, i int) {
	v := &c.servers[i]
	s.version[i] = v.version
	s.score[i] = noFit
	fits := v.fits(p)
	if fits {
		score, gpu := c.policy.score(v, p)
		s.score[i], s.gpu[i] = score, int8(gpu)
	}
	if c.rng != nil {
		s.fitting.set(i, fits)
	}
}

// place puts the pod on the server with the highest score, or returns false.
func (c *scheduler) place(p *Pod) (placed, bool) {
	s := c.scoresOf(p)
	best := s.best.first()
	if best < 0 || s.score[best] == noFit {
		return placed{}, false
	}
	gpu := int(s.gpu[best])
	if c.rng != nil {
		best = int(s.fitting.all[c.rng.IntN(len(s.fitting.all))])
		if p.shared() {
			gpu = c.anyGPU(&c.servers[best], p.MilliGPU)
		}
	}
	at := c.servers[best].take(p, gpu)
	at.node = best
	c.note(best)
	return at, true
}

// note adds a change. It forgets the older half of the changes when a computation of all
// scores is cheaper than to follow them.
func (c *scheduler) note(server int) {
	c.changed = append(c.changed, int32(server))
	if n := len(c.servers); len(c.changed) >= 2*n+64 {
		c.dropped += n
		c.changed = append(c.changed[:0], c.changed[n:]...)
	}
}

// anyGPU returns one of the GPUs that have room for a fraction.
func (c *scheduler) anyGPU(s *server, milli int64) int {
	gpu, n := -1, 0
	for i, f := range s.free {
		if f >= milli {
			if n++; c.rng.IntN(n) == 0 {
				gpu = i
			}
		}
	}
	return gpu
}

// remove ends a pod.
func (c *scheduler) remove(p *Pod, at placed) {
	c.servers[at.node].give(p, at)
	c.note(at.node)
}

// winners is a tree over the scores of servers: each node has the best of its leaves,
// the first of equals. A change costs one comparison for each of its levels.
type winners []int32

func newWinners(n int) winners {
	size := 1
	for size < n {
		size *= 2
	}
	w := make(winners, 2*size)
	for i := range size {
		w[size+i] = -1
		if i < n {
			w[size+i] = int32(i)
		}
	}
	return w
}

func (w winners) build(score []int64) {
	for at := len(w)/2 - 1; at > 0; at-- {
		w.decide(score, at)
	}
}

func (w winners) decide(score []int64, at int) {
	left, right := w[2*at], w[2*at+1]
	if w[at] = left; right >= 0 && score[right] > score[left] {
		w[at] = right
	}
}

// update follows a change of one score.
func (w winners) update(score []int64, i int) {
	for at := (len(w)/2 + i) / 2; at > 0; at /= 2 {
		w.decide(score, at)
	}
}

// first returns the best, or -1 if there are no servers.
func (w winners) first() int { return int(w[1]) }

// indexSet is a set of small numbers from which chance can draw.
type indexSet struct {
	all []int32
	at  []int32 // place of each number in all, or -1
}

func newIndexSet(n int) indexSet {
	s := indexSet{at: make([]int32, n)}
	for i := range s.at {
		s.at[i] = -1
	}
	return s
}

func (s *indexSet) set(i int, in bool) {
	switch at := s.at[i]; {
	case in && at < 0:
		s.at[i] = int32(len(s.all))
		s.all = append(s.all, int32(i))
	case !in && at >= 0:
		last := s.all[len(s.all)-1]
		s.all[at], s.at[last] = last, at
		s.all, s.at[i] = s.all[:len(s.all)-1], -1
	}
}

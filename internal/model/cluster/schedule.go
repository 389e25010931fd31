package cluster

import (
	"math/rand/v2"
)

// scheduler places pods one after another. It keeps the scores of each shape and
// computes only those of servers that changed since.
type scheduler struct {
	servers []server
	policy  scorer
	rng     *rand.Rand // nil unless chance decides between equals
	changed []int32    // servers in the order of their changes
	caches  map[shape]*scores
	most    int // scores in caches
}

// maxScores bounds the scores that a scheduler keeps, of 14 bytes each: a list may hold
// as many shapes as pods. The shapes of an openb list fit.
const maxScores = 16 << 20

// scores are those of one shape, by server.
type scores struct {
	seen    int // prefix of changed that is in it
	fits    []bool
	score   []int64
	gpu     []int8
	version []uint32
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
	k := p.shape()
	s := c.caches[k]
	if s == nil {
		n := len(c.servers)
		if (len(c.caches)+1)*n > c.most {
			clear(c.caches)
		}
		s = &scores{fits: make([]bool, n), score: make([]int64, n), gpu: make([]int8, n), version: make([]uint32, n), seen: len(c.changed)}
		for i := range c.servers {
			c.refresh(s, p, i)
		}
		c.caches[k] = s
		return s
	}
	if len(c.changed)-s.seen >= len(c.servers) {
		for i := range c.servers {
			c.refresh(s, p, i)
		}
	} else {
		for _, i := range c.changed[s.seen:] {
			if s.version[i] != c.servers[i].version {
				c.refresh(s, p, int(i))
			}
		}
	}
	s.seen = len(c.changed)
	return s
}

func (c *scheduler) refresh(s *scores, p *Pod, i int) {
	v := &c.servers[i]
	s.version[i] = v.version
	if s.fits[i] = v.fits(p); s.fits[i] {
		score, gpu := c.policy.score(v, p)
		s.score[i], s.gpu[i] = score, int8(gpu)
	}
}

// place puts the pod on the server with the highest score, or returns false.
func (c *scheduler) place(p *Pod) (placed, bool) {
	s := c.scoresOf(p)
	best, n := -1, 0
	for i := range c.servers {
		switch {
		case !s.fits[i]:
		case best < 0 || s.score[i] > s.score[best]:
			best, n = i, 1
		case c.rng != nil && s.score[i] == s.score[best]:
			if n++; c.rng.IntN(n) == 0 {
				best = i
			}
		}
	}
	if best < 0 {
		return placed{}, false
	}
	gpu := int(s.gpu[best])
	if c.rng != nil && p.shared() {
		gpu = c.anyGPU(&c.servers[best], p.MilliGPU)
	}
	at := c.servers[best].take(p, gpu)
	at.node = best
	c.changed = append(c.changed, int32(best))
	return at, true
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
	c.changed = append(c.changed, int32(at.node))
}

package soak

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/fault"
)

// chaos injects faults into the network and the proxies: a sequence of faults on
// each path, and from time to time one of all paths or of a proxy.
type chaos struct {
	cluster *cluster
	ledger  *ledger
	grace   func() time.Duration // see stallWatch

	mu     sync.Mutex // guards the fields below
	counts map[string]int
	outage bool                 // every path drops all datagrams
	plans  [paths][2]fault.Plan // of the host and of the boxes
	lanes  [paths + 1]lane      // of each path, and of the faults of everything
	severe bool                 // one path hardly works: the other one must
	seed   uint64
}

const (
	// graceAfter is the time after a disturbance within which its consequences may
	// show: the dead interval, then the completion timeout. A busy machine needs more.
	graceAfter = 2500 * time.Millisecond
	// Limits of the duration of a fault of a path, and of the rest after it.
	leastBad, mostBad   = 200 * time.Millisecond, 2 * time.Second
	leastRest, mostRest = 50 * time.Millisecond, 500 * time.Millisecond
	// Limits of the time between two faults that may end bindings: longer than
	// graceAfter, so that there are times without an excuse for a loss.
	leastPeace, mostPeace = 3 * time.Second, 8 * time.Second
	// An outage ends bindings if it lasts longer than the dead interval, a second.
	leastOutage, mostOutage = 100 * time.Millisecond, 1800 * time.Millisecond
	// restartLimit is the limit of the restart of a proxy: a goroutine whose network
	// is dead waits for at most one request's timeout.
	restartLimit        = 4 * time.Second
	leastJump, mostJump = 50 * time.Millisecond, 2500 * time.Millisecond
)

// Kinds of faults.
const (
	faultMild      = "loss, duplication, reordering, corruption"
	faultHeavy     = "heavy loss, duplication, reordering, corruption"
	faultDelay     = "delay"
	faultPartition = "partition of a path"
	faultOneWay    = "one-way partition of a path"
	faultReorder   = "heavy reordering"
	faultMTU       = "MTU drop"
	faultRate      = "bottleneck"
	faultOutage    = "outage of all paths"
	faultJump      = "clock jump"
	faultBox       = "box restart"
	faultHost      = "host restart"
	faultServer    = "device server restart"
	faultStall     = "device server stall"
)

func newChaos(of *cluster, l *ledger, grace func() time.Duration, seed uint64) *chaos {
	c := &chaos{cluster: of, ledger: l, grace: grace, counts: map[string]int{}}
	for i := range c.lanes {
		c.lanes[i] = lane{
			rand:  rand.New(rand.NewPCG(seed, 1<<32|uint64(i))),
			cards: []string{faultMild, faultMild, faultReorder, faultReorder, faultHeavy, faultDelay, faultPartition, faultOneWay, faultMTU, faultRate},
		}
	}
	c.lanes[paths].cards = []string{faultOutage, faultJump, faultBox, faultHost, faultServer, faultStall}
	return c
}

// run injects faults until ctx ends, then ends those of the paths.
func (c *chaos) run(ctx context.Context) {
	var wg sync.WaitGroup
	for path := range paths {
		wg.Go(func() {
			l := &c.lanes[path]
			for wait(ctx, between(l.rand, leastRest, mostRest)) {
				c.pathFault(ctx, l.rand, path, l.draw())
			}
		})
	}
	wg.Go(func() {
		l := &c.lanes[paths]
		for wait(ctx, between(l.rand, leastPeace, mostPeace)) {
			c.bindingFault(ctx, l.rand, l.draw())
		}
	})
	wg.Wait()
}

// lane draws kinds of faults in random order: each kind once before any of them again.
type lane struct {
	rand        *rand.Rand
	cards, left []string
}

func (l *lane) draw() string {
	if len(l.left) == 0 {
		l.left = append(l.left, l.cards...)
		l.rand.Shuffle(len(l.left), func(i, j int) { l.left[i], l.left[j] = l.left[j], l.left[i] })
	}
	card := l.left[0]
	l.left = l.left[1:]
	return card
}

// pathFault gives one path a fault for a random time.
func (c *chaos) pathFault(ctx context.Context, r *rand.Rand, path int, kind string) {
	share := func(most float64) float64 { return r.Float64() * most }
	cut := fault.Plan{Partitions: []fault.Window{{To: 24 * time.Hour}}}
	var plan [2]fault.Plan
	severe := false
	for side := range plan {
		p := &plan[side]
		switch kind {
		case faultMild:
			*p = fault.Plan{Loss: share(.03), Dup: share(.03), Reorder: share(.05), Corrupt: share(.02)}
		case faultHeavy:
			severe = true
			*p = fault.Plan{Loss: share(.2), Dup: share(.2), Reorder: share(.3), Corrupt: share(.2), Jitter: between(r, 0, time.Millisecond)}
		case faultReorder:
			*p = fault.Plan{Reorder: share(.5), Jitter: between(r, 0, 3*time.Millisecond)}
		case faultDelay:
			*p = fault.Plan{Delay: between(r, 0, 10*time.Millisecond), Jitter: between(r, 0, 2*time.Millisecond)}
		case faultPartition:
			severe = true
			*p = cut
		case faultOneWay:
			severe = true
			if side == path%2 {
				*p = cut
			}
		case faultMTU:
			severe = true
			*p = fault.Plan{MTU: 1300 + r.IntN(20000)}
		case faultRate:
			*p = fault.Plan{Rate: 20e6 + share(200e6), Queue: 256<<10 + r.IntN(1<<20)}
		}
	}
	bad := between(r, leastBad, mostBad)
	if severe && !c.takeSevere() {
		return
	}
	c.count(kind)
	c.ledger.tell(fmt.Sprintf("path %d for %v: %v from the host, %v from the boxes", path, bad.Round(time.Millisecond), &plan[0], &plan[1]))
	c.set(path, plan)
	wait(ctx, bad)
	c.set(path, [2]fault.Plan{})
	if severe {
		// The other path gets no severe fault until this one has worked for a while.
		wait(ctx, leastBad)
		c.mu.Lock()
		c.severe = false
		c.mu.Unlock()
	}
}

func (c *chaos) takeSevere() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.severe
	c.severe = true
	return !taken
}

// bindingFault injects a fault that may end bindings.
func (c *chaos) bindingFault(ctx context.Context, r *rand.Rand, kind string) {
	side := r.IntN(sides)
	outage, by := between(r, leastOutage, mostOutage), between(r, leastJump, mostJump)
	began := time.Now()
	c.count(kind)
	end := c.ledger.excuse(kind, began)
	switch kind {
	case faultOutage:
		c.setOutage(true)
		wait(ctx, outage)
		c.setOutage(false)
	case faultJump:
		c.cluster.jump(side, by)
	case faultStall:
		c.cluster.stallServer(r.Uint64(), func() { wait(ctx, outage) })
	case faultServer:
		if err := c.cluster.restartServer(r.Uint64()); err != nil {
			c.ledger.violate("%s: %v", kind, err)
		}
	case faultBox, faultHost:
		side = nearBox + side%boxes
		if kind == faultHost {
			side = hostSide
		}
		// A machine that runs threads late has stalls too short to count, one after the other.
		limit := restartLimit + c.grace() - graceAfter
		finished := c.ledger.limit(limit, func() { c.ledger.stuck("%s: not finished after %v", kind, limit) })
		if err := c.cluster.restart(side); err != nil {
			c.ledger.violate("%s: %v", kind, err)
		}
		finished()
		c.reapply()
	}
	end(time.Now().Add(c.grace()))
}

// set gives a path its plans; an outage overrides them.
func (c *chaos) set(path int, plan [2]fault.Plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plans[path] = plan
	c.applyLocked(path)
}

func (c *chaos) setOutage(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outage = on
	for path := range paths {
		c.applyLocked(path)
	}
}

// reapply gives the plans to a restarted proxy.
func (c *chaos) reapply() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path := range paths {
		c.applyLocked(path)
	}
}

func (c *chaos) applyLocked(path int) {
	for side := range sides {
		plan := c.plans[path][min(side, nearBox)]
		if c.outage {
			plan = fault.Plan{Partitions: []fault.Window{{To: 24 * time.Hour}}}
		}
		c.seed++
		c.cluster.setFault(side, path, plan, c.seed)
	}
}

func (c *chaos) count(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[kind]++
}

// total returns the number of faults.
func (c *chaos) total() (n int) {
	for _, v := range c.kinds() {
		n += v
	}
	return n
}

// kinds returns the number of faults of each kind.
func (c *chaos) kinds() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}

// between returns a random duration within the limits.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// wait reports false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

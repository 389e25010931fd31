package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Experiment is a scenario with the lists that it names.
type Experiment struct {
	*Scenario
	Nodes []Node
	Pods  []Pod
	// Clock makes fill, churn and replay report the time of each allocation; nil: they do
	// not, and equal experiments give equal reports.
	Clock func() time.Duration
	// Doing is called with what a run does, by several goroutines at a time; nil: it is not.
	Doing func(text string)
}

// progress is called every checkEvery steps of a long part of a run, with the number of steps
// that are done and of all. It reports whether to go on; nil: always.
type progress func(done, of int) bool

func (p progress) on(done, of int) bool { return p == nil || p(done, of) }

// goOn goes on until ctx ends, and tells what a contestant does.
func (e *Experiment) goOn(ctx context.Context, name, steps string) progress {
	return func(done, of int) bool {
		if ctx.Err() != nil {
			return false
		}
		if e.Doing != nil {
			e.Doing(fmt.Sprintf("%s: %d of %d %s", name, done, of, steps))
		}
		return true
	}
}

// contestant is one of the policies and pools that a scenario compares.
type contestant struct {
	name string
	pool *PoolOptions // nil: servers under the policy of that name
}

func (e *Experiment) contestants() []contestant {
	var out []contestant
	for _, p := range e.Policies {
		out = append(out, contestant{name: p})
	}
	for i := range e.Pools {
		o, err := e.Pools[i].options()
		if err != nil {
			panic("cluster: " + err.Error()) // Load has checked it
		}
		out = append(out, contestant{name: e.Pools[i].Name, pool: &o})
	}
	return out
}

// placer returns an empty cluster, or a part of it if making it shall not go on.
func (c contestant) placer(nodes []Node, pods []Pod, seed uint64, goOn progress) placer {
	if c.pool != nil {
		return newPoolFor(pods, keptHosts(nodes, c.pool.HostsKept), nodes, *c.pool, goOn)
	}
	nodes = orderOf(c.name, nodes, rngOf(seed, 3))
	return newScheduler(nodes, policies[c.name](nodes, typicalPods(pods)), rngOf(seed, 2))
}

// Run runs the experiment on all processors. done is called after each run, by one
// goroutine at a time.
func (e *Experiment) Run(ctx context.Context, done func(n, of int)) (*Report, error) {
	r := &Report{Name: e.Name, Description: e.Description}
	gpus := 0
	for i := range e.Nodes {
		gpus += e.Nodes[i].GPUs
	}
	r.Facts = append(r.Facts, fmt.Sprintf("%s, %s; mean of %s", count(len(e.Nodes), "server"), count(gpus, "GPU"), count(e.Seeds, "run")))
	if m := countMisfits(e.Nodes, e.Pods); m.all() > 0 {
		r.Facts = append(r.Facts, fmt.Sprintf("%d of the %d jobs fit on no server, not even an empty one: %v", m.all(), len(e.Pods), m))
	}
	s := e.study(r)
	if err := parallel(ctx, s.runs(), s.run, done); err != nil {
		return nil, err
	}
	s.report(r)
	return r, nil
}

// study is one kind of experiment.
type study interface {
	runs() int
	// run may be called by several goroutines, once for each i. Its result counts only if
	// ctx has not ended.
	run(ctx context.Context, i int)
	report(r *Report)
}

func (e *Experiment) study(r *Report) study {
	switch e.Kind {
	case kindChurn:
		return newChurnStudy(e, r)
	case kindReplay:
		return newReplayStudy(e, r)
	case kindFailures:
		return newFailureStudy(e, r)
	case kindSize:
		return newSizeStudy(e, r)
	}
	return newFillStudy(e)
}

// checkEvery is how many jobs a simulation runs between two looks at its context.
const checkEvery = 1024

// until returns the jobs of next until ctx ends.
func until(ctx context.Context, next func() (stay, bool)) func() (stay, bool) {
	n := 0
	return func() (stay, bool) {
		if n++; n%checkEvery == 0 && ctx.Err() != nil {
			return stay{}, false
		}
		return next()
	}
}

// parallel calls run for 0 to n-1 on all processors until the context ends.
func parallel(ctx context.Context, n int, run func(ctx context.Context, i int), done func(n, of int)) error {
	jobs := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	finished := 0
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := range jobs {
				run(ctx, i)
				mu.Lock()
				finished++
				if done != nil {
					done(finished, n)
				}
				mu.Unlock()
			}
		})
	}
	for i := range n {
		select {
		case jobs <- i:
		case <-ctx.Done():
		}
	}
	close(jobs)
	wg.Wait()
	if ctx.Err() != nil {
		return errors.Join(errors.New("interrupted"), context.Cause(ctx))
	}
	return nil
}

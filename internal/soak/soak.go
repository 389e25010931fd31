// Package soak runs a host proxy and a box proxy under random faults for as
// long as it is told, and keeps account: every byte that was asked for has
// come, or its loss was reported and had a cause; every posted write came once
// and in order; and nothing grows. "dxpu bench soak" prints what it finds.
//
// Everything random comes from one seed: what befalls the network and the
// proxies and when, and what each host does. How the two meet is up to the
// machine, so a seed repeats a run nearly, not exactly.
package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// Options of a run. Zero values stand for the defaults.
type Options struct {
	Duration time.Duration // default an hour
	Seed     uint64        // 0: a random one, which the report tells
	Bindings int           // default 4: half of an embedded host, half of vfio-user clients
	// Progress is told how the run stands, every Every; nil: nobody.
	Progress func(format string, args ...any)
	Every    time.Duration // default 10 s
}

// MaxBindings bounds Options.Bindings.
const MaxBindings = 32

func (o Options) withDefaults() Options {
	if o.Duration == 0 {
		o.Duration = time.Hour
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() >> 32 // short enough to be typed again
	}
	if o.Bindings == 0 {
		o.Bindings = 4
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	return o
}

// Report is what a run found.
type Report struct {
	OK         bool           `json:"ok"`
	Seed       uint64         `json:"seed"`
	DurationNS int64          `json:"duration_ns"`
	Bindings   int            `json:"bindings"`
	Account    Account        `json:"account"`
	Faults     map[string]int `json:"faults"` // how often each kind was done
	// ExcusedNS is how much of the run was near something that may end bindings;
	// in the rest nothing may be lost.
	ExcusedNS int64 `json:"excused_ns"`
	// Stalls are how often this machine let nothing run for a quarter of a
	// second, and the longest: they excuse losses, too.
	Stalls       int      `json:"stalls"`
	LongestStall int64    `json:"longest_stall_ns"`
	Samples      []Sample `json:"samples"` // at rest, after each part of the run
	// Violations are what must not be; the first hundred of them.
	Violations []string `json:"violations,omitempty"`
	// Goroutines is where they stood when there were too many or one was stuck.
	Goroutines string `json:"goroutines,omitempty"`
}

// run is one run.
type run struct {
	opts    Options
	began   time.Time
	cluster *cluster
	chaos   *chaos
	ledger  ledger
	watch   stallWatch
	samples []Sample
}

const (
	// A run is cut into parts. After each all bindings are detached and what
	// the proxies hold is counted.
	leastPart, mostPart = 10 * time.Second, time.Minute
	partsOfRun          = 6
	// stuckAfter bounds everything that must end.
	stuckAfter = 60 * time.Second
)

// Run soaks until the time is over or ctx ends. The error says that the run
// could not be made; what it found, violations too, is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if o.Bindings < 2 || o.Bindings > MaxBindings {
		return nil, fmt.Errorf("soak: %d bindings: want 2 to %d", o.Bindings, MaxBindings)
	}
	dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &run{opts: o, began: time.Now()}
	r.ledger.began = r.began
	if r.cluster, err = newCluster(o.Bindings, dir); err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	defer r.cluster.close()
	r.chaos = newChaos(r.cluster, &r.ledger, o.Seed)
	stop := r.background()
	r.parts(ctx)
	stop()
	return r.report(), nil
}

// background starts what watches the run; stop ends it.
func (r *run) background() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.watch.run(ctx, &r.ledger) })
	wg.Go(func() {
		tick := time.NewTicker(r.opts.Every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				a := r.ledger.total()
				r.opts.Progress("%v: %s verified, %s lost in %d sessions of %d, %d posted writes, %d faults, %d violations",
					time.Since(r.began).Round(time.Second), size(a.Done), size(a.Lost), a.LostSessions, a.Sessions, a.PostedWrites,
					r.chaos.total(), r.ledger.violationCount())
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// parts runs the parts of the run.
func (r *run) parts(ctx context.Context) {
	length := min(max(r.opts.Duration/partsOfRun, leastPart), mostPart)
	deadline := r.began.Add(r.opts.Duration)
	for n := uint64(0); ctx.Err() == nil; n++ {
		left := time.Until(deadline)
		if left < leastPart/2 && n > 0 || left <= 0 {
			break
		}
		if !r.part(ctx, n, min(length, left)) {
			return
		}
		r.samples = append(r.samples, takeSample(time.Since(r.began)))
	}
	r.checkGrowth()
}

// part lets everybody work for a while and brings all to rest. It returns false
// when that could not be done.
func (r *run) part(ctx context.Context, n uint64, length time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var bad, work sync.WaitGroup
	chaosCtx, calm := context.WithCancel(ctx)
	bad.Go(func() { r.chaos.run(chaosCtx) })
	stop := make(chan struct{})
	for slot := range r.opts.Bindings {
		w := newWorker(r.cluster, &r.ledger, slot, rand.New(rand.NewPCG(r.opts.Seed, n<<16|uint64(slot))))
		work.Go(func() { w.run(stop) })
	}
	<-ctx.Done()
	calm()
	bad.Wait()
	close(stop)
	rest := make(chan struct{})
	go func() {
		work.Wait()
		close(rest)
	}()
	timer := time.NewTimer(stuckAfter)
	defer timer.Stop()
	select {
	case <-rest:
		return true
	case <-timer.C:
		r.ledger.stuck("a host was still at work %v after it was told to stop", stuckAfter)
		return false
	}
}

func (r *run) report() *Report {
	rep := &Report{
		Seed: r.opts.Seed, DurationNS: time.Since(r.began).Nanoseconds(), Bindings: r.opts.Bindings,
		Account: r.ledger.total(), Faults: r.chaos.kinds(), Samples: r.samples,
	}
	rep.ExcusedNS = r.ledger.excused.Nanoseconds()
	rep.Stalls, rep.LongestStall = r.watch.stalls, r.watch.longest.Nanoseconds()
	if a := rep.Account; a.Asked != a.Done+a.Lost {
		r.ledger.violate("%d bytes were asked for, %d came and the loss of %d was reported", a.Asked, a.Done, a.Lost)
	}
	rep.Violations, rep.Goroutines = r.ledger.violations, r.ledger.stacks
	rep.OK = len(rep.Violations) == 0
	return rep
}

// size prints bytes.
func size(n uint64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d B", n)
}

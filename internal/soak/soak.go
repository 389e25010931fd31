// Package soak runs a host proxy and two box proxies under random faults for a given
// time and checks that every requested byte arrives or its loss is reported and has
// a cause, that every posted write arrives once and in order, and that the use of
// memory, goroutines and file descriptors does not grow. "dxpu bench soak" prints
// the report.
//
// The faults, their times and the work of each host come from one seed. Their
// relative timing depends on the machine, so a seed does not repeat a run exactly.
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
	Seed     uint64        // 0: a random one; see Report.Seed
	Bindings int           // default 8: half of an embedded host, half of vfio-user clients
	Busy     int           // processes beside the run that keep a processor busy; the caller starts them
	// Progress, if set, gets a line about the run every Every.
	Progress func(format string, args ...any)
	Every    time.Duration // default 10 s
}

// Limits of Options.Bindings: with fewer there is no device server, and no pair of GPUs in two boxes.
const MinBindings, MaxBindings = 2 * layoutPeriod, 64

func (o Options) withDefaults() Options {
	if o.Duration == 0 {
		o.Duration = time.Hour
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() >> 32 // short enough to type
	}
	if o.Bindings == 0 {
		o.Bindings = MinBindings
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Every == 0 {
		o.Every = 10 * time.Second
	}
	return o
}

// Report is the result of a run.
type Report struct {
	OK         bool           `json:"ok"`
	Seed       uint64         `json:"seed"`
	DurationNS int64          `json:"duration_ns"`
	Bindings   int            `json:"bindings"`
	Busy       int            `json:"busy"`
	Account    Account        `json:"account"`
	Faults     map[string]int `json:"faults"` // number of each kind
	// ExcusedNS is the part of the run near a fault that may end bindings; in the
	// rest nothing may be lost.
	ExcusedNS int64 `json:"excused_ns"`
	// Stalls counts the times when the machine did not run the process for an eighth
	// of a second; LongestStall is the longest. They excuse losses too.
	Stalls       int      `json:"stalls"`
	LongestStall int64    `json:"longest_stall_ns"`
	Samples      []Sample `json:"samples"` // at rest, after each part of the run
	// Violations are the first hundred violations.
	Violations []string `json:"violations,omitempty"`
	// Goroutines holds the stacks of all goroutines when there were too many or one
	// was stuck.
	Goroutines string `json:"goroutines,omitempty"`
}

// run is one run.
type run struct {
	opts    Options
	began   time.Time
	cluster *cluster
	chaos   *chaos
	ledger  ledger
	peers   *peers
	watch   stallWatch
	samples []Sample
}

const (
	// A run consists of parts. After each part all bindings are detached and a sample
	// is taken.
	leastPart, mostPart = 10 * time.Second, time.Minute
	partsOfRun          = 6
	// stuckAfter is the limit of the end of a part.
	stuckAfter = 60 * time.Second
)

// Run runs until o.Duration is over or ctx ends. It returns an error if the run
// could not start; violations are in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	if o.Bindings < MinBindings || o.Bindings > MaxBindings {
		return nil, fmt.Errorf("soak: %d bindings: want %d to %d", o.Bindings, MinBindings, MaxBindings)
	}
	dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &run{opts: o, began: time.Now(), peers: newPeers()}
	r.ledger.began, r.ledger.progress = r.began, o.Progress
	if r.cluster, err = newCluster(o.Bindings, dir); err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	defer r.cluster.close()
	r.chaos = newChaos(r.cluster, &r.ledger, r.watch.grace, o.Seed)
	stop := r.background()
	r.parts(ctx)
	stop()
	return r.report(), nil
}

// background starts the progress and the detection of stalls; stop ends them.
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

// parts runs all parts.
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

// part runs the workers and the faults for a time and then stops them. It returns
// false if a worker does not stop.
func (r *run) part(ctx context.Context, n uint64, length time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	var bad, work sync.WaitGroup
	chaosCtx, calm := context.WithCancel(ctx)
	bad.Go(func() { r.chaos.run(chaosCtx) })
	stop := make(chan struct{})
	for slot := range r.opts.Bindings {
		w := &worker{cluster: r.cluster, ledger: &r.ledger, peers: r.peers, slot: slot, rand: rand.New(rand.NewPCG(r.opts.Seed, n<<16|uint64(slot)))}
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
		r.ledger.stuck("a worker still runs %v after the end of its part", stuckAfter)
		return false
	}
}

func (r *run) report() *Report {
	rep := &Report{
		Seed: r.opts.Seed, DurationNS: time.Since(r.began).Nanoseconds(), Bindings: r.opts.Bindings, Busy: r.opts.Busy,
		Account: r.ledger.total(), Faults: r.chaos.kinds(), Samples: r.samples,
	}
	rep.Stalls, rep.LongestStall = r.watch.stalls, r.watch.longest.Nanoseconds()
	if a := rep.Account; a.Asked != a.Done+a.Lost {
		r.ledger.violate("%d bytes were requested, %d arrived and %d were reported lost", a.Asked, a.Done, a.Lost)
	}
	r.ledger.end(rep)
	rep.OK = len(rep.Violations) == 0
	return rep
}

// size formats a number of bytes.
func size(n uint64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d B", n)
}

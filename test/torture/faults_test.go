package torture

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// fault is a disturbance. inject returns the function that heals it.
type fault struct {
	name string
	// least is the least time until it is healed, also beyond the end of the storm.
	least  time.Duration
	inject func(p *pool, r *rand.Rand) (heal func() error, err error)
}

// faults lists all disturbances. Each heal restores the state before.
var faults = []fault{
	{name: "manager killed", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		m := p.pick(r)
		return m.start, m.kill()
	}},
	{name: "leader killed", inject: func(p *pool, _ *rand.Rand) (func() error, error) {
		m := p.leader()
		return m.start, m.kill()
	}},
	{name: "all managers killed", inject: func(p *pool, _ *rand.Rand) (func() error, error) {
		for _, m := range p.managers {
			if err := m.kill(); err != nil {
				return nil, err
			}
		}
		return func() error {
			for _, m := range p.managers {
				if err := m.start(); err != nil {
					return err
				}
			}
			return nil
		}, nil
	}},
	{name: "leader paused for longer than its lease", least: 2 * leaderLease, inject: func(p *pool, _ *rand.Rand) (func() error, error) {
		return pause(p.leader())
	}},
	{name: "manager paused", inject: func(p *pool, r *rand.Rand) (func() error, error) { return pause(p.pick(r)) }},
	{name: "leader paused", inject: func(p *pool, _ *rand.Rand) (func() error, error) { return pause(p.leader()) }},
	{name: "two managers cut off from each other", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		a := r.IntN(len(p.managers))
		b := (a + 1 + r.IntN(len(p.managers)-1)) % len(p.managers)
		return p.cutAll([2]int{a, b})
	}},
	{name: "leader cut off from the other managers", inject: func(p *pool, _ *rand.Rand) (func() error, error) {
		var pairs [][2]int
		l := p.leader().index
		for i := range p.managers {
			if i != l {
				pairs = append(pairs, [2]int{l, i})
			}
		}
		return p.cutAll(pairs...)
	}},
	{name: "manager cut off from some nodes and clients", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		m := p.pick(r)
		var cut []string
		heal := func() (err error) {
			for _, to := range cut {
				if e := p.net.mend(m.index, to); e != nil {
					err = e
				}
			}
			return err
		}
		for i := range len(p.nodes) + callers {
			if r.IntN(2) == 0 {
				continue
			}
			to := p.net.other(i + 1)
			if err := p.net.cut(m.index, to); err != nil {
				return heal, err
			}
			cut = append(cut, to)
		}
		return heal, nil
	}},
	{name: "clock jumps", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		m := p.pick(r)
		by := time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour
		return func() error { return m.jump(0) }, m.jump(by)
	}},
	{name: "disk full", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		m := p.pick(r)
		return func() error {
			return cmp.Or(m.emptyDisk(), p.revive())
		}, m.fillDisk()
	}},
	{name: "node restarts", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		n := p.nodes[r.IntN(len(p.nodes))]
		n.halt()
		return n.start, nil
	}},
	{name: "node restarts with old state", inject: func(p *pool, r *rand.Rand) (func() error, error) {
		return func() error { return nil }, p.nodes[r.IntN(len(p.nodes))].restart(true)
	}},
}

func pause(m *manager) (func() error, error) {
	return func() error { return m.signal(syscall.SIGCONT) }, m.signal(syscall.SIGSTOP)
}

// cutAll separates pairs of managers from each other.
func (p *pool) cutAll(pairs ...[2]int) (func() error, error) {
	for _, pair := range pairs {
		if err := p.net.cut(pair[0], p.net.manager(pair[1])); err != nil {
			return nil, err
		}
	}
	return func() error {
		for _, pair := range pairs {
			if err := p.net.mend(pair[0], p.net.manager(pair[1])); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// storm injects faults one after another, some of them at the same time, until
// ctx ends, and then heals them. It returns a line for each.
func (p *pool) storm(ctx context.Context, r *rand.Rand) (log []string, err error) {
	start := time.Now()
	for ctx.Err() == nil && err == nil {
		var heals []func() error
		var least time.Duration
		names := map[string]bool{}
		for range 1 + r.IntN(2) {
			f := faults[r.IntN(len(faults))]
			if len(names) > 0 && (names[f.name] || f.name != "clock jumps" && f.name != "node restarts") {
				continue // one fault of the managers at a time: a heal relies on the state that inject left
			}
			names[f.name] = true
			least = max(least, f.least)
			heal, e := f.inject(p, r)
			if e != nil {
				err = fmt.Errorf("%s: %w", f.name, e)
			}
			if heal != nil {
				heals = append(heals, heal)
			}
			log = append(log, fmt.Sprintf("%6.3f s: %s", time.Since(start).Seconds(), f.name))
		}
		began := time.Now()
		wait(ctx, time.Duration(200+r.IntN(2500))*time.Millisecond)
		if least > 0 {
			wait(context.WithoutCancel(ctx), least-time.Since(began))
		}
		for _, heal := range heals {
			if e := heal(); e != nil && err == nil {
				err = fmt.Errorf("heal %v: %w", log[len(log)-1], e)
			}
		}
		log = append(log, fmt.Sprintf("%6.3f s: healed", time.Since(start).Seconds()))
		wait(ctx, time.Duration(r.IntN(1000))*time.Millisecond)
		err = cmp.Or(err, p.revive())
	}
	return log, err
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

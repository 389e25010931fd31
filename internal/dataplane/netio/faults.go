package netio

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/fault"
)

// SetFault replaces the fault plan of a path from now on, except for the restarts and
// jumps of PathConfig.Fault, and refuses a plan that has any. The plan's times count
// from Open, as those of PathConfig.Fault do.
func (f *Fabric) SetFault(path int, plan fault.Plan, seed uint64) error {
	if path < 0 || path >= len(f.paths) {
		return fmt.Errorf("netio: no path %d: there are %d", path, len(f.paths))
	}
	if len(plan.Restarts) > 0 || len(plan.Jumps) > 0 {
		return fmt.Errorf("netio: path %d: restarts and jumps are set when the fabric is opened", path)
	}
	f.paths[path].setFault(plan, seed)
	return nil
}

// Jump advances the clock of this fabric, as a stopped process or a suspended
// machine finds it when it resumes: all timers that have become due fire at
// once. It is for tests.
func (f *Fabric) Jump(by time.Duration) {
	if by <= 0 {
		return
	}
	f.ahead.Add(int64(by))
	for _, r := range *f.routes.Load() {
		g := r.Gate
		e := g.Enter()
		g.alarm.stop() // the timer does not know of the jump
		g.Leave(e)
	}
}

// execute carries out the restarts and jumps of a fault plan, until ctx ends.
func (f *Fabric) execute(ctx context.Context, plan fault.Plan) error {
	type event struct {
		at time.Duration
		do func()
	}
	var events []event
	for _, at := range plan.Restarts {
		events = append(events, event{at, f.restart})
	}
	for _, j := range plan.Jumps {
		events = append(events, event{j.At, func() { f.Jump(j.By) }})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for _, e := range events {
		timer.Reset(e.at - time.Since(f.start)) // jumps do not advance the next event
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			e.do()
		}
	}
	return nil
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// errTimeout is the cause of the end of a --wait, and of the exit code exitTimeout.
var errTimeout = errors.New("timeout")

// leaseWait waits for a lease and prints what happens meanwhile, on standard error: the
// ID at once, then each change of the state and of what the lease waits for.
type leaseWait struct {
	api   poolAPI
	says  *notices
	out   io.Writer
	limit time.Duration
	done  func(*dxpuv1.Lease) bool // the lease is as the command wants it

	last string // line printed last
}

// progress prints the state of a lease if it differs from the last one.
func (w *leaseWait) progress(l *dxpuv1.Lease) {
	line := oneLine(fmt.Sprintf("%s is %s: %s", l.Id, enumWord(l.State), l.StateReason))
	if line != w.last {
		w.last = line
		fmt.Fprintln(w.out, line)
	}
}

// run returns the lease once it is done, and an error when the lease ends before, when
// the time is over, or when the user interrupts the command. In the last two cases the
// manager continues.
func (w *leaseWait) run(outer context.Context, l *dxpuv1.Lease) (*dxpuv1.Lease, error) {
	w.progress(l)
	ctx, cancel := context.WithTimeoutCause(outer, w.limit, errTimeout)
	defer cancel()
	// The watch is open before the lease is read, so that no change is missed.
	watch, err := awaitWatch(ctx, w.api, w.says, &dxpuv1.WatchEventsRequest{Filter: &dxpuv1.EventFilter{LeaseId: l.Id}})
	if err == nil {
		err = watch.follow(ctx, func(*dxpuv1.Event) error {
			err := untilAnswered(ctx, w.says, func(ctx context.Context) error {
				res, err := callOn(ctx, w.api, poolAPI.GetLease, &dxpuv1.GetLeaseRequest{LeaseId: l.Id})
				if err == nil {
					l = res.Lease
				}
				return err
			})
			if err != nil {
				return err
			}
			switch {
			case w.done(l):
				return errWatched
			case hasState(dxpuv1.LeaseState_LEASE_STATE_FAILED, dxpuv1.LeaseState_LEASE_STATE_RELEASED)(l):
				return withHint(fmt.Errorf("lease %s is %s: %s", l.Id, enumWord(l.State), l.StateReason), "dxpu describe lease %s", l.Id)
			}
			w.progress(l)
			return nil
		})
	}
	if err != nil {
		return nil, w.ended(outer, ctx, l, err)
	}
	return l, nil
}

// ended returns the error of a wait that ended before the lease was done.
func (w *leaseWait) ended(outer, ctx context.Context, l *dxpuv1.Lease, err error) error {
	switch {
	case outer.Err() != nil:
		return withHint(fmt.Errorf("%w: lease %s is %s, and the manager continues", errInterrupted, l.Id, enumWord(l.State)),
			`"dxpu describe lease %s" shows it, "dxpu lease delete %s" ends it`, l.Id, l.Id)
	case timedOut(ctx, err):
		return w.says.timeout(w.limit, withHint(fmt.Errorf("%w: lease %s is %s after %s, and the manager continues: %s", errTimeout, l.Id, enumWord(l.State), w.limit, l.StateReason),
			`"dxpu lease explain %s" says what it waits for, "dxpu lease delete %s" ends it`, l.Id, l.Id))
	}
	return err
}

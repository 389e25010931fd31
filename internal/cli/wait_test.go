package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A wait prints each state and obstacle once.
func TestWaitProgress(t *testing.T) {
	var out strings.Builder
	w := leaseWait{out: &out}
	for _, reason := range []string{"a", "a", "waiting for host h1: no VM runs", "waiting for host h1: no VM runs", "a"} {
		w.progress(&dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_BINDING, StateReason: reason})
	}
	if want := "l-1 is binding: a\nl-1 is binding: waiting for host h1: no VM runs\nl-1 is binding: a\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

// An interruption, the end of the time and another error have different exit codes.
func TestWaitEnds(t *testing.T) {
	l := &dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_PENDING, StateReason: "in the queue: no GPU is free"}
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	late, cancel := context.WithTimeoutCause(t.Context(), 0, errTimeout)
	defer cancel()
	for _, c := range []struct {
		name       string
		outer, ctx context.Context
		err        error
		code       int
		says       string
	}{
		{"interrupted", interrupted, interrupted, context.Canceled, 130, "interrupted: lease l-1 is pending, and the manager continues"},
		{"timeout", t.Context(), late, context.DeadlineExceeded, 4, "lease l-1 is pending after 0s, and the manager continues: in the queue: no GPU is free"},
		{"other", t.Context(), t.Context(), errors.New("no route"), 1, "no route"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := (&leaseWait{}).ended(c.outer, c.ctx, l, c.err)
			if got := exitCode(err); got != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("exit code %d, %v; want %d, %s", got, err, c.code, c.says)
			}
		})
	}
}

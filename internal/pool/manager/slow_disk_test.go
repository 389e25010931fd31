package manager

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A disk that takes seconds for each sync makes no node lost, and calls have a clear answer within
// their deadline.
func TestSlowDisk(t *testing.T) {
	for _, takes := range []time.Duration{200 * time.Millisecond, time.Second, 3 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { slowDisk(t, takes) }) })
	}
}

func slowDisk(t *testing.T, takes time.Duration) {
	w := newStallWorld(t)
	w.store.takes.Store(int64(takes))
	w.change.Store(true) // each report waits for the disk
	time.Sleep(time.Minute)
	w.wantNoLoss(t, "a slow disk")
	call := func(deadline time.Duration, do func(context.Context) error) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		began := time.Now()
		err := do(ctx)
		return time.Since(began), err
	}
	create := func(ctx context.Context) error {
		_, err := w.api().CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1, Wait: true}}))
		return err
	}
	list := func(ctx context.Context) error {
		_, err := w.api().ListBoxes(ctx, connect.NewRequest(&dxpuv1.ListBoxesRequest{}))
		return err
	}
	for name, do := range map[string]func(context.Context) error{"a change": create, "a read": list} {
		if d, err := call(10*time.Second, do); err != nil || d > 2*takes+100*time.Millisecond {
			t.Errorf("%s takes %v, %v", name, d, err)
		}
		short := takes / 4
		d, err := call(short, do)
		if d > short || connect.CodeOf(err) != connect.CodeDeadlineExceeded {
			t.Errorf("%s with a deadline of %v takes %v, %v", name, short, d, err)
		}
		if err != nil && (strings.Contains(err.Error(), "lead") || !strings.Contains(err.Error(), "the call ended before")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.store.takes.Store(0)
	time.Sleep(5 * time.Second)
	w.wantNoLoss(t, "a disk that was slow")
}

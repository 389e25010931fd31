package manager

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A watch reads the open leases a page at a time: other calls are served in between, and
// it goes on from the state of the first page, so that it misses no change.
func TestWatchReadsPages(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1))
	const leases = 2*watchPage + 17
	var ids []string
	for range leases {
		ids = append(ids, w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true}))
	}
	sent := map[string]int{}
	var began, deleted uint64
	n := 0
	revision, err := w.m.sendOpenLeases(operatorContext(), &dxpuv1.WatchLeasesRequest{}, func(m *dxpuv1.WatchLeasesResponse) error {
		if n++; n == 1 {
			began = w.m.state.meta.Revision
		}
		if n == watchPage { // between two pages, a lease of each ends
			for _, id := range []string{ids[0], ids[leases-1]} {
				if _, err := w.api().DeleteLease(context.Background(), connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id})); err != nil {
					return err
				}
			}
			deleted = w.m.state.meta.Revision
		}
		if m.Revision != 0 && n != leases-1 {
			t.Errorf("message %d of %d has revision %d", n, leases-1, m.Revision)
		}
		sent[m.Lease.Id]++
		return nil
	})
	if err != nil || revision != began || revision >= deleted {
		t.Errorf("the watch goes on from %d, want %d, before %d: %v", revision, began, deleted, err)
	}
	if len(sent) != leases-1 || sent[ids[leases-1]] != 0 {
		t.Errorf("%d leases were sent, want all but the one that has ended", len(sent))
	}
	for id, n := range sent {
		if n != 1 {
			t.Errorf("lease %s was sent %d times", id, n)
		}
	}
}

// A manager that remembers too many ended leases forgets them in steps.
func TestTakeoverForgetsInSteps(t *testing.T) {
	now := &clock{t: time.Unix(1_700_000_100, 0)}
	m, err := New(t.Context(), Config{JoinToken: "token-for-tests", KeepEnded: 50, Store: &MemoryStore{records: remembered(t, 500, false)}, Now: now.now})
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for before := m.state.leases.len(); m.unfinished(); steps++ {
		if err := m.update(t.Context(), func(*tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if gone := before - m.state.leases.len(); gone > maxForgotten {
			t.Fatalf("one transaction forgot %d leases", gone)
		}
		before = m.state.leases.len()
	}
	if n := m.state.leases.len(); n != 50 || steps < 451/maxForgotten {
		t.Errorf("%d leases are remembered after %d steps, want 50", n, steps)
	}
}

package manager

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// gatedStore waits at the gate before a commit, and returns the error from the gate.
type gatedStore struct {
	MemoryStore
	gate    chan error // nil: open
	commits int
}

func (s *gatedStore) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	s.commits++
	if s.gate != nil {
		if err := <-s.gate; err != nil {
			return err
		}
	}
	return s.MemoryStore.Commit(ctx, put, remove)
}

// gated is a world whose store waits at a gate.
func gated(t *testing.T, nodes ...*fakeNode) (*world, *gatedStore) {
	s := &gatedStore{}
	w := newWorld(t, Config{Store: s}, nodes...)
	s.gate = make(chan error)
	s.commits = 0
	return w, s
}

// The log has the events of all changes that were stored together, as the next leader reads them.
func TestEventsOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 8), boxNode("b1", 8))
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() { w.create(&dxpuv1.LeaseSpec{Count: 1}) })
			synctest.Wait() // until it waits for the store: the first alone, the others together
		}
		s.gate <- nil
		s.gate <- nil
		wg.Wait()
		s.gate = nil
		next, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: s, Now: w.clock.now})
		if err != nil {
			t.Fatal(err)
		}
		here, _, _, _ := w.m.events.after(0)
		stored, _, _, _ := next.events.after(0)
		if len(here) != len(stored) {
			t.Errorf("the log has %d events, the next leader's %d", len(here), len(stored))
		}
		created := 0
		for _, e := range here {
			if e.Type == dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED {
				created++
			}
		}
		if created != 6 {
			t.Errorf("%d events of six leases:\n%s", created, w.events())
		}
	})
}

// A change is not visible before it is stored, and the changes that gather meanwhile
// are stored together.
func TestChangesAreSeenWhenDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 8), boxNode("b1", 8))
		events := w.events()
		var wg sync.WaitGroup
		created := make(chan string, 8)
		for range 8 {
			wg.Go(func() { created <- w.create(&dxpuv1.LeaseSpec{Count: 1}) })
			synctest.Wait() // until the first is being stored and the others wait
		}
		seen := make(chan *dxpuv1.Pool, 1)
		wg.Go(func() { seen <- w.m.totals() })
		refused := make(chan error, 1)
		synctest.Wait()
		// The error depends on leases that are not durable: it waits as well.
		wg.Go(func() {
			_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
			refused <- err
		})
		synctest.Wait()
		if len(created) != 0 || len(refused) != 0 || w.events() != events {
			t.Errorf("%d leases, %d errors and events are seen before they are stored", len(created), len(refused))
		}
		s.gate <- nil
		synctest.Wait()
		if len(created) != 1 {
			t.Errorf("%d leases are acknowledged after the first commit, want 1", len(created))
		}
		s.gate <- nil
		wg.Wait()
		synctest.Wait()
		if len(created) != 8 || s.commits != 2 {
			t.Errorf("%d leases in %d commits, want 8 in 2", len(created), s.commits)
		}
		if p := <-seen; p.LeasesActive > 8 {
			t.Errorf("pool: %v", p)
		}
		if err := <-refused; connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("the ninth: %v", err)
		}
	})
}

// A batch that is lost takes along all changes that build on it, and none of them was
// visible.
func TestLostBatchTakesItsFollowersAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 4), boxNode("b1", 4))
		before := rebuiltNow(w)
		var wg sync.WaitGroup
		errs := make(chan error, 3)
		create := func() {
			_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
			errs <- err
		}
		wg.Go(create)
		synctest.Wait()
		wg.Go(create)
		wg.Go(func() { errs <- w.m.view(func(*tx) error { return nil }) })
		synctest.Wait()
		s.gate <- errors.New("disk full")
		wg.Wait()
		synctest.Wait()
		for range 3 {
			err := <-errs
			if connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "disk full") {
				t.Errorf("got %v", err)
			}
		}
		if w.m.stateErr == nil {
			t.Error("readyz does not report it")
		}
		if after := rebuiltNow(w); len(after) != len(before) {
			t.Errorf("%d records, want %d", len(after), len(before))
		}
		w.checkIndex(t)
		s.gate = nil
		w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 4}), leaseBinding)
		w.settle()
		if p := w.m.totals(); p.GpusBound != 4 || p.GpusFree != 0 {
			t.Errorf("pool: %v", p)
		}
	})
}

// The queue in front of the store is bounded, and the error says so.
func TestStoreQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 1))
		var wg sync.WaitGroup
		touch := func() error {
			return w.m.update(context.Background(), func(t *tx) error {
				t.touch("h1")
				return nil
			})
		}
		wg.Go(func() { _ = touch() })
		synctest.Wait() // until this one is being stored and the others wait
		for range maxWaiting {
			wg.Go(func() { _ = touch() })
		}
		synctest.Wait()
		err := touch()
		if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "try again") {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.m.viewIn(ctx, func(*tx) error { return nil }); connect.CodeOf(err) != connect.CodeCanceled {
			t.Errorf("a read that is not waited for: %v", err)
		}
		for range 1 + maxWaiting/maxBatch {
			s.gate <- nil
		}
		wg.Wait()
		synctest.Wait()
	})
}

func TestRecordVersions(t *testing.T) {
	lease := `"id":"l-7","spec":{"count":1},"state":1,"create_time":"2026-01-01T00:00:00Z"`
	tests := []struct{ name, key, raw, want string }{
		{"of the previous version", "lease/l-7", `{` + lease + `}`, ""},
		{"of this version", "lease/l-7", `{"v":1,` + lease + `}`, ""},
		{"of a later version", "lease/l-7", `{"v":2,` + lease + `}`, "record lease/l-7: it has version 2 and this program knows versions up to 1: run the program"},
		{"of a later kind", "dream/d-1", `{}`, "record dream/d-1: unknown kind: a later version"},
		{"damaged", "lease/l-7", `{`, "record lease/l-7: unexpected end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &MemoryStore{records: map[string][]byte{tt.key: []byte(tt.raw)}}
			m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: s})
			if tt.want == "" && (err != nil || m.state.leases.get("l-7").spec.Count != 1) {
				t.Fatal(err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

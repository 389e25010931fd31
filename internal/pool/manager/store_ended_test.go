package manager

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// kinds counts the records of a store by their kind.
func kinds(s *MemoryStore) map[string]int {
	n := map[string]int{}
	for key := range s.records {
		kind, _, _ := strings.Cut(key, "/")
		n[kind]++
	}
	return n
}

// A lease that has ended becomes one record with its bindings, and is the same lease for
// the next manager and for a repeated call.
func TestEndedLeaseIsOneRecord(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 4))
	spec := &dxpuv1.LeaseSpec{Count: 2, Labels: map[string]string{"job": "x"}}
	const request = "request-1"
	id := ""
	if err := w.m.update(t.Context(), func(t *tx) error {
		if err := checkSpec(spec); err != nil {
			return err
		}
		l, err := t.createLease(request, spec)
		id = l.ID
		return err
	}); err != nil {
		t.Fatal(err)
	}
	open := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.delete(id, true)
	w.settle()
	was := w.lease(id)
	if n := kinds(store); n["lease"] != 1 || n["binding"] != 1 || n["ended"] != 1 {
		t.Fatalf("records: %v, want one lease, one binding and one ended", n)
	}
	if was.State != leaseReleased || len(was.Bindings) != 2 {
		t.Fatalf("the lease is %v", was)
	}
	m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	w.m = m
	if now := w.lease(id); !proto.Equal(was, now) {
		t.Errorf("after a takeover:\n%v\nwant\n%v", now, was)
	}
	w.wantLease(open, leaseActive)
	w.checkIndex(t)
	err = m.update(t.Context(), func(t *tx) error {
		if l, err := t.leaseByRequest(request, "default"); err != nil || l == nil || l.ID != id {
			return fmt.Errorf("a repeated call finds %v, %v", l, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Beside managers of another version a lease that ends keeps the records that they can
// read.
func TestEndedLeaseBesideAnOlderManager(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 4))
	id := w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.settle()
	w.m.state.alike = false
	w.delete(id, true)
	for range 8 {
		w.m.state.alike = false // the clock's ticks set it
		w.rounds(1)
		w.m.state.alike = false
	}
	if n := kinds(store); n["ended"] != 0 || n["lease"] != 1 {
		t.Errorf("records: %v", n)
	}
}

// takeover makes a pool with n leases that have ended, of which another manager becomes
// the leader. The leases are read when the result is closed.
func takeover(t *testing.T, n int) (w *team, leader string, read chan struct{}) {
	w = newTeam(t, "a", "b")
	read = make(chan struct{})
	w.election.mu.Lock()
	for key, raw := range remembered(t, n, true) {
		if strings.HasPrefix(key, endedPrefix) {
			w.election.records[key] = raw
		}
	}
	for _, m := range w.members {
		m.ended = read
	}
	w.election.mu.Unlock()
	w.election.depose(true)
	time.Sleep(time.Second)
	return w, w.leader(), read
}

// A manager that takes over answers before it reads the leases that have ended: it reads
// as many records as in a pool without any.
func TestTakeoverDoesNotWaitForEndedLeases(t *testing.T) {
	loaded := map[int]int{}
	for _, n := range []int{0, 500} {
		synctest.Test(t, func(t *testing.T) {
			w, leader, read := takeover(t, n)
			defer close(read)
			loaded[n] = w.members[leader].loaded
			for method, body := range map[string]string{
				"CreateLease": `{"requestId":"new","spec":{"count":1,"wait":true}}`, "ListLeases": `{}`, "GetPool": `{}`, "ListEvents": `{}`,
			} {
				w.want(w.call(leader, "PoolService/"+method, body), 200, "{")
			}
			if err := w.managers[leader].Tick(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	if loaded[0] != loaded[500] || loaded[0] == 0 {
		t.Errorf("records read before the first answer, by ended leases: %v", loaded)
	}
}

// Until the leases that have ended are in memory, a repeated CreateLease finds that of
// its first attempt, and other calls that need one wait.
func TestCallsWaitForEndedLeases(t *testing.T) {
	const spec = `"spec":{"count":2,"labels":{"job":"training-run-of-the-week","owner":"somebody@example.com"}}`
	synctest.Test(t, func(t *testing.T) {
		w, leader, read := takeover(t, 20)
		w.want(w.call(leader, "PoolService/CreateLease", `{"requestId":"request-7-of-a-program",`+spec+`}`), 200, `"id":"l-1000007"`)
		w.want(w.call(leader, "PoolService/CreateLease", `{"requestId":"request-7-of-a-program","spec":{"count":1}}`), 409, "was used for another spec by lease l-1000007")
		waiting := map[string]string{
			`GetLease {"leaseId":"l-1000008"}`:                     `"id":"l-1000008"`,
			`DeleteLease {"leaseId":"l-1000009"}`:                  `"id":"l-1000009"`,
			`GetLease {"leaseId":"l-999"}`:                         "not_found",
			`ListLeases {"includeEnded":true,"pageSize":1000}`:     `"id":"l-1000019"`,
			`ExplainLease {"leaseId":"l-1000010"}`:                 "The lease is released",
			`ReplaceGPU {"gpuId":"b1/0","requestId":"never used"}`: "not_found",
			`ResizeLease {"leaseId":"l-1000011","count":3}`:        "failed_precondition",
		}
		answers := map[string]chan *httptest.ResponseRecorder{}
		for c := range waiting {
			method, body, _ := strings.Cut(c, " ")
			got := make(chan *httptest.ResponseRecorder, 1)
			answers[c] = got
			go func() { got <- w.call(leader, "PoolService/"+method, body) }()
		}
		synctest.Wait()
		for c, got := range answers {
			if len(got) != 0 {
				t.Errorf("%s was answered before the leases were read: %s", c, (<-got).Body)
			}
		}
		if t.Failed() {
			return
		}
		w.want(w.call(leader, "PoolService/GetPool", `{}`), 200, "{")
		close(read)
		for c, text := range waiting {
			if got := (<-answers[c]).Body.String(); !strings.Contains(got, text) {
				t.Errorf("%s: %s, want %q", c, got, text)
			}
		}
	})
}

// Calls that wait for the leases that have ended leave turns to others, and outlive a
// change of the leader no longer than the leases are being read.
func TestWaitsForEndedLeasesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, leader, read := takeover(t, 20)
		answers := make(chan *httptest.ResponseRecorder, maxEndedWaits)
		for range maxEndedWaits {
			go func() { answers <- w.call(leader, "PoolService/GetLease", `{"leaseId":"l-1000008"}`) }()
		}
		synctest.Wait()
		w.want(w.call(leader, "PoolService/GetLease", `{"leaseId":"l-1000008"}`), 503, "still reads the leases that have ended")
		w.election.depose(true)
		time.Sleep(time.Second)
		close(read)
		synctest.Wait()
		for range maxEndedWaits {
			if got := <-answers; got.Code != 503 && got.Code != 200 {
				t.Errorf("got %d %s", got.Code, got.Body)
			}
		}
	})
}

// Leases that end while the others are being read are not read again, and nothing is
// forgotten meanwhile.
func TestLeaseEndsWhileOthersAreRead(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store, KeepEnded: 1}, hostNode("h1", 4), boxNode("b1", 4))
	first, second := w.create(&dxpuv1.LeaseSpec{Count: 1}), w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.delete(first, true)
	w.settle()
	w.m.mu.Lock()
	live, err := store.Load(t.Context(), endedPrefix)
	if err == nil {
		err = w.m.installLocked(live)
	}
	s := w.m.state
	w.m.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	w.delete(second, true)
	w.settle()
	old := s.leases.get(second)
	all, err := w.m.readEnded(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("%d ended leases are stored, %v", len(all), err)
	}
	w.m.addEnded(s, all)
	if s.leases.get(second) != old || s.leases.get(first) == nil {
		t.Error("the lease in memory was replaced, or the other one is missing")
	}
	w.checkIndex(t)
	w.settle()
	if s.leases.get(first) != nil || maps.Equal(kinds(store), map[string]int{}) || kinds(store)["ended"] != 1 {
		t.Errorf("the older lease was not forgotten: %v", kinds(store))
	}
}

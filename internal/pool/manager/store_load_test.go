package manager

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// remembered returns the records of a pool with n leases that have ended, each with two
// GPUs and the labels and explanations that leases have. They are single records, as
// earlier versions stored them, or packed.
func remembered(t fatalTester, n int, packed bool) map[string][]byte {
	t.Helper()
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 8), boxNode("b1", 8))
	id := w.create(&dxpuv1.LeaseSpec{Count: 2, Labels: map[string]string{"job": "training-run-of-the-week", "owner": "somebody@example.com"}})
	w.settle()
	w.delete(id, true)
	w.settle()
	l := *w.m.state.leases.get(id)
	out := maps.Clone(store.records)
	for i := range n {
		more := map[string]any{}
		c := l
		c.ID = fmt.Sprintf("l-%d", 1_000_000+i)
		c.RequestID = fmt.Sprintf("request-%d-of-a-program", i)
		c.EndTime = c.EndTime.Add(time.Duration(i%977) * time.Second)
		more[leasePrefix+c.ID] = &c
		pack := &endedRecord{Lease: &c}
		for j, bid := range w.m.state.bindingsByLease[id] {
			b := *w.m.state.bindings.get(bid)
			b.ID, b.LeaseID, b.Epoch = fmt.Sprintf("b-%d", 2_000_000+2*i+j), c.ID, uint64(2_000_000+2*i+j)
			more[bindingPrefix+b.ID] = &b
			pack.Bindings = append(pack.Bindings, &b)
		}
		if packed {
			more = map[string]any{endedKey(requestKey{c.spec.Tenant, c.RequestID}) + c.ID: pack}
		}
		put, _, err := encode(more)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		maps.Copy(out, put)
	}
	// The next IDs come after these.
	raw := strings.Replace(string(out[metaKey]), `"epoch":2`, `"epoch":4000000`, 1)
	out[metaKey] = []byte(raw)
	return out
}

// BenchmarkLoad measures a manager that becomes the leader of a pool that remembers
// ended leases: until it has made its first change, which must not depend on their number,
// until they are in memory, and until it has forgotten what is more than Config.KeepEnded.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{0, 50_000} {
		b.Run(fmt.Sprint("ended=", n), func(b *testing.B) {
			records := remembered(b, n, true)
			for b.Loop() {
				benchmarkLoad(b, records)
			}
		})
	}
}

func benchmarkLoad(b *testing.B, records map[string][]byte) {
	ctx := context.Background()
	m, err := New(ctx, Config{JoinToken: "token-for-tests", Now: func() time.Time { return time.Unix(1_700_000_100, 0) }})
	if err != nil {
		b.Fatal(err)
	}
	m.store = &MemoryStore{records: maps.Clone(records)}
	began := time.Now()
	report := func(name string, err error) {
		if err != nil {
			b.Fatal(name, err)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, name)
	}
	live, err := m.store.Load(ctx, endedPrefix)
	if err != nil {
		b.Fatal(err)
	}
	m.mu.Lock()
	err = m.installLocked(live)
	m.mu.Unlock()
	if err != nil {
		b.Fatal(err)
	}
	report("ms-to-first-change", m.update(ctx, func(*tx) error { return nil }))
	all, err := m.readEnded(ctx)
	m.addEnded(m.state, all)
	report("ms-to-ended", err)
	report("ms-to-settle", m.Tick(ctx))
	runtime.GC()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	b.ReportMetric(float64(ms.HeapAlloc)/(1<<20), "MiB")
	runtime.KeepAlive(m)
}

// A manager that takes over does not examine the leases that have ended, however many
// it remembers, and forgets them in time.
func TestTakeoverWithManyEndedLeases(t *testing.T) {
	for _, packed := range []bool{false, true} {
		t.Run(fmt.Sprint("packed=", packed), func(t *testing.T) { testManyEndedLeases(t, packed) })
	}
}

func testManyEndedLeases(t *testing.T, packed bool) {
	now := &clock{t: time.Unix(1_700_000_100, 0)}
	store := &MemoryStore{records: remembered(t, 500, packed)}
	m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: store, Now: now.now})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.state.dirty); n > 8 {
		t.Errorf("%d subjects are to be examined at the start", n)
	}
	if n := len(m.state.endedLeases); n != 501 {
		t.Errorf("%d ended leases are known, want 501", n)
	}
	if err := m.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2000 { // in steps, as the alarms are
		now.pass(5 * time.Second)
		if err := m.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if m.state.leases.len()+m.state.bindings.len() != 0 {
		t.Errorf("%d leases and %d bindings are remembered for ever", m.state.leases.len(), m.state.bindings.len())
	}
	for key := range store.records {
		if kind, _, _ := strings.Cut(key, "/"); kind == "ended" || kind == "lease" || kind == "binding" {
			t.Errorf("the store keeps %s", key)
		}
	}
}

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
// GPUs and the labels and explanations that leases have.
func remembered(t fatalTester, n int) map[string][]byte {
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
		for j, bid := range w.m.state.bindingsByLease[id] {
			b := *w.m.state.bindings.get(bid)
			b.ID, b.LeaseID, b.Epoch = fmt.Sprintf("b-%d", 2_000_000+2*i+j), c.ID, uint64(2_000_000+2*i+j)
			more[bindingPrefix+b.ID] = &b
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
// 50,000 ended leases: until it has read the state, until it has made its first change,
// and until it has forgotten what is more than Config.KeepEnded.
func BenchmarkLoad(b *testing.B) {
	records := remembered(b, 50_000)
	for b.Loop() {
		began := time.Now()
		m, err := New(context.Background(), Config{JoinToken: "token-for-tests", Store: &MemoryStore{records: maps.Clone(records)}, Now: func() time.Time { return time.Unix(1_700_000_100, 0) }})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s-to-load")
		if err := m.update(context.Background(), func(*tx) error { return nil }); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s-to-first-change")
		if err := m.Tick(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s-to-settle")
		runtime.GC()
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		b.ReportMetric(float64(ms.HeapAlloc)/(1<<20), "MiB")
		runtime.KeepAlive(m)
	}
}

// A manager that takes over does not examine the leases that have ended, however many
// it remembers, and forgets them in time.
func TestTakeoverWithManyEndedLeases(t *testing.T) {
	now := &clock{t: time.Unix(1_700_000_100, 0)}
	m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: &MemoryStore{records: remembered(t, 500)}, Now: now.now})
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
}

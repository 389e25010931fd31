package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// rebuilt returns an index that is built from the records alone.
func rebuilt(t *tx) *index {
	s := newState(t.began)
	copyRows(s.nodes.load, t.nodes.rows)
	copyRows(s.bindings.load, t.bindings.rows)
	copyRows(s.leases.load, t.leases.rows)
	fresh := &tx{state: s, now: t.now, heard: t.heard, cfg: t.cfg, live: t.live}
	fresh.indexAll()
	return &s.index
}

// checkSums compares the sums of the pool with those of a scan of all GPUs and leases.
func checkSums(t fatalTester, tx *tx) {
	t.Helper()
	got, want := &dxpuv1.Pool{}, &dxpuv1.Pool{ClusterId: tx.meta.ClusterID, Version: tx.cfg.Version, Revision: tx.meta.Revision}
	tx.addTotals(got)
	usable, free, local := map[string]int{}, map[string]int{}, map[string]int{}
	for id, n := range tx.nodes.rows {
		nodes, connected := &want.Hosts, &want.HostsConnected
		if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX {
			nodes, connected = &want.Boxes, &want.BoxesConnected
		}
		*nodes++
		if tx.connected(id) {
			*connected++
		}
		if n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
			continue
		}
		for _, g := range tx.boxMessage(n).Gpus {
			want.Gpus++
			switch ok := g.Health == dxpuv1.Health_HEALTH_OK && !g.Cordoned; {
			case ok && n.LocalPeer != "":
				local[g.Device.Model]++
			case ok:
				usable[g.Device.Model]++
			}
			switch g.State {
			case dxpuv1.GPUState_GPU_STATE_FREE:
				want.GpusFree++
				if n.LocalPeer == "" {
					free[g.Device.Model]++
				}
			case dxpuv1.GPUState_GPU_STATE_BOUND:
				want.GpusBound++
			case dxpuv1.GPUState_GPU_STATE_SHARED:
				want.GpusBound++
				want.GpusShared++
			default:
				want.GpusUnavailable++
			}
		}
	}
	for model := range local {
		usable[model] += 0 // it has a row, too
	}
	for model, n := range usable {
		s := &dxpuv1.SpareStatus{Model: model, Usable: uint32(n), Free: uint32(free[model]), Local: uint32(local[model])}
		if n > 0 {
			s.Wanted, s.Explanation = uint32(tx.cfg.Reserve.Held(n)), tx.cfg.Reserve.Explain(model, n)
		}
		s.Held = min(s.Wanted, s.Free)
		want.SparesHeld += s.Held
		want.Spares = append(want.Spares, s)
	}
	slices.SortFunc(want.Spares, func(a, b *dxpuv1.SpareStatus) int { return strings.Compare(a.Model, b.Model) })
	for _, l := range tx.leases.rows {
		switch {
		case l.State == leasePending:
			want.LeasesPending++
		case l.holds():
			want.LeasesActive++
			if l.State == leaseDegraded {
				want.LeasesDegraded++
			}
		}
	}
	for id := range tx.nodes.rows {
		for _, s := range tx.live[id].report().GetSlots() {
			switch use := s.Binding.GetUse(); {
			case !tx.connected(id):
			case use == dxpuv1.Use_USE_IDLE:
				want.GpusIdle++
			case use == dxpuv1.Use_USE_HELD:
				want.GpusHeld++
			case use == dxpuv1.Use_USE_BUSY:
				want.GpusBusy++
			}
		}
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Fatalf("sums (-one by one +index)\n%s", diff)
	}
}

func copyRows[R any](load func(string, *R), rows map[string]*R) {
	for id, r := range rows {
		load(id, r)
	}
}

// fieldDepth is the length of the path of a field of the index: the pointer to the index, the
// index, the field.
const fieldDepth = 3

// checkIndex compares the index with one that is rebuilt.
func (w *world) checkIndex(t fatalTester) {
	t.Helper()
	_ = w.m.view(func(tx *tx) error {
		diff := cmp.Diff(rebuilt(tx), &tx.index,
			cmp.AllowUnexported(index{}, tenantUsage{}, bindingEntry{}, leaseEntry{}, hostSlotRef{}, requestKey{}, queueKey{}, endedLease{}, nodeEntry{}, modelSum{}, sickGPU{}, deviceClaim{}, deviceKey{}, queueClass{}, queueLine{}, ask{}, gangKey{}, affinityKey{}, partRecord{}),
			cmpopts.IgnoreFields(index{}, "capacityGrew", "requestsChanged", "gpuPool", "hostPool", "hostIDs", "boxIDs", "leaseIDs", "openLeaseIDs"),
			cmpopts.IgnoreFields(leaseEntry{}, "spec", "asks"),
			cmpopts.IgnoreUnexported(placement.Box{}),
			cmpopts.EquateEmpty(),
			// Most are equal, which reflect finds out in a fraction of the time.
			cmp.FilterPath(func(p cmp.Path) bool { return len(p) == fieldDepth || len(p) == fieldDepth+1 },
				cmp.FilterValues(func(a, b any) bool { return reflect.DeepEqual(a, b) }, cmp.Ignore())),
			cmp.FilterPath(func(p cmp.Path) bool { // these are in the order of arrival
				if len(p) <= fieldDepth {
					return false
				}
				s := p.Index(fieldDepth - 1).String()
				return s == ".bindingsByGPU" || s == ".bindingsByHostSlot"
			}, cmpopts.SortSlices(func(a, b string) bool { return a < b })))
		if diff != "" {
			t.Fatalf("the index is not that of the records (-records +index)\n%s", diff)
		}
		// Placement is up to date: it gives the same answers as a scan.
		answers := cmpopts.IgnoreUnexported(placement.Decision{})
		var boxEntries []placement.Box
		var hostEntries []placement.Host
		for _, k := range tx.indexedNodes {
			if k.box {
				boxEntries = append(boxEntries, k.placementBox)
			} else {
				hostEntries = append(hostEntries, k.placementHost)
			}
		}
		for count := range 4 {
			tx.explained = 0 // each explanation is compared
			req := placement.Request{Count: count}
			if diff := cmp.Diff(placement.Place(boxEntries, tx.cfg.Reserve, req), tx.chooseGPUs(req), answers); diff != "" {
				t.Fatalf("placement of %d GPUs (-scan +index)\n%s", count, diff)
			}
			hosts := placement.HostRequest{Count: count}
			if diff := cmp.Diff(placement.PlaceHost(hostEntries, hosts), tx.chooseHost(hosts)); diff != "" {
				t.Fatalf("placement of %d host slots (-scan +index)\n%s", count, diff)
			}
		}
		for count := range 4 {
			req, host := placement.Request{Count: count, Uplinks: tx.fullUplinks}, placement.HostRequest{Count: count}
			d, h := placement.PlaceLease(boxEntries, hostEntries, tx.cfg.Reserve, req, host)
			d2, h2 := tx.gpuPool.PlaceLease(tx.hostPool, tx.cfg.Reserve, req, host)
			if diff := cmp.Diff(d, d2, answers) + cmp.Diff(h, h2); diff != "" {
				t.Fatalf("placement of a lease of %d GPUs (-scan +index)\n%s", count, diff)
			}
		}
		var hosts, boxes, open []string
		for id, n := range tx.nodes.rows {
			if n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST {
				hosts = append(hosts, id)
			} else {
				boxes = append(boxes, id)
			}
		}
		for id, l := range tx.leases.rows {
			if !l.ended() {
				open = append(open, id)
			}
		}
		for _, s := range []struct {
			got  *sequence
			want []string
		}{
			{&tx.hostIDs, hosts},
			{&tx.boxIDs, boxes},
			{&tx.openLeaseIDs, open},
			{&tx.leaseIDs, slices.Collect(maps.Keys(tx.leases.rows))},
		} {
			slices.SortFunc(s.want, s.got.compare)
			if got := slices.Collect(s.got.from("")); !slices.Equal(got, s.want) {
				t.Fatalf("listed %v, want %v", got, s.want)
			}
		}
		checkSums(t, tx)
		return nil
	})
}

// A transaction that fails leaves no trace of its changes.
func TestFailedTransactionLeavesNoTrace(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 3), boxNode("b1", 2), boxNode("b2", 2))
	first := w.create(&dxpuv1.LeaseSpec{Count: 2})
	waiting := w.create(&dxpuv1.LeaseSpec{Count: 3, Wait: true})
	w.settle()
	before := rebuiltNow(w)
	meta := *w.m.state.meta
	events := w.events()
	err := w.m.update(context.Background(), func(t *tx) error {
		t.endLease(first, dxpuv1.Reason_REASON_LEASE_DELETED, "deleted", false)
		if err := t.settle(); err != nil {
			return err
		}
		t.grant(waiting)
		t.setCordon(&dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: "b2"}}, &cordon{})
		t.leases.remove(waiting)
		return errors.New("no")
	})
	if err == nil || err.Error() != "no" {
		t.Fatal(err)
	}
	w.checkIndex(t)
	if diff := cmp.Diff(before, rebuiltNow(w)); diff != "" {
		t.Errorf("records differ: %s", diff)
	}
	if *w.m.state.meta != meta || w.events() != events {
		t.Errorf("meta %v, was %v", *w.m.state.meta, meta)
	}
	w.settle()
	w.wantLease(first, leaseActive)
	w.wantLease(waiting, leasePending)
}

// rebuiltNow returns all records as they would be stored.
func rebuiltNow(w *world) (out map[string]string) {
	_ = w.m.view(func(t *tx) error {
		records := map[string]any{}
		for id, r := range t.leases.rows {
			records["l"+id] = r
		}
		for id, r := range t.bindings.rows {
			records["b"+id] = r
		}
		for id, r := range t.nodes.rows {
			records["n"+id] = r
		}
		put, _, err := encode(records)
		if err != nil {
			return err
		}
		out = map[string]string{}
		for k, v := range put {
			out[k] = string(v)
		}
		return nil
	})
	return out
}

func TestAlarms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := alarms{at: map[subject]time.Duration{}}
		want := map[subject]time.Duration{}
		now := time.Duration(0)
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				s := subject{nodeSubject, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")}
				at := now + time.Duration(rapid.IntRange(0, 9).Draw(t, "in"))
				a.set(s, at)
				if old, ok := want[s]; !ok || at < old {
					want[s] = at
				}
			},
			"pass": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(0, 9).Draw(t, "ns"))
				for {
					s, ok := a.next(now)
					if !ok {
						break
					}
					if at, ok := want[s]; !ok || at > now {
						t.Fatalf("%v rings at %d, want %d", s, now, at)
					}
					delete(want, s)
				}
				for s, at := range want {
					if at <= now {
						t.Fatalf("the alarm of %v is not due at %d", s, now)
					}
				}
			},
		})
	})
}

// Many pending leases of one shape cost one attempt, and do not hold up a different one
// behind them.
func TestQueueIsServedByShape(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2))
	first := w.create(&dxpuv1.LeaseSpec{Count: 2})
	var large []string
	for range 3 * maxAttemptsPerPass {
		large = append(large, w.create(&dxpuv1.LeaseSpec{Count: 2, Wait: true}))
	}
	small := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, Priority: -1})
	if got := w.lease(small).QueuePosition; int(got) != len(large)+1 {
		t.Errorf("queue position %d, want %d", got, len(large)+1)
	}
	w.settle()
	w.nodes["b1"].dead[1] = true // one GPU is left in the pool
	w.delete(first, true)
	w.settle()
	w.wantLease(large[0], leasePending)
	w.wantLease(small, leaseActive)
	w.delete(small, true)
	w.nodes["b1"].dead[1] = false
	w.settle()
	w.wantLease(large[0], leaseActive)
	w.wantLease(large[1], leasePending)
	w.checkIndex(t)
}

// Ended leases are removed by age and by number.
func TestEndedLeasesAreForgotten(t *testing.T) {
	w := newWorld(t, Config{KeepEnded: 3}, hostNode("h1", 1), boxNode("b1", 1))
	for range 6 {
		id := w.create(&dxpuv1.LeaseSpec{Count: 1})
		w.settle()
		w.delete(id, true)
		w.settle()
	}
	if n := w.m.state.leases.len(); n != 3 {
		t.Errorf("%d leases are kept, want 3", n)
	}
	w.rounds(1)
	for range 7 { // an alarm is set for ten minutes at most
		w.pass(alarmCap)
	}
	if n := w.m.state.leases.len() + w.m.state.bindings.len(); n != 0 {
		t.Errorf("%d records are kept, want none", n)
	}
	w.checkIndex(t)
}

// A transaction looks at a changed node once for each change, and not once for each lease that
// depends on it: its work grows with the number of lost boxes, and not with the square of it.
func TestManyBoxesAreLostAtOnce(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	lose := func(boxes int) (allocated uint64) {
		nodes := []*fakeNode{hostNode("h1", 16*boxes)}
		for i := range boxes {
			nodes = append(nodes, boxNode(fmt.Sprint("b", i), 16))
		}
		w := newWorld(t, Config{LostAfter: 10 * time.Second}, nodes...)
		for range 16 * boxes {
			w.create(&dxpuv1.LeaseSpec{Count: 1})
		}
		w.settle()
		for _, n := range nodes[1:] {
			n.down = true
		}
		for range 9 {
			w.clock.pass(time.Second)
			w.report("h1")
		}
		w.clock.pass(2 * time.Second)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := w.m.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if n := strings.Count(w.events(), " has stopped reporting"); n != boxes {
			t.Fatalf("%d of %d boxes are lost", n, boxes)
		}
		return after.Mallocs - before.Mallocs
	}
	few, many := lose(4), lose(32)
	if many > 3*8*few {
		t.Errorf("the loss of 4 boxes takes %d allocations, and that of 32 boxes %d", few, many)
	}
}

// BenchmarkFailureOfABox measures the report of a box all of whose parts fail: the work should grow
// with their number, and not with the square of it.
func BenchmarkFailureOfABox(b *testing.B) {
	for _, gpus := range []int{16, 64} {
		b.Run(fmt.Sprintf("parts=%d", 8*gpus), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				box := boxNode("b1", gpus)
				box.divided, box.memory = 8, 8<<30
				w := newWorld(b, Config{}, hostNode("h1", 8*gpus), box)
				for range 8 * gpus {
					w.create(part(512, 100))
				}
				w.settle()
				for slot := range uint32(gpus) {
					box.dead[slot] = true
				}
				b.StartTimer()
				w.report("b1")
			}
		})
	}
}

package manager

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// After a restore the pool is as in the backup, whatever the nodes were told since:
// deleted leases are attached again, new ones do not exist.
func TestRestored(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 4))
	kept := w.create(&dxpuv1.LeaseSpec{Count: 1})
	ended := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	before := w.wantLease(kept, leaseActive)
	saved := maps.Clone(store.records)

	w.delete(ended, true)
	w.settle()
	added := w.create(&dxpuv1.LeaseSpec{Count: 3})
	w.settle()
	w.wantLease(added, leaseActive)
	epoch := w.m.state.meta.Epoch

	records, err := Restored(saved)
	if err != nil {
		t.Fatal(err)
	}
	w.m, err = New(context.Background(), Config{JoinToken: "token-for-tests", Store: &MemoryStore{records: records}, Now: w.clock.now})
	if err != nil {
		t.Fatal(err)
	}
	w.settle()
	after := w.wantLease(kept, leaseActive)
	if len(after.Bindings) != 1 || after.Bindings[0].Epoch != before.Bindings[0].Epoch {
		t.Errorf("the lease that was never deleted has bindings %v", after.Bindings)
	}
	w.wantLease(ended, leaseActive)
	if l := w.m.state.leases.get(added); l != nil {
		t.Errorf("%s is still there", added)
	}
	next := w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.settle()
	if l := w.wantLease(next, leaseActive); l.Bindings[0].Epoch <= epoch {
		t.Errorf("epoch %d was given out before: up to %d", l.Bindings[0].Epoch, epoch)
	}
	for id, n := range w.nodes {
		if len(n.has) != 4 {
			t.Errorf("%s has %d bindings, want 4", id, len(n.has))
		}
	}
}

// A binding that was being taken down when the backup was made is released after the restore,
// also when the incarnation of the restored pool has a smaller number than that of the backup.
func TestRestoredReleasesBindings(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 2), boxNode("b1", 2))
	m := w.m.state.meta
	m.Incarnation = revision.MaxIncarnation
	m.FirstRevision = revision.First(m.Incarnation)
	m.Revision = m.FirstRevision
	records := maps.Clone(store.records)
	var err error
	if records[metaKey], err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	store = &MemoryStore{records: records}
	w.restoredPoolIn(store)
	w.settle()
	ended := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.wantLease(ended, leaseActive)
	w.delete(ended, true)
	saved := maps.Clone(store.records)
	w.settle()

	records, err = Restored(saved)
	if err != nil {
		t.Fatal(err)
	}
	w.restoredPool(records)
	w.settle()
	w.wantLease(ended, leaseReleased)
	all := w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.settle()
	w.wantLease(all, leaseActive)
}

// restoredPool makes a world's manager one that was restored from records.
func (w *world) restoredPool(records map[string][]byte) {
	w.t.Helper()
	w.restoredPoolIn(&MemoryStore{records: records})
}

func (w *world) restoredPoolIn(store Store) {
	w.t.Helper()
	m, err := New(context.Background(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now})
	if err != nil {
		w.t.Fatalf("New: %v", err)
	}
	w.m = m
}

// bindingNames lists what the nodes have.
func (w *world) bindingNames() map[string]bool {
	names := map[string]bool{}
	for _, n := range w.nodes {
		for _, b := range n.has {
			names[b.BindingId] = true
		}
	}
	return names
}

// One backup is restored twice, and the nodes keep their bindings of the first of the
// two pools: the second pool mistakes none of them for its own.
func TestRestoredTwice(t *testing.T) {
	for _, order := range []string{"upwards", "downwards"} {
		t.Run(order, func(t *testing.T) {
			store := &MemoryStore{}
			w := newWorld(t, Config{Store: store}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 4))
			kept := w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
			w.settle()
			saved, old := maps.Clone(store.records), w.bindingNames()

			restored := make([]map[string][]byte, 2)
			metas := make([]meta, 2)
			for i := range restored {
				var err error
				if restored[i], err = Restored(saved); err != nil {
					t.Fatal(err)
				}
				if err := decode(restored[i]["meta"], &metas[i]); err != nil {
					t.Fatal(err)
				}
			}
			if metas[0].Incarnation == metas[1].Incarnation {
				t.Fatalf("two restores are both incarnation %d", metas[0].Incarnation)
			}
			if (metas[0].Revision < metas[1].Revision) != (order == "upwards") {
				slices.Reverse(restored)
			}

			w.restoredPool(restored[0])
			w.settle()
			first := w.create(&dxpuv1.LeaseSpec{Count: 2, HostId: "h1"})
			for range 20 { // its revisions run ahead of those of the second pool
				w.delete(w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h2"}), false)
				w.settle()
			}
			w.wantLease(first, leaseActive)
			names := w.bindingNames()

			w.restoredPool(restored[1])
			w.nodes["b1"].deaf, w.nodes["h1"].deaf = true, true
			w.settle()
			second := w.create(&dxpuv1.LeaseSpec{Count: 3, HostId: "h2"})
			w.settle()
			w.delete(second, false)
			w.settle()
			w.wantLease(second, leaseReleasing) // the box does not know this pool: it confirms nothing
			if b := w.lease(second).Bindings[0]; b.State == released {
				t.Errorf("GPU %s is shown free while the box still has it under the first pool", b.GpuId)
			}
			w.nodes["b1"].deaf, w.nodes["h1"].deaf = false, false
			w.settle()
			w.wantLease(second, leaseReleased)

			third := w.create(&dxpuv1.LeaseSpec{Count: 3, HostId: "h2"})
			w.settle()
			w.wantLease(third, leaseActive)
			w.wantLease(kept, leaseActive)
			for name := range w.bindingNames() {
				if names[name] && !old[name] {
					t.Errorf("%s is a name that the first pool gave out", name)
				}
			}
			if h1, h2 := len(w.nodes["h1"].has), len(w.nodes["h2"].has); h1 != 1 || h2 != 3 {
				t.Errorf("h1 and h2 have %d and %d devices, want 1 and 3", h1, h2)
			}
		})
	}
}

func TestRestoredRefuses(t *testing.T) {
	tests := []struct{ name, key, value, want string }{
		{"no pool", "tenant/a", `{"id":"a"}`, "the record of the pool itself is missing"},
		{"a later kind", "thing/a", `{}`, "record thing/a: unknown kind"},
		{"a later version", "tenant/a", `{"v":99}`, "record tenant/a: it has version 99"},
		{"another type", "tenant/a", `{"id":1}`, "record tenant/a: "},
		{"used up", "meta", `{"cluster_id":"c-1","epoch":4294967295}`, "its epochs or node numbers are used up"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Restored(map[string][]byte{tt.key: []byte(tt.value)})
			if err == nil || !strings.Contains(err.Error(), tt.want) || got != nil {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

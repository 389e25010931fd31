package manager

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// After a restore the pool is as the backup says, whatever the nodes were told
// since: what was let go of is attached again, what was added is gone.
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
		t.Errorf("the lease that was there all the time has bindings %v", after.Bindings)
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
	if again, err := Restored(records); err != nil || !bytes.Contains(again["meta"], []byte(`"node_number":2050`)) {
		t.Errorf("restored twice: %s, %v", again["meta"], err)
	}
}

func TestRestoredRefuses(t *testing.T) {
	tests := []struct{ name, key, value, want string }{
		{"no pool", "tenant/a", `{"id":"a"}`, "there is no record of the pool itself"},
		{"a later kind", "thing/a", `{}`, "record thing/a: unknown kind"},
		{"a later version", "tenant/a", `{"v":99}`, "record tenant/a: it has version 99"},
		{"another type", "tenant/a", `{"id":1}`, "record tenant/a: "},
		{"used up", "meta", `{"cluster_id":"c-1","epoch":4294967295}`, "its numbers are used up"},
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

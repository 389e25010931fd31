package manager

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// IDs of leases count from 1, over restarts, and no two restores of one backup give out
// the same ones.
func TestLeaseIDs(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 16), boxNode("b1", 16))
	lease := func() string { return w.create(&dxpuv1.LeaseSpec{Count: 1}) }
	if a, b := lease(), lease(); a != "l-1" || b != "l-2" {
		t.Errorf("the first leases are %s and %s", a, b)
	}
	saved := maps.Clone(store.records)
	w.restoredPool(maps.Clone(saved)) // a restart
	w.settle()
	later := lease()
	if later != "l-3" {
		t.Errorf("after a restart: %s", later)
	}
	seen := map[string]bool{later: true}
	for range 2 {
		records, err := Restored(saved)
		if err != nil {
			t.Fatal(err)
		}
		w.restoredPool(records)
		w.settle()
		id := lease()
		if seen[id] || !regexp.MustCompile(`^l-3-[0-9a-z]{1,5}$`).MatchString(id) {
			t.Errorf("after a restore: %s", id)
		}
		seen[id] = true
	}
}

// A pool of an earlier version has leases with revisions for numbers.
func TestLeaseIDsAfterAnUpgrade(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 16))
	old := w.create(&dxpuv1.LeaseSpec{Count: 1})
	_ = w.m.update(t.Context(), func(tx *tx) error {
		tx.meta.NextLease = 0
		return nil
	})
	next := w.create(&dxpuv1.LeaseSpec{Count: 1})
	if next == old || compareLeaseIDs(old, next) >= 0 {
		t.Errorf("lease %s follows %s", next, old)
	}
}

func TestLeaseOrder(t *testing.T) {
	want := []string{"l-2", "l-10", "l-10-a", "l-11-9", "l-100-a", "l-101"}
	got := slices.SortedFunc(slices.Values([]string{"l-101", "l-10-a", "l-100-a", "l-2", "l-11-9", "l-10"}), compareLeaseIDs)
	if !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

package placement

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// The set held for a request grows while others leave it alone, until the request fits.
func TestGatherGrowsUntilItFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := NewPool()
		for b := range rapid.IntRange(1, 4).Draw(t, "boxes") {
			box, taints := Box{ID: fmt.Sprint("b", b), Kind: PCIeSwitch}, Restriction("")
			if rapid.IntRange(0, 3).Draw(t, "local") == 0 {
				taints = NewRestriction(Taint{Key: "local", Effect: Local})
			}
			for s := range rapid.IntRange(1, 6).Draw(t, "gpus") {
				box.GPUs = append(box.GPUs, GPU{Slot: uint32(s), Model: "A", Memory: 1, Usable: rapid.IntRange(0, 5).Draw(t, "usable") > 0, Restriction: taints})
			}
			pool.SetBox(box)
		}
		reserve := Reserve{Count: rapid.IntRange(0, 2).Draw(t, "spares")}
		req := Request{Count: rapid.IntRange(1, 8).Draw(t, "count")}
		if rapid.Bool().Draw(t, "together") {
			req.SameBox = Required
		}
		held := 0
		for {
			hold, ok := pool.gather(reserve, req)
			if !ok {
				free := NewPool()
				for _, b := range pool.boxes {
					all := *b
					all.GPUs = nil
					for _, g := range b.GPUs {
						g.Free = true
						all.GPUs = append(all.GPUs, g)
					}
					free.SetBox(all.Box)
				}
				if d := free.Place(reserve, req); d.OK() {
					t.Fatalf("%+v is called impossible and fits when all GPUs are free: %v", req, d)
				}
				return
			}
			if len(hold) < held || len(hold) > req.Count {
				t.Fatalf("%d GPUs are held, %d were before", len(hold), held)
			}
			held = len(hold)
			if d := pool.Place(reserve, req); d.OK() {
				return
			}
			// A lease ends somewhere, and another one takes a GPU that is not held.
			if !flip(t, pool, false, hold) {
				t.Fatalf("all GPUs are free or held, and %+v does not fit: %v", req, hold)
			}
			if rapid.Bool().Draw(t, "another") {
				flip(t, pool, true, hold)
			}
		}
	})
}

// flip makes a GPU free that is not, or a free one busy that is not held.
func flip(t *rapid.T, pool *Pool, busy bool, held []Ref) bool {
	type at struct {
		box string
		gpu GPU
	}
	var choice []at
	for id, b := range pool.boxes {
		for _, g := range b.GPUs {
			kept := false
			for _, r := range held {
				kept = kept || r == Ref{id, g.Slot}
			}
			if g.Usable && g.Free == busy && !kept {
				choice = append(choice, at{id, g})
			}
		}
	}
	if len(choice) == 0 {
		return false
	}
	c := choice[rapid.IntRange(0, len(choice)-1).Draw(t, "gpu")]
	c.gpu.Free = !busy
	pool.SetGPU(c.box, c.gpu)
	return true
}

func TestGatherHostSlots(t *testing.T) {
	hosts := NewHosts()
	slots := func(free, busy int) (out []HostSlot) {
		for i := range free + busy {
			out = append(out, HostSlot{Slot: uint32(i), Domain: "vm", Free: i < free})
		}
		return out
	}
	hosts.SetHost(Host{ID: "h1", Usable: true, Slots: slots(3, 1)})
	hosts.SetHost(Host{ID: "h2", Usable: true, Slots: slots(2, 6)})
	hosts.SetHost(Host{ID: "h3", Usable: true, Slots: slots(0, 9)})
	hosts.SetHost(Host{ID: "h4", Slots: slots(9, 9)})
	failed := slots(1, 9)
	failed[0].Free, failed[0].Unusable = false, true
	hosts.SetHost(Host{ID: "h5", Usable: true, Slots: failed})
	for _, tt := range []struct {
		req  HostRequest
		want string
	}{
		{HostRequest{Count: 4}, "[{h1 0} {h1 1} {h1 2}] true"},
		{HostRequest{Count: 5}, "[{h2 0} {h2 1}] true"}, // h1 has only four
		{HostRequest{Count: 9}, "[] true"},              // of h3, which is full
		{HostRequest{Count: 10}, "[] false"},
		{HostRequest{Count: 2, Host: "h1"}, "[{h1 0} {h1 1}] true"},
		{HostRequest{Count: 5, Host: "h1"}, "[] false"},
		{HostRequest{Count: 5, Host: "h3"}, "[] true"},
		{HostRequest{Count: 1, Host: "h4"}, "[] false"},
		{HostRequest{Count: 9, Host: "h5"}, "[] true"},
		{HostRequest{Count: 10, Host: "h5"}, "[] false"},
		{HostRequest{Count: 1, Domain: "other"}, "[] false"},
		{HostRequest{Count: 4, Exclude: []HostSlotRef{{"h1", 1}, {"h3", 4}}}, "[{h1 0} {h1 2}] true"},
		{HostRequest{Count: 4, Exclude: []HostSlotRef{{"h1", 0}, {"h1", 2}}}, "[{h2 0} {h2 1}] true"},
		{HostRequest{Count: 4, Exclude: []HostSlotRef{{"h1", 0}, {"h1", 1}, {"h1", 2}, {"h2", 0}, {"h2", 1}}}, "[] true"},
		{HostRequest{Count: 2, Host: "h1", Exclude: []HostSlotRef{{"h1", 0}, {"h2", 1}}}, "[{h1 1} {h1 2}] true"},
	} {
		hold, ok := hosts.gather(tt.req, 0)
		if got := fmt.Sprint(hold, ok); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.req, got, tt.want)
		}
	}
}

// TestGatherPassesExcluded has two boxes: of the one with more free GPUs some are excluded.
func TestGatherPassesExcluded(t *testing.T) {
	pool := NewPool()
	for _, b := range []Box{{ID: "b1", Kind: PCIeSwitch}, {ID: "b2", Kind: PCIeSwitch}} {
		for s := range uint32(4) {
			b.GPUs = append(b.GPUs, GPU{Slot: s, Model: "A", Memory: 1, Usable: true, Free: s < 3 && b.ID == "b1" || s < 2})
		}
		pool.SetBox(b)
	}
	for _, together := range []Preference{Indifferent, Required} {
		req := Request{Count: 4, SameBox: together, Exclude: []Ref{{"b1", 0}, {"b1", 2}}}
		want := map[Preference]string{Indifferent: "[b2/0 b2/1 b1/1] true", Required: "[b2/0 b2/1] true"}[together]
		hold, ok := pool.gather(Reserve{}, req)
		if got := fmt.Sprint(hold, ok); got != want {
			t.Errorf("together %v: %s, want %s", together, got, want)
		}
	}
}

package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The index decides on GPUs and host as the scan does, for any changes and requests.
func TestPoolPlacesLeasesAsPlaceLease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newReference()
		t.Repeat(m.actions(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				allBoxes, allHosts := m.all()
				for range 4 {
					reserve, req := drawReserve(t), drawRequest(t)
					host := drawHostRequest(t, req.Count)
					if rapid.Bool().Draw(t, "any host") {
						host.Host, host.Labels, host.Domain = "", nil, ""
					}
					req.Near = nil
					d, h := PlaceLease(allBoxes, allHosts, reserve, req, host)
					d2, h2 := m.pool.PlaceLease(m.index, reserve, req, host)
					if diff := cmp.Diff(d, d2, answers) + cmp.Diff(h, h2); diff != "" {
						t.Fatalf("%+v %+v (-scan +index)\n%s", req, host, diff)
					}
					if d.OK() && h.OK() {
						checkReach(t, m, d, h)
					}
				}
			},
		}))
	})
}

// checkReach checks that a host has a network in common with each of its boxes.
func checkReach(t *rapid.T, m *reference, d Decision, h HostDecision) {
	for _, p := range d.Picks {
		if !m.hosts[h.Host].Paths.reaches(m.boxes[p.Box].Paths) {
			t.Fatalf("host %s has no network in common with box %s", h.Host, p.Box)
		}
	}
}

// A host that is not named is near the box, though others have more free slots; among
// equal boxes the one near a host goes first.
func TestHostIsChosenWithTheBox(t *testing.T) {
	boxes := []Box{
		{ID: "b1", Kind: PCIeSwitch, Location: Location{Rack: "r1"}, GPUs: box("", PCIeSwitch, "A", "..").GPUs},
		{ID: "b2", Kind: PCIeSwitch, Location: Location{Rack: "r2"}, GPUs: box("", PCIeSwitch, "A", "..").GPUs},
	}
	slots := func(n int) (out []HostSlot) {
		for i := range n {
			out = append(out, HostSlot{Slot: uint32(i), Domain: "vm", Free: true})
		}
		return out
	}
	hosts := []Host{
		{ID: "h2", Usable: true, Location: Location{Rack: "r2"}, Slots: slots(2)},
		{ID: "h3", Usable: true, Location: Location{Rack: "r3"}, Slots: slots(8)},
	}
	d, h := PlaceLease(boxes, hosts, Reserve{}, Request{Count: 1}, HostRequest{Count: 1})
	if h.Host != "h2" || join(d.Picks) != "b2/0" {
		t.Errorf("host %s and GPU %s, want h2 and b2/0: %v", h.Host, join(d.Picks), d.Why)
	}
	d, h = PlaceLease(boxes, hosts, Reserve{}, Request{Count: 1}, HostRequest{Count: 3})
	if h.Host != "h3" || join(d.Picks) != "b1/0" {
		t.Errorf("host %s and GPU %s, want h3 and b1/0, the first of equal ones: %v", h.Host, join(d.Picks), d.Why)
	}
	d, h = PlaceLease(boxes, hosts, Reserve{}, Request{Count: 1, Uplinks: Uplinks{"r1": true}}, HostRequest{Count: 3})
	if h.Host != "h3" || join(d.Picks) != "b2/0" {
		t.Errorf("host %s and GPU %s, want h3 and b2/0, whose uplink has room: %v", h.Host, join(d.Picks), d.Why)
	}
}

// The first box may be on a network that reaches too few GPUs; the decision tries others.
func TestNetworksThatAreApart(t *testing.T) {
	at := func(id, gpus string, paths Paths) Box {
		b := box(id, PCIeSwitch, "A", gpus)
		b.Paths = paths
		return b
	}
	boxes := []Box{at("b1", "....", 1), at("b2", "...", 2), at("b3", "...", 2)}
	slot := HostSlot{Free: true}
	hosts := []Host{
		{ID: "h1", Usable: true, Location: Location{Paths: 1}, Slots: make([]HostSlot, 8)},
		{ID: "h2", Usable: true, Location: Location{Paths: 2}, Slots: make([]HostSlot, 8)},
	}
	for _, h := range hosts {
		for i := range h.Slots {
			h.Slots[i] = slot
			h.Slots[i].Slot = uint32(i)
		}
	}
	d, h := PlaceLease(boxes, hosts, Reserve{}, Request{Count: 5}, HostRequest{Count: 5})
	if h.Host != "h2" || len(d.Picks) != 5 {
		t.Errorf("host %s, GPUs %s; want h2 and five of b2 and b3: %v", h.Host, join(d.Picks), d.Why)
	}
	d, _ = PlaceLease(boxes, hosts, Reserve{}, Request{Count: 5}, HostRequest{Count: 5, Host: "h1"})
	if d.OK() {
		t.Errorf("h1 gets GPUs that it does not reach: %s", join(d.Picks))
	}
}

// GPUs of one box come from as few PCIe switches as possible.
func TestFewSwitches(t *testing.T) {
	b := box("b", PCIeSwitch, "A", "........")
	for i, s := range []string{"s0", "s0", "s1", "s1", "s1", "s2", "s2", "s2"} {
		b.GPUs[i].Switch = s
	}
	for count, want := range map[int]string{
		1: "b/0", // of the fullest switch
		2: "b/0 b/1",
		3: "b/2 b/3 b/4",
		4: "b/0 b/2 b/3 b/4",
		6: "b/2 b/3 b/4 b/5 b/6 b/7",
	} {
		if d := Place([]Box{b}, Reserve{}, Request{Count: count}); join(d.Picks) != want {
			t.Errorf("%d GPUs: %s, want %s", count, join(d.Picks), want)
		}
	}
}

package placement

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawMembers(t *rapid.T) []Member {
	members := make([]Member, rapid.IntRange(1, 4).Draw(t, "members"))
	for i := range members {
		req := drawRequest(t)
		req.Count, req.Near, req.Together = rapid.IntRange(1, 4).Draw(t, "gpus"), nil, nil
		host := drawHostRequest(t, req.Count)
		if rapid.IntRange(0, 2).Draw(t, "any host") > 0 {
			host.Host, host.Labels, host.Domain = "", nil, ""
		}
		members[i] = Member{req, host}
	}
	return members
}

// The index decides on gangs as the scan does, gives no GPU or slot to two members, and
// is the same afterwards.
func TestPoolPlacesGangsAsPlaceGang(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newReference()
		t.Repeat(m.actions(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				boxes, hosts := m.all()
				reserve, members := drawReserve(t), drawMembers(t)
				want := PlaceGang(boxes, hosts, reserve, members)
				for _, when := range []string{"first", "again"} {
					if diff := cmp.Diff(want, m.pool.PlaceGang(m.index, reserve, members), answers); diff != "" {
						t.Fatalf("%s, %+v (-scan +index)\n%s", when, members, diff)
					}
				}
				checkGang(t, m, members, want)
			},
		}))
	})
}

// checkGang checks that all members of a gang have what they requested, or none.
func checkGang(t *rapid.T, m *reference, members []Member, d GangDecision) {
	if !d.OK() {
		if len(d.Why.Decision.Why)+len(d.Why.Host.Why) == 0 {
			t.Fatal("no reason")
		}
		return
	}
	if len(d.Members) != len(members) {
		t.Fatalf("%d of %d members have a place", len(d.Members), len(members))
	}
	taken := map[string]bool{}
	take := func(what string) {
		if taken[what] {
			t.Fatalf("%s is taken twice", what)
		}
		taken[what] = true
	}
	for i, a := range d.Members {
		if len(a.Picks) != members[i].GPUs.Count || len(a.Host.Slots) != members[i].GPUs.Count {
			t.Fatalf("member %d of %d GPUs gets %d and %d slots", i, members[i].GPUs.Count, len(a.Picks), len(a.Host.Slots))
		}
		for _, r := range a.Picks {
			take(r.String())
			for _, g := range m.boxes[r.Box].GPUs {
				if g.Slot == r.Slot && !(g.Free && g.Usable) {
					t.Fatalf("GPU %s is not free", r)
				}
			}
		}
		for _, s := range a.Host.Slots {
			take(fmt.Sprint("slot ", a.Host.Host, "/", s))
		}
		checkReach(t, m, a.Decision, a.Host)
	}
}

// A gang fits although its members in their order do not: the one that finds no place
// goes first.
func TestGangTriesOtherOrders(t *testing.T) {
	boxes := []Box{box("b1", PCIeSwitch, "A", "...."), box("b2", PCIeSwitch, "A", "....")}
	boxes[0].Labels = map[string]string{"zone": "a"}
	hosts := []Host{{ID: "h", Usable: true}}
	for i := range 8 {
		hosts[0].Slots = append(hosts[0].Slots, HostSlot{Slot: uint32(i), Free: true})
	}
	members := []Member{
		{Request{Count: 4}, HostRequest{Count: 4}},
		{Request{Count: 4, Labels: map[string]string{"zone": "a"}}, HostRequest{Count: 4}},
	}
	d := PlaceGang(boxes, hosts, Reserve{}, members)
	if !d.OK() || join(d.Members[1].Picks) != "b1/0 b1/1 b1/2 b1/3" {
		t.Errorf("%+v", d)
	}
	members = append(members, Member{Request{Count: 1}, HostRequest{Count: 1}})
	if d = PlaceGang(boxes, hosts, Reserve{}, members); d.OK() || d.Lacking != 1 || d.Placed != 1 {
		t.Errorf("a gang of nine GPUs: %+v", d)
	}
}

// A gang holds free GPUs and slots for as many of its members as there are, and none if
// it could not fit in an empty pool.
func TestGatherForGang(t *testing.T) {
	pool, hosts := NewPool(), NewHosts()
	pool.SetBox(box("b1", PCIeSwitch, "A", "..xx"))
	pool.SetBox(box("b2", PCIeSwitch, "A", "xx.."))
	pool.SetBox(box("b3", PCIeSwitch, "A", "xxxx"))
	for _, id := range []string{"h1", "h2"} {
		h := Host{ID: id, Usable: true}
		for i := range 4 {
			h.Slots = append(h.Slots, HostSlot{Slot: uint32(i), Free: i > 0})
		}
		hosts.SetHost(h)
	}
	member := Member{Request{Count: 4, SameBox: Required}, HostRequest{Count: 4}}
	for _, tt := range []struct {
		members int
		want    string
	}{
		{1, "[b1/0 b1/1] [{h1 1} {h1 2} {h1 3}] true"},
		{2, "[b1/0 b1/1 b2/2 b2/3] [{h1 1} {h1 2} {h1 3} {h2 1} {h2 2} {h2 3}] true"},
		{3, "[] [] false"}, // two hosts have slots for two of them
	} {
		var members []Member
		for range tt.members {
			members = append(members, member)
		}
		for range 2 { // it changes nothing
			gpus, slots, ok := pool.Gather(hosts, Reserve{}, members)
			if got := fmt.Sprint(gpus, slots, ok); got != tt.want {
				t.Errorf("%d members: %s, want %s", tt.members, got, tt.want)
			}
		}
	}
}

// A member that may have GPUs of several models leaves the room of one to the member that names it.
func TestGatherWithinRoom(t *testing.T) {
	pool, hosts := NewPool(), NewHosts()
	pool.SetBox(box("b1", PCIeSwitch, "A", "..."))
	pool.SetBox(box("b2", PCIeSwitch, "B", "x"))
	hosts.SetHost(Host{ID: "h1", Usable: true, Slots: []HostSlot{{Slot: 0, Free: true}, {Slot: 1, Free: true}}})
	room := map[string]int{"A": 1, "B": 1}
	gpus, slots, ok := pool.Gather(hosts, Reserve{}, []Member{
		{Request{Count: 1, Room: room}, HostRequest{Host: "h1", Count: 1}},
		{Request{Count: 1, Model: "A", Room: room}, HostRequest{Count: 1}},
	})
	if got := fmt.Sprint(gpus, slots, ok); got != "[b1/0] [{h1 0} {h1 1}] true" {
		t.Error(got)
	}
}

// The GPUs and the slots that a lease holds are on one network: the host reaches the GPUs.
func TestGatherOnOneNetwork(t *testing.T) {
	pool, hosts := NewPool(), NewHosts()
	for id, paths := range map[string]Paths{"b1": 1, "b2": 2} {
		b := box(id, PCIeSwitch, "A", ".xxx")
		b.Paths = paths
		if id == "b2" {
			b = box(id, PCIeSwitch, "A", "..xx")
			b.Paths = paths
		}
		pool.SetBox(b)
	}
	hosts.SetHost(Host{ID: "h1", Usable: true, Location: Location{Paths: 1}, Slots: []HostSlot{{Slot: 0, Free: true}, {Slot: 1, Free: true}, {Slot: 2, Free: true}, {Slot: 3, Free: true}}})
	hosts.SetHost(Host{ID: "h2", Usable: true, Location: Location{Paths: 2}, Slots: []HostSlot{{Slot: 0, Free: true}, {Slot: 1, Free: true}, {Slot: 2}, {Slot: 3}}})
	gpus, slots, ok := pool.Gather(hosts, Reserve{}, []Member{{Request{Count: 4}, HostRequest{Count: 4}}})
	if got := fmt.Sprint(gpus, slots, ok); got != "[b1/0] [{h1 0} {h1 1} {h1 2} {h1 3}] true" {
		t.Error(got)
	}
}

// BenchmarkGang places a gang of eight in a pool of 100,000 GPUs.
func BenchmarkGang(b *testing.B) {
	_, pool := benchPool(12500)
	hosts := NewHosts()
	for i := range 64 {
		h := Host{ID: fmt.Sprintf("host-%02d", i), Usable: true}
		for s := range 16 {
			h.Slots = append(h.Slots, HostSlot{Slot: uint32(s), Free: true})
		}
		hosts.SetHost(h)
	}
	var members []Member
	for range 8 {
		members = append(members, Member{Request{Count: 8, Model: "model-1", SameBox: Required}, HostRequest{Count: 8}})
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := pool.PlaceGang(hosts, Reserve{Count: 4}, members); !d.OK() {
			b.Fatal(d.Why)
		}
	}
}

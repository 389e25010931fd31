package placement

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestHostsDecideAsPlaceHost checks the index against PlaceHost, for any changes and requests.
func TestHostsDecideAsPlaceHost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newReference()
		t.Repeat(m.actions(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				_, all := m.all()
				for range 4 {
					req := drawHostRequest(t, rapid.IntRange(0, 5).Draw(t, "count"))
					if diff := cmp.Diff(PlaceHost(all, req), m.index.Place(req)); diff != "" {
						t.Fatalf("%+v (-scan +index)\n%s", req, diff)
					}
				}
			},
		}))
		for id := range m.hosts {
			m.index.RemoveHost(id)
		}
		if index := m.index; len(index.hosts)+len(index.options)+len(index.count)+len(index.pathSets)+index.racked+len(index.alike.at)+len(index.alike.of)-len(index.alike.left) != 0 {
			t.Fatal("the index keeps something of hosts that were removed")
		}
	})
}

// TestHostsThatDiffer: a refusal tells hosts apart that differ in one thing.
func TestHostsThatDiffer(t *testing.T) {
	slot := func(domains ...string) (out []HostSlot) {
		for i, d := range domains {
			out = append(out, HostSlot{Slot: uint32(i), Domain: d, Free: true})
		}
		return out
	}
	differ := []Host{
		{Usable: true, Slots: slot("vm0", "vm0")},
		{Usable: false, Slots: slot("vm0", "vm0")},
		{Usable: true, Slots: slot("vm0", "vm0"), Restriction: NewRestriction(Taint{Key: "a"})},
		{Usable: true, Slots: slot("vm0", "vm0"), Labels: map[string]string{"zone": "a"}},
		{Usable: true, Slots: slot("vm0")},
		{Usable: true, Slots: slot("vm0", "vm1")},
		{Usable: true, Slots: slot("vm1", "vm1")},
	}
	requests := []HostRequest{
		{Count: 3},
		{Count: 2, Labels: map[string]string{"zone": "b"}},
		{Count: 2, Labels: map[string]string{"zone": "a"}, Domain: "vm1"},
		{Count: 1, Domain: "vm2"},
		{Count: 2, Domain: "vm1"},
		{Count: 2, Exclude: []HostSlotRef{{"h0", 0}, {"h1", 0}, {"h2", 1}}},
	}
	for i := range differ {
		for j := range differ {
			var hosts []Host
			index := NewHosts()
			for n, h := range []Host{differ[i], differ[j], differ[j]} {
				h.ID = fmt.Sprint("h", n)
				hosts = append(hosts, h)
				index.SetHost(h)
			}
			for _, req := range requests {
				if diff := cmp.Diff(PlaceHost(hosts, req), index.Place(req)); diff != "" {
					t.Errorf("hosts %d and %d, %+v (-scan +index)\n%s", i, j, req, diff)
				}
			}
		}
	}
}

func drawHost(t *rapid.T) Host {
	h := Host{ID: drawHostID(t), Location: drawLocation(t), Usable: rapid.IntRange(0, 5).Draw(t, "usable") > 0, Labels: drawLabels(t), Restriction: drawRestriction(t)}
	for i := range rapid.IntRange(0, 6).Draw(t, "slots") {
		h.Slots = append(h.Slots, drawHostSlot(t, uint32(i)))
	}
	return h
}

func drawHostRequest(t *rapid.T, count int) HostRequest {
	req := HostRequest{Count: count, Labels: drawLabels(t), Tolerations: drawTolerations(t)}
	if rapid.IntRange(0, 2).Draw(t, "named") == 0 {
		req.Host = drawHostID(t)
	}
	req.Domain = rapid.SampledFrom([]string{"", "", "vm0", "vm2"}).Draw(t, "domain")
	for range rapid.IntRange(0, 3).Draw(t, "excluded") {
		req.Exclude = append(req.Exclude, HostSlotRef{drawHostID(t), uint32(rapid.IntRange(0, 6).Draw(t, "slot"))})
	}
	return req
}

func drawHostID(t *rapid.T) string { return fmt.Sprintf("h%d", rapid.IntRange(0, 7).Draw(t, "host")) }

func drawHostSlot(t *rapid.T, slot uint32) HostSlot {
	return HostSlot{
		Slot: slot, Domain: rapid.SampledFrom([]string{"vm0", "vm0", "vm1", ""}).Draw(t, "domain"),
		Free: rapid.IntRange(0, 3).Draw(t, "free") > 0,
	}
}

func drawLabels(t *rapid.T) map[string]string {
	out := map[string]string{}
	for _, k := range []string{"zone", "disk", "empty"} {
		if v := rapid.SampledFrom([]string{"-", "-", "a", "b", ""}).Draw(t, k); v != "-" {
			out[k] = v
		}
	}
	return out
}

func BenchmarkHosts(b *testing.B) {
	index := NewHosts()
	for i := range 10000 {
		h := Host{ID: fmt.Sprintf("host-%05d", i), Usable: true, Labels: map[string]string{"zone": fmt.Sprint("z", i%10)}}
		for s := range 16 {
			h.Slots = append(h.Slots, HostSlot{Slot: uint32(s), Domain: "vm0", Free: s > i%16})
		}
		index.SetHost(h)
	}
	for name, req := range map[string]HostRequest{
		"any":   {Count: 4},
		"named": {Count: 1, Host: "host-05000"},
		"label": {Count: 4, Labels: map[string]string{"zone": "z3"}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := index.Place(req); !d.OK() {
					b.Fatal(d.Why)
				}
			}
		})
	}
	b.Run("bind", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			index.SetSlot("host-00005", HostSlot{Slot: 15, Domain: "vm0", Free: i%2 == 0})
		}
	})
}

// BenchmarkHostRefusal refuses requests with the reasons.
func BenchmarkHostRefusal(b *testing.B) {
	for _, labels := range []int{10, 22500} {
		index := NewHosts()
		for i := range 22500 {
			h := Host{ID: fmt.Sprintf("host-%05d", i), Usable: true, Labels: map[string]string{"zone": fmt.Sprint("z", i%labels)}}
			for s := range 8 {
				h.Slots = append(h.Slots, HostSlot{Slot: uint32(s), Domain: "vm0", Free: s > i%8})
			}
			index.SetHost(h)
		}
		for name, req := range map[string]HostRequest{
			"count": {Count: 8},
			"label": {Count: 1, Labels: map[string]string{"zone": "none"}},
		} {
			b.Run(fmt.Sprintf("labels=%d/%s", labels, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if d := index.Place(req); d.OK() {
						b.Fatal("granted")
					}
				}
			})
		}
	}
}

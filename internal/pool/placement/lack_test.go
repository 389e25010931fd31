package placement

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestRefusalsAreTrue compares what a refusal says with a search of its own in small pools. Each
// number is right. Each thing that a sentence about all GPUs or hosts names is one of a set
// without which some GPU or host would do, and of which nothing can be left out; and if one
// thing alone would have to change, the refusal names it. No sentence is unknown to the test.
func TestRefusalsAreTrue(t *testing.T) {
	const worlds = 2500
	refusals := 0
	said := map[string]int{}
	for seed := range uint64(worlds) {
		w := drawRefusing(rand.New(rand.NewPCG(seed, 7)))
		p, hosts := NewPool(), NewHosts()
		for _, b := range w.boxes {
			p.SetBox(b)
		}
		for _, h := range w.hosts {
			hosts.SetHost(h)
		}
		d, h := p.PlaceLease(hosts, w.reserve, w.req, w.host)
		if fits := w.hostFits(); fits != h.OK() {
			t.Fatalf("seed %d: a host fits %t, %+v\n%s", seed, fits, h, w)
		}
		if !h.OK() {
			w.checkHost(t, strings.Join(h.Why, " "))
			refusals++
		}
		if !d.OK() {
			w.checkGPUs(t, d.Why, h.OK(), said)
			refusals++
		}
		if t.Failed() {
			t.Fatalf("seed %d: %q %q\n%s", seed, h.Why, d.Why, w)
		}
	}
	t.Logf("%d of %d refused: %v", refusals, worlds, said)
}

type refusing struct {
	boxes   []Box
	hosts   []Host
	reserve Reserve
	req     Request
	host    HostRequest
}

func (w *refusing) String() string {
	out := ""
	for _, b := range w.boxes {
		out += fmt.Sprintf("%+v\n", b)
	}
	for _, h := range w.hosts {
		out += fmt.Sprintf("%+v\n", h)
	}
	return out + fmt.Sprintf("%+v\n%+v\n%+v", w.reserve, w.req, w.host)
}

func drawRefusing(r *rand.Rand) (w *refusing) {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	one := func(n int) bool { return r.IntN(n) == 0 }
	labels := func() map[string]string {
		out := map[string]string{}
		for _, k := range []string{"disk", "zone"} {
			if v := pick("", "a", "b"); v != "" {
				out[k] = v
			}
		}
		return out
	}
	taints := func(n int) Restriction {
		if !one(n) {
			return ""
		}
		return NewRestriction([]Taint{{"k", "1", NoSchedule}, {"l", "", NoExecute}, {"maintenance", "m-1", Planned}}[r.IntN(3)])
	}
	at := func() Location {
		return Location{Rack: pick("", "r1", "r2"), Paths: []Paths{0, 1, 2, 3}[r.IntN(4)]}
	}
	w = &refusing{reserve: Reserve{Count: r.IntN(2) * r.IntN(3)}}
	defer func() { w.ease(r) }()
	for i := range 1 + r.IntN(3) {
		b := Box{ID: fmt.Sprint("b", i), Kind: PCIeSwitch, Location: at(), Labels: labels()}
		if one(3) {
			b.Kind = NVLink
		}
		for s := range 1 + r.IntN(4) {
			b.GPUs = append(b.GPUs, GPU{
				Slot: uint32(s), Model: pick("A", "A", "B"), Memory: []uint64{1 << 30, 2 << 30}[r.IntN(2)], Domain: pick("", "d0", "d1"),
				Usable: !one(6), Free: !one(3), Restriction: taints(4), Modes: []ShareModes{0, NewShareModes(Space), NewShareModes(Space, Time)}[r.IntN(3)],
			})
		}
		drawPartsOf(r, &b)
		w.boxes = append(w.boxes, b)
	}
	for i := range r.IntN(4) {
		h := Host{ID: fmt.Sprint("h", i), Location: at(), Usable: !one(5), Labels: labels(), Restriction: taints(4)}
		for s := range r.IntN(7) {
			h.Slots = append(h.Slots, HostSlot{Slot: uint32(s), Domain: pick("vm0", "vm0", "vm1"), Free: !one(3)})
		}
		w.hosts = append(w.hosts, h)
	}
	count := 1 + r.IntN(4)*r.IntN(2)
	preferences := []Preference{Indifferent, Indifferent, Indifferent, Required, Avoided}
	w.req = Request{
		Count: count, Model: pick("", "", "", "A", "A", "A", "B", "C"), SameBox: preferences[r.IntN(5)], NVLink: []Preference{0, 0, 0, 0, Required}[r.IntN(5)],
		MinMemory: []uint64{0, 0, 0, 0, 2 << 30, 3 << 30}[r.IntN(6)], Kind: []Kind{0, 0, 0, 0, 0, 0, NVLink, PCIeSwitch}[r.IntN(8)], UseSpares: one(4),
	}
	w.host = HostRequest{Count: count}
	if one(5) {
		w.req.Labels = labels()
	}
	if one(3) {
		w.host.Labels = labels()
	}
	if one(3) {
		w.host.Host = fmt.Sprint("h", r.IntN(4))
	}
	if one(4) {
		w.host.Domain = pick("vm0", "vm1")
	}
	for range r.IntN(3) * r.IntN(2) {
		w.req.Exclude = append(w.req.Exclude, Ref{fmt.Sprint("b", r.IntN(3)), uint32(r.IntN(4))})
		w.host.Exclude = append(w.host.Exclude, HostSlotRef{fmt.Sprint("h", r.IntN(3)), uint32(r.IntN(4))})
	}
	if one(4) {
		w.req.Tolerations = []Toleration{{Key: "k", AnyValue: true}}
		w.host.Tolerations = w.req.Tolerations
	}
	if one(3) {
		w.req.Part = &Part{Memory: uint64(1+r.IntN(8)) << 28, Compute: uint32(1+r.IntN(9)) * 100, Share: []ShareMode{0, 0, Space, Time}[r.IntN(4)], PartRules: drawRules(r)}
		w.req.Count, w.host.Count, w.req.NVLink, w.req.SameBox = 1, 1, 0, 0
	}
	return w
}

// ease takes most of what is in the way out of every other pool, so that the GPUs are only not
// together, or not on one network.
func (w *refusing) ease(r *rand.Rand) {
	if r.IntN(2) == 0 {
		return
	}
	for i := range w.boxes {
		b := &w.boxes[i]
		if b.Parts = nil; r.IntN(2) == 0 {
			b.Kind = NVLink
		}
		for j := range b.GPUs {
			g := &b.GPUs[j]
			g.Model, g.Usable, g.Restriction, g.Free = "A", true, "", r.IntN(6) > 0
		}
	}
	for i := range w.hosts {
		h := &w.hosts[i]
		h.Usable, h.Restriction, h.Slots = true, "", nil
		for s := range 4 {
			h.Slots = append(h.Slots, HostSlot{Slot: uint32(s), Free: true})
		}
	}
	n := 2 + r.IntN(4)
	w.req.Count, w.host.Count, w.host.Labels, w.host.Domain, w.host.Exclude = n, n, nil, "", nil
	w.req.Model, w.req.Kind, w.req.Part, w.req.Labels, w.req.MinMemory = "", AnyKind, nil, nil, 0
	w.reserve = Reserve{}
	if r.IntN(3) == 0 {
		w.req.NVLink = Required
	}
}

func drawRules(r *rand.Rand) PartRules {
	out := PartRules{Tenant: []string{"t", "u"}[r.IntN(2)]}
	switch r.IntN(6) {
	case 0:
		out.Affinity = "x"
	case 1:
		out.AntiAffinity = "y"
	case 2:
		out.Exclusion = "z"
	}
	return out
}

// drawPartsOf gives the GPUs of a box slots for parts, and some of them parts.
func drawPartsOf(r *rand.Rand, b *Box) {
	for i := range b.GPUs {
		g := &b.GPUs[i]
		if !g.Usable {
			g.Modes = 0 // as the manager says: its slots are out of service
		}
		for k := range 2 {
			if g.Modes != 0 || !g.Usable {
				b.Parts = append(b.Parts, PartSlot{Slot: 10 + 2*g.Slot + uint32(k), GPU: g.Slot, Usable: g.Usable})
			}
		}
		if g.Free && g.Modes != 0 && r.IntN(2) == 0 {
			rules := drawRules(r)
			for k := range 1 + r.IntN(2) {
				b.Parts = append(b.Parts, PartSlot{Slot: 10 + 2*g.Slot + uint32(k), GPU: g.Slot, Taken: true, Part: Part{
					Memory: uint64(1+r.IntN(2)) << 28, Compute: uint32(1+r.IntN(4)) * 100, Share: g.Modes.List()[0], PartRules: rules,
				}})
				rules.AntiAffinity = ""
			}
			g.Free = false
		}
	}
}

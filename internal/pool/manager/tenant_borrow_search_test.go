package manager

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// TestReclaimAgainstASearch compares the leases that the manager preempts with those that a
// search through all sets of leases finds, in small pools.
//
// A set that is preempted makes room by the rules for borrowing, all of it is needed, and no
// single lease, or set of parts of one GPU, is cheaper. If nothing is preempted, no set makes
// room, and the reason that is given is true. Gangs are only preempted here: their placement
// does not try all orders.
func TestReclaimAgainstASearch(t *testing.T) {
	worlds := 200
	if raceEnabled {
		worlds = 15
	}
	var n searchCounts
	for seed := range worlds {
		if searchWorld(t, uint64(seed), &n); t.Failed() {
			t.Fatalf("in the world of seed %d", seed)
		}
	}
	t.Logf("%d requests: %d fit, %d preempt, %d of them by the second choice, %d preempt nothing", n.asked, n.fit, n.preempt, n.second, n.none)
	if n.preempt < worlds/2 || n.none < worlds || n.fit < worlds/2 {
		t.Error("the worlds ask too little")
	}
}

type searchCounts struct{ asked, fit, preempt, second, none int }

func searchWorld(t *testing.T, seed uint64, n *searchCounts) {
	r := rand.New(rand.NewPCG(seed, 1))
	w := drawBorrowers(t, r, seed%2 == 0)
	var last *dxpuv1.LeaseSpec
	var want []string
	_ = w.m.view(func(tx *tx) error {
		p := plainPoolOf(tx)
		if p == nil {
			return nil // something is under way
		}
		for range 8 {
			s := drawRequest(r, p)
			if checkSpec(s) != nil || tx.admit(s, true) != nil {
				continue
			}
			n.asked++
			victims, ok := p.compare(t, tx, s, n)
			if t.Failed() {
				t.Logf("request %v\n%s", s, p)
				return nil
			}
			if ok {
				last, want = s, victims
			}
		}
		return nil
	})
	if last != nil && !t.Failed() {
		w.checkReclaimed(t, last, want)
	}
}

// checkReclaimed makes the request and checks that it gets its GPUs from some leases alone.
func (w *world) checkReclaimed(t *testing.T, s *dxpuv1.LeaseSpec, victims []string) {
	before := w.holders()
	s.Wait = true
	id := w.create(s)
	explanation := w.explain(id)
	if len(victims) == 0 {
		w.wantLease(id, leasePending)
		if !slices.Equal(w.holders(), before) {
			t.Errorf("%q hold GPUs, and %q did before %s", w.holders(), before, id)
		}
		return
	}
	for _, v := range victims {
		if !strings.Contains(explanation, v) || !strings.Contains(explanation, "preempted") {
			t.Errorf("%q are preempted; explanation: %s", victims, explanation)
		}
	}
	if slices.ContainsFunc(victims, func(id string) bool { return w.lease(id).Spec.Wait }) {
		return // a gang may have got other GPUs, or have taken some back
	}
	want := append(slices.DeleteFunc(before, func(id string) bool { return slices.Contains(victims, id) }), id)
	if has := w.holders(); !slices.Equal(has, want) {
		t.Errorf("%q hold GPUs, want %q", has, want)
	}
	w.settle()
	w.settle()
	w.wantLease(id, leaseActive)
}

// holders returns the leases that have GPUs, of a gang the first.
func (w *world) holders() (out []string) {
	_ = w.m.view(func(tx *tx) error {
		for _, id := range tx.leases.ids() {
			if tx.leases.get(id).holds() && tx.firstOfGang(id) == id {
				out = append(out, id)
			}
		}
		return nil
	})
	slices.SortFunc(out, compareLeaseIDs)
	return out
}

func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

// drawBorrowers makes a small pool that tenants have filled, and gives them other quotas then.
func drawBorrowers(t *testing.T, r *rand.Rand, guaranteed bool) *world {
	var nodes []*fakeNode
	for i, left := 0, 2+r.IntN(5); left > 0 && i < 3; i++ {
		n := min(left, 1+r.IntN(4))
		left -= n
		b := boxNode(fmt.Sprint("b", i+1), n)
		b.model, b.memory = "T4", 1<<30
		if oneIn(r, 2) {
			b.model, b.memory = "A100", 2<<30 // all GPUs of a model have one size, which is that of parts
		}
		if oneIn(r, 2) {
			b.divided = 2
		}
		b.labels = map[string]string{"site": []string{"x", "y"}[r.IntN(2)]}
		nodes = append(nodes, b)
	}
	for i := range 1 + r.IntN(3) {
		nodes = append(nodes, hostNode(fmt.Sprint("h", i+1), 1+r.IntN(6)))
	}
	w := newWorld(t, Config{}, nodes...)
	for _, id := range []string{"a", "b", "c"} {
		w.putTenant(id, &dxpuv1.Quota{MaxPriority: proto.Int32(2)})
	}
	for i := range 5 + r.IntN(8) {
		var s *dxpuv1.LeaseSpec
		_ = w.m.view(func(tx *tx) error { s = drawRequest(r, plainPoolOf(tx)); return nil })
		s.Preemptible = s.Preemptible || !oneIn(r, 4)
		if s.Part == nil && oneIn(r, 4) {
			s.Gang, s.Wait = &dxpuv1.Gang{Name: fmt.Sprint("g", i), Size: 2}, true
			_, _ = w.tryCreate(proto.CloneOf(s))
		}
		_, _ = w.tryCreate(s) // some do not fit
	}
	w.settle()
	w.deleteWaiting()
	drawQuotas(w, r, guaranteed)
	for _, n := range nodes {
		if oneIn(r, 8) {
			n.dead[uint32(r.IntN(n.slots))] = n.kind == dxpuv1.NodeKind_NODE_KIND_HOST
		}
	}
	w.settle()
	return w
}

// deleteWaiting deletes the gangs that have no GPUs.
func (w *world) deleteWaiting() {
	var waiting []string
	_ = w.m.view(func(tx *tx) error {
		for _, id := range tx.leases.ids() {
			if tx.leases.get(id).State == leasePending {
				waiting = append(waiting, id)
			}
		}
		return nil
	})
	for _, id := range waiting {
		w.delete(id, false)
	}
	w.settle()
}

// drawQuotas gives the tenants quotas, to most of them with a guarantee, or to none but one.
func drawQuotas(w *world, r *rand.Rand, guaranteed bool) {
	for _, id := range []string{"a", "b", "c"} {
		q := &dxpuv1.Quota{Weight: uint32(r.IntN(3)), MaxPriority: proto.Int32(2)}
		if guaranteed && !oneIn(r, 4) || id == "c" && oneIn(r, 2) {
			q.GuaranteedGpus = proto.Uint32(uint32(r.IntN(4)))
		}
		if oneIn(r, 4) {
			q.MaxGpus = max(q.GetGuaranteedGpus(), uint32(1+r.IntN(5)))
		}
		if oneIn(r, 4) {
			q.MaxGpusByModel = map[string]uint32{"T4": uint32(r.IntN(3))}
		}
		w.putTenant(id, q)
	}
}

func drawRequest(r *rand.Rand, p *plainPool) *dxpuv1.LeaseSpec {
	s := &dxpuv1.LeaseSpec{
		Count: uint32(1 + r.IntN(3)*r.IntN(2)), Tenant: []string{"a", "b", "c"}[r.IntN(3)], Priority: int32(r.IntN(5) - 2), Preemptible: oneIn(r, 2),
	}
	if oneIn(r, 3) {
		s.Part = &dxpuv1.Part{MemoryBytes: uint64(1+r.IntN(8)) << 27, Compute: uint32(1+r.IntN(9)) * 100}
	}
	if p == nil {
		return s
	}
	if oneIn(r, 3) {
		s.HostId = p.hosts[r.IntN(len(p.hosts))].id
	}
	switch r.IntN(12) {
	case 0, 1, 2:
		s.Model = []string{"A100", "T4"}[r.IntN(2)]
	case 3:
		s.BoxLabels = map[string]string{"site": []string{"x", "y"}[r.IntN(2)]}
	case 4:
		s.MinMemoryBytes = 2 << 30
	case 5:
		g := p.gpus[r.IntN(len(p.gpus))]
		s.GpuIds, s.Count = []string{g.ref.String()}, 1
	}
	if s.Count > 1 {
		s.SameBox = []dxpuv1.Preference{0, dxpuv1.Preference_PREFERENCE_REQUIRED, dxpuv1.Preference_PREFERENCE_AVOID}[r.IntN(3)]
	}
	return s
}

// compare compares the manager's decision on a request with that of the search. It returns the
// leases that are preempted, none if no set makes room, and whether the request waits for them.
func (p *plainPool) compare(t *testing.T, tx *tx, s *dxpuv1.LeaseSpec, n *searchCounts) (victims []string, waits bool) {
	l := &leaseRecord{spec: s, State: leasePending, CreateTime: tx.now}
	leases := []*leaseRecord{l}
	quota := tx.quotaReached(leases)
	d := tx.decideTogether(leases)
	if fits := p.fits(s, nil, firstChoice); fits != (quota == "" && d.OK()) {
		t.Errorf("the request fits: %v by the search, but quota %q, decision %v %v", fits, quota, d.Members, d.Why.Why)
	}
	if quota != "" || d.OK() {
		n.fit++
		return nil, false
	}
	chosen, _ := tx.preemptionVictims(leases)
	for _, v := range chosen {
		victims = append(victims, v.ID)
	}
	all := func(c choiceOf) []string { return p.permitted(s, c, true) }
	first, second := p.search(s, all(firstChoice), firstChoice), p.search(s, all(secondChoice), secondChoice)
	if len(victims) == 0 {
		n.none++
		if first != nil || second != nil {
			t.Errorf("no lease is preempted, but %q or %q make room: %q", first, second, tx.whyNotPreempt(leases))
		}
		p.checkWhy(t, s, tx.whyNotPreempt(leases))
		return nil, true
	}
	n.preempt++
	choice := firstChoice
	if first == nil {
		choice = secondChoice
		n.second++
	}
	if !p.fits(s, victims, choice) {
		t.Errorf("%q are preempted, which makes no room or is not permitted; others: %q, %q", victims, first, second)
	}
	p.checkLeast(t, s, victims, choice)
	return victims, true
}

// checkWhy checks what the manager says about a request for which it preempts nothing.
func (p *plainPool) checkWhy(t *testing.T, s *dxpuv1.LeaseSpec, why string) {
	all := p.permitted(s, firstChoice, strings.Contains(why, "borrowed GPUs"))
	lower := slices.ContainsFunc(p.leases, func(l *plainLease) bool { return l.preemptible && l.priority < s.Priority })
	switch {
	case strings.HasPrefix(why, "No preemptible lease has"):
		if lower || len(all) > 0 {
			t.Errorf("%q may be preempted, or others of lower priority are there: %s", all, why)
		}
	case strings.HasPrefix(why, "Preempting "):
		p.checkWhyNoRoom(t, s, all, why)
	case strings.HasPrefix(why, "Of the preemptible leases of lower priority"):
		p.checkWhyUseless(t, s, all, why)
	default:
		t.Errorf("the test does not know %q", why)
	}
}

// checkWhyNoRoom checks what is said of leases that may be preempted and make no room.
func (p *plainPool) checkWhyNoRoom(t *testing.T, s *dxpuv1.LeaseSpec, all []string, why string) {
	said := fmt.Sprintf("Preempting all %d leases ", len(all))
	if len(all) == 1 {
		said = "Preempting the one lease "
	}
	if !strings.HasPrefix(why, said) {
		t.Errorf("%q may be preempted: %s", all, why)
	}
	fits := p.fits(s, all, noRules)
	guarantee := p.tenants[s.Tenant].quota.GuaranteedGPUs != nil
	own := slices.ContainsFunc(all, func(id string) bool { return p.lease(id).tenant == s.Tenant })
	switch {
	case strings.HasSuffix(why, "would not make room."):
		if fits {
			t.Errorf("preempting %q would make room: %s", all, why)
		}
	case !fits:
		t.Errorf("preempting %q makes no room: %s", all, why)
	case strings.Contains(why, "would make room, but let tenant "+s.Tenant+" borrow more in place of its own leases."):
		if !guarantee || !own {
			t.Errorf("the tenant has a guarantee %t, own leases among %q %t: %s", guarantee, all, own, why)
		}
	case strings.Contains(why, "would make room, but the guarantee of tenant "+s.Tenant+" does not cover"):
		if !guarantee {
			t.Errorf("the tenant has no guarantee: %s", why)
		}
	default:
		t.Errorf("the test does not know %q", why)
	}
}

var uselessWhy = regexp.MustCompile(`(?:, |, and )(\d+) (?:has|have) (nothing that it can use now|GPUs within the guarantee of another tenant)`)

// checkWhyUseless checks the numbers of leases that are of no use, or protected.
func (p *plainPool) checkWhyUseless(t *testing.T, s *dxpuv1.LeaseSpec, all []string, why string) {
	reclaims := strings.Contains(why, "borrowed GPUs")
	useless, guarded := 0, 0
	for _, l := range p.leases {
		lower := l.priority < s.Priority
		switch other := l.tenant != s.Tenant && p.tenants[l.tenant].quota.GuaranteedGPUs != nil; {
		case !l.preemptible:
		case !other && lower, other && (lower || reclaims) && slices.Contains(p.borrowing(l.tenant, s, firstChoice), l):
			useless++
		case lower:
			guarded++
		}
	}
	got := map[string]int{}
	for _, m := range uselessWhy.FindAllStringSubmatch(why, -1) {
		n := 0
		_, _ = fmt.Sscan(m[1], &n)
		got[m[2]] = n
	}
	if len(all) > 0 || got["nothing that it can use now"] != useless || got["GPUs within the guarantee of another tenant"] != guarded {
		t.Errorf("%q may be preempted, %d are useless, and %d guarded: %s", all, useless, guarded, why)
	}
}

// checkLeast checks that none of the preempted leases can be left out, that no other single
// lease is a better choice, nor a set of parts of one GPU for one part or GPU.
func (p *plainPool) checkLeast(t *testing.T, s *dxpuv1.LeaseSpec, victims []string, choice choiceOf) {
	for _, id := range victims {
		u := p.tenants[p.lease(id).tenant]
		if g := u.quota.GuaranteedGPUs; p.lease(id).tenant != s.Tenant && g != nil && u.has <= wholeGPUs(*g) {
			t.Errorf("%q are preempted, among them %s, whose tenant has %v of %d guaranteed GPUs", victims, id, u.has, *g)
		}
	}
	for set := range subsets(victims) {
		if len(set) < len(victims) && p.fits(s, set, choice) {
			t.Errorf("%q are preempted, and %q make room", victims, set)
			return
		}
	}
	cost := p.victims(victims)
	for set := range subsets(p.permitted(s, choice, true)) {
		alike := len(set) == 1 || s.Count == 1 && p.partsOfOneGPU(set)
		if alike && p.fits(s, set, choice) && placement.Cheaper(p.victims(set), cost) {
			t.Errorf("%q are preempted, and %q is cheaper", victims, set)
			return
		}
	}
}

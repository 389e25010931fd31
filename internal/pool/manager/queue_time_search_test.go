package manager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// TestPromisesAgainstASearch compares what the manager promises, and whom it lets wait, with a
// plain search, in small pools in which time passes.
func TestPromisesAgainstASearch(t *testing.T) {
	worlds := 15
	if raceEnabled {
		worlds = 3
	}
	var n timeCounts
	for seed := range worlds {
		if timeWorld(t, uint64(seed), &n); t.Failed() {
			t.Fatalf("in the world of seed %d", seed)
		}
	}
	t.Logf("%d reservations are made, %d refused; %d begin; leases wait %d times, %d of them for what is held", n.accepted, n.refused, n.begun, n.queued, n.held)
	if n.accepted < worlds || n.refused < worlds || n.begun < worlds/2 || n.queued < worlds {
		t.Error("the worlds ask too little")
	}
}

type timeCounts struct{ accepted, refused, begun, queued, held int }

// timedWorld is a world in which time passes from one event to the next.
type timedWorld struct {
	*world
	*testing.T
	r        *rand.Rand
	n        *timeCounts
	calm     bool                 // nothing fails, and nothing is cordoned or planned
	promised map[string]time.Time // reservations that have not begun, with their starts
	troubled map[string]bool      // of these, those since which something failed
	log      string
}

func timeWorld(t *testing.T, seed uint64, n *timeCounts) {
	r := rand.New(rand.NewPCG(seed, 2))
	var nodes []*fakeNode
	for i := range 1 + r.IntN(3) {
		b := boxNode(fmt.Sprint("b", i+1), 1+r.IntN(3))
		b.model = []string{"T4", "A100"}[r.IntN(2)]
		nodes = append(nodes, b)
	}
	for i := range 1 + r.IntN(2) {
		nodes = append(nodes, hostNode(fmt.Sprint("h", i+1), 1+r.IntN(5)))
	}
	w := &timedWorld{T: t, r: r, n: n, calm: oneIn(r, 2), promised: map[string]time.Time{}, troubled: map[string]bool{}}
	w.world = newWorld(t, Config{LostAfter: 2 * time.Minute}, nodes...)
	w.drawQuotas()
	w.advance(3 * time.Minute) // all nodes have had time to find the manager
	for range 25 {
		w.act()
		w.rest()
		if !w.calm {
			w.advance(promiseCheck + time.Second) // promises move
		}
		if w.check(); t.Failed() {
			w.fail()
			return
		}
		if w.advance(time.Duration(r.IntN(3)*r.IntN(120)) * time.Second); t.Failed() {
			w.fail()
			return
		}
	}
	if w.empty(); t.Failed() {
		w.fail()
	}
}

func (w *timedWorld) fail() {
	_ = w.m.view(func(tx *tx) error { w.Logf("%s\n%s", w.log, plainTimesOf(tx)); return nil })
}

func (w *timedWorld) note(format string, args ...any) {
	w.log += fmt.Sprintf("%s ", w.clock.now().Sub(time.Unix(1_700_000_000, 0)).Round(time.Second)) + fmt.Sprintf(format, args...) + "\n"
}

func (w *timedWorld) drawQuotas() {
	for _, id := range []string{"a", "b"} {
		q := &dxpuv1.Quota{MaxPriority: proto.Int32(2)}
		if oneIn(w.r, 3) {
			q.MaxGpus = uint32(1 + w.r.IntN(5))
		}
		if oneIn(w.r, 4) {
			q.MaxGpusByModel = map[string]uint32{"T4": uint32(w.r.IntN(3))}
		}
		w.note("quota of %s: %v", id, q)
		w.putTenant(id, q)
	}
}

func (w *timedWorld) act() {
	switch k := w.r.IntN(20); {
	case k < 8:
		w.actLease()
	case k < 13:
		w.actReservation()
	case k < 16:
		w.actDelete()
	case k == 16:
		w.drawQuotas()
	case !w.calm:
		w.disturb()
	}
}

func (w *timedWorld) drawSpec() *dxpuv1.LeaseSpec {
	r := w.r
	s := &dxpuv1.LeaseSpec{Count: uint32(1 + r.IntN(3)*r.IntN(2)), Tenant: []string{"a", "b"}[r.IntN(2)], Priority: int32(r.IntN(5) - 2)}
	if oneIn(r, 4) {
		s.HostId = w.drawNode(dxpuv1.NodeKind_NODE_KIND_HOST)
	}
	switch r.IntN(8) {
	case 0, 1:
		s.Model = []string{"T4", "A100"}[r.IntN(2)]
	case 2:
		box := w.drawNode(dxpuv1.NodeKind_NODE_KIND_BOX)
		s.Count, s.GpuIds = 1, []string{placement.Ref{Box: box, Slot: uint32(r.IntN(w.nodes[box].slots))}.String()}
	}
	return s
}

func (w *timedWorld) drawNode(kind dxpuv1.NodeKind) string {
	var ids []string
	for _, id := range w.order {
		if w.nodes[id].kind == kind {
			ids = append(ids, id)
		}
	}
	return ids[w.r.IntN(len(ids))]
}

func (w *timedWorld) minutes(n int) *durationpb.Duration {
	return durationpb.New(time.Duration(1+w.r.IntN(n)) * time.Minute)
}

func (w *timedWorld) actLease() {
	s := w.drawSpec()
	if oneIn(w.r, 2) {
		s.ExpiresAfter = w.minutes(15)
	}
	s.Wait = !oneIn(w.r, 4)
	var fits bool
	var quota string
	_ = w.m.view(func(tx *tx) error {
		l := &leaseRecord{spec: s, State: leasePending, CreateTime: tx.now}
		quota = tx.quotaReached([]*leaseRecord{l})
		c := claimOf(tx, "", s)
		if r := tx.reservedFrom("", s, sizeOf(s)); r != nil {
			c.without = r.places()
		}
		fits = quota == "" && plainTimesOf(tx).fits(&c)
		return nil
	})
	id, err := w.tryCreate(s)
	w.note("lease %s: %v: %v", id, s, err)
	if err != nil && connect.CodeOf(err) != connect.CodeResourceExhausted {
		return // its quota never admits it
	}
	has := err == nil && w.lease(id).State != leasePending
	if has != fits {
		w.Errorf("lease %s has its GPUs at once: %t, by the search %t; %v %s", id, has, fits, err, quota)
	}
}

// places returns what a reservation holds.
func (r *reservation) places() []placement.Ref {
	out := slices.Clone(r.gpus)
	for _, s := range r.slots {
		out = append(out, placement.Ref{Box: s.Host, Slot: s.Slot})
	}
	return out
}

func (w *timedWorld) actReservation() {
	s := w.drawSpec()
	s.StartTime = timestamppb.New(w.clock.now().Add(w.minutes(20).AsDuration()))
	s.ExpiresAfter = w.minutes(15)
	if w.r.IntN(3) == 0 {
		for _, at := range w.promised { // as others
			s.StartTime = timestamppb.New(at)
			break
		}
	}
	if !s.StartTime.AsTime().After(w.clock.now()) {
		return
	}
	var p *plainTimes
	var c, head claim
	var holder string
	var begins bool // before what is to be promised
	var gathered []placement.Ref
	_ = w.m.view(func(tx *tx) error {
		p, c = plainTimesOf(tx), claimOf(tx, "", s)
		c.mayHave = mayOf(func(model string) bool { return promisesOverQuota(tx, s, model) == "" })
		if r := tx.reservedFrom("", s, sizeOf(s)); r != nil {
			l := tx.leases.get(r.lease)
			head = claimOf(tx, r.lease, l.spec)
			head.mayHave = mayOf(func(model string) bool { return tx.overQuota(l.spec.Tenant, l.size(), model) == "" })
			if begins = p.begin(&head, c.freeBy); !begins || head.until.IsZero() || head.until.After(c.freeBy) {
				holder, gathered = r.lease, r.places()
			}
		}
		return nil
	})
	id, err := w.tryCreate(s)
	w.note("reservation %s: %v: %v", id, s, err)
	if err != nil && (connect.CodeOf(err) != connect.CodeResourceExhausted || strings.HasPrefix(connectMessage(err), "spec.")) {
		return // its quota does not admit it
	}
	fits := p.fits(&c)
	rest := c
	rest.without = gathered
	switch {
	case holder == "":
	case begins:
		fits = fits && p.fitBoth(&c, &head)
	default:
		fits = p.fits(&rest)
	}
	if (err == nil) != fits {
		w.Errorf("a reservation %s is made: %t, by the search %t; first in the queue: %q with %v: %v", id, err == nil, fits, holder, gathered, err)
		return
	}
	if err != nil {
		w.n.refused++
		return
	}
	w.n.accepted++
	w.promised[id] = s.StartTime.AsTime()
	for _, o := range w.nodes {
		w.troubled[id] = w.troubled[id] || o.down
	}
	var now *plainTimes
	_ = w.m.view(func(tx *tx) error { now = plainTimesOf(tx); return nil })
	q := now.promises[slices.IndexFunc(now.promises, func(q plainPromise) bool { return q.lease == id })]
	for _, o := range slices.Concat(p.gpus, p.slots) {
		if slices.Contains(slices.Concat(q.gpus, q.slots), o.ref) && !p.free(&o, &c) {
			w.Errorf("%s is promised to %s, and is not free then", o.ref, id)
		}
	}
	head.without = slices.Concat(q.gpus, q.slots)
	if holder != "" && begins && !p.fits(&head) {
		w.Errorf("the promise to %s leaves too little to %s, the first of the queue", id, holder)
	}
}

// mayOf remembers an answer for each model.
func mayOf(f func(model string) bool) func(model string) bool {
	t4, a100 := f("T4"), f("A100")
	return func(model string) bool { return model == "T4" && t4 || model == "A100" && a100 }
}

func connectMessage(err error) string {
	_, s, _ := strings.Cut(err.Error(), ": ")
	return s
}

// promisesOverQuota returns why the quotas by model do not admit a reservation.
func promisesOverQuota(tx *tx, s *dxpuv1.LeaseSpec, model string) string {
	limit, ok := tx.quota(s.Tenant).MaxGPUsByModel[model]
	n := int(s.Count)
	for _, id := range tx.leases.ids() {
		if l := tx.leases.get(id); l.Promise != nil && l.spec.Tenant == s.Tenant && tx.modelAt(l.Promise.GPUs[0]) == model {
			n += int(l.spec.Count)
		}
	}
	if ok && n > int(limit) {
		return "over"
	}
	return ""
}

func (w *timedWorld) actDelete() {
	var open []string
	for _, l := range w.leases() {
		if l.EndTime == nil {
			open = append(open, l.Id)
		}
	}
	if len(open) > 0 {
		id := open[w.r.IntN(len(open))]
		w.note("delete %s", id)
		w.delete(id, true)
		delete(w.promised, id)
	}
}

func (w *timedWorld) disturb() {
	for id := range w.promised {
		w.troubled[id] = true
	}
	id := w.order[w.r.IntN(len(w.order))]
	n := w.nodes[id]
	target := atHost(id)
	if n.box() {
		target = atBox(id)
	}
	switch w.r.IntN(5) {
	case 0:
		slot := uint32(w.r.IntN(n.slots))
		n.dead[slot] = !n.dead[slot]
		w.note("slot %d of %s dead: %t", slot, id, n.dead[slot])
	case 1:
		w.note("cordon %s", id)
		_ = w.m.update(context.Background(), func(tx *tx) error { return tx.cordon(target, 0, &cordon{}) })
	case 2:
		w.note("uncordon %s", id)
		w.uncordon(target)
	case 3:
		w.plan(id, n.box())
	case 4:
		n.down = !n.down
		w.note("%s is down: %t", id, n.down)
	}
}

func (w *timedWorld) plan(id string, box bool) {
	start := w.clock.now().Add(w.minutes(10).AsDuration())
	m := &dxpuv1.Maintenance{Target: &dxpuv1.Maintenance_HostId{HostId: id}, StartTime: timestamppb.New(start), EndTime: timestamppb.New(start.Add(w.minutes(10).AsDuration()))}
	if box {
		m.Target = &dxpuv1.Maintenance_BoxId{BoxId: id}
	}
	if oneIn(w.r, 2) {
		m.DrainBefore = w.minutes(2)
	}
	_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: m}))
	w.note("plan %v: %v", m, err)
}

// advance lets time pass from one event to the next.
func (w *timedWorld) advance(d time.Duration) {
	end := w.clock.now().Add(d)
	for w.clock.now().Before(end) && !w.Failed() {
		next := w.clock.now().Add(50 * time.Second)
		for _, at := range append(w.times(), end) {
			if at.After(w.clock.now()) && at.Before(next) {
				next = at
			}
		}
		w.pass(next.Sub(w.clock.now()))
		w.rest()
		w.checkStarts()
	}
}

// times returns when something happens by the clock alone.
func (w *world) times() (out []time.Time) {
	_ = w.m.view(func(tx *tx) error {
		for _, id := range tx.leases.ids() {
			if l := tx.leases.get(id); !l.ended() {
				out = append(out, l.expires(), startTime(l.spec), startTime(l.spec).Add(-promiseLead))
			}
		}
		for _, id := range tx.plans.ids() {
			p := tx.plans.get(id)
			out = append(out, p.closes(), p.Start, p.End)
		}
		return nil
	})
	return out
}

// rest lets the nodes attach and release GPUs.
func (w *timedWorld) rest() {
	for range 3 {
		w.settle()
		busy := false
		_ = w.m.view(func(tx *tx) error {
			for _, id := range tx.bindings.ids() {
				b := tx.bindings.get(id)
				busy = busy || b.State != attached && b.State != released
			}
			return nil
		})
		if !busy {
			return
		}
	}
}

package manager

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// TestWalkAgainstASearch walks at random through small pools in which everything that decides
// about leases happens together: parts, gangs, guarantees, preemption, racks and networks, labels
// and taints, drains, maintenance, failures and resizes. After each round it compares the pool
// with a plain search.
//
// A GPU is given to no lease that may not have it, no quota is exceeded, a gang has its GPUs
// or none, nothing stays where it must leave, and a lease waits only while it has no place, with
// reasons that are true.
func TestWalkAgainstASearch(t *testing.T) {
	worlds := 40
	if raceEnabled {
		worlds = 4
	}
	var n walkCounts
	for seed := range worlds {
		if walkWorld(t, uint64(seed), &n); t.Failed() {
			t.Fatalf("in the world of seed %d", seed)
		}
	}
	t.Logf("%+v", n)
	if raceEnabled {
		return // too few worlds to count
	}
	if n.bound < 5*worlds || n.waits < worlds || n.preempted < worlds/4 || n.gangs < worlds/4 || n.grown < worlds/8 || n.moved < worlds/8 {
		t.Error("the worlds ask too little")
	}
}

type walkCounts struct{ bound, waits, preempted, gangs, grown, moved, degraded, begun int }

// poolWalk is a world through which a test walks.
type poolWalk struct {
	*world
	*testing.T
	r      *rand.Rand
	n      *walkCounts
	boxes  []string
	hosts  []string
	epoch  uint64            // of the newest binding that was checked
	used   map[string]usages // of each tenant, after the last round
	gangs  int
	calm   time.Time // since when nothing has changed but the time
	log    string
	starts map[string]time.Time // reservations that nothing has disturbed
}

func walkWorld(t *testing.T, seed uint64, n *walkCounts) {
	r := rand.New(rand.NewPCG(seed, 3))
	w := &poolWalk{T: t, r: r, n: n, used: map[string]usages{}, starts: map[string]time.Time{}}
	var nodes []*fakeNode
	for i := range 1 + r.IntN(3) {
		b := boxNode(fmt.Sprint("b", i+1), 1+r.IntN(4))
		b.model, b.memory = "T4", 1<<30
		if oneIn(r, 2) {
			b.model, b.memory = "A100", 2<<30
		}
		b.divided = 2 * r.IntN(2)
		b.proxy = uint32(r.IntN(3))
		w.boxes, nodes = append(w.boxes, b.id), append(nodes, b)
	}
	for i := range 1 + r.IntN(3) {
		h := hostNode(fmt.Sprint("h", i+1), 2+r.IntN(4))
		w.hosts, nodes = append(w.hosts, h.id), append(nodes, h)
	}
	for _, n := range nodes {
		n.rack = []string{"", "r1", "r2"}[r.IntN(3)]
		n.labels = map[string]string{"site": []string{"x", "y"}[r.IntN(2)]}
		n.paths = [][]uint32{nil, nil, {0}, {1}, {0, 1}}[r.IntN(5)]
	}
	w.world = newWorld(t, Config{LostAfter: 2 * time.Minute, RackUplink: r.IntN(3)}, nodes...)
	w.drawQuotas()
	w.advance(3 * time.Minute) // all nodes have had time to find the manager
	for range 40 {
		w.act()
		w.rest()
		if w.check(); t.Failed() {
			break
		}
		if w.advance(time.Duration(r.IntN(3)*r.IntN(120)) * time.Second); t.Failed() {
			break
		}
	}
	if !t.Failed() {
		w.empty()
	}
	if t.Failed() {
		_ = w.m.view(func(tx *tx) error { t.Logf("%s\n%s", w.log, walkPoolOf(tx)); return nil })
	}
}

func (w *poolWalk) note(format string, args ...any) {
	w.log += fmt.Sprintf("%s ", w.clock.now().Sub(time.Unix(1_700_000_000, 0)).Round(time.Second)) + fmt.Sprintf(format, args...) + "\n"
}

func (w *poolWalk) drawQuotas() {
	for _, id := range []string{"a", "b", "c"} {
		q := &dxpuv1.Quota{Weight: uint32(w.r.IntN(3)), MaxPriority: proto.Int32(2)}
		if oneIn(w.r, 2) {
			q.GuaranteedGpus = proto.Uint32(uint32(w.r.IntN(4)))
		}
		if oneIn(w.r, 4) {
			q.MaxGpus = max(q.GetGuaranteedGpus(), uint32(1+w.r.IntN(5)))
		}
		if oneIn(w.r, 4) {
			q.MaxGpusByModel = map[string]uint32{"T4": uint32(w.r.IntN(3))}
		}
		w.note("quota of %s: %v", id, q)
		w.putTenant(id, q)
	}
	clear(w.used) // what tenants have above a new quota stays
}

func (w *poolWalk) act() {
	w.calm = w.clock.now()
	switch k := w.r.IntN(28); {
	case k < 8:
		w.actLease()
	case k < 10:
		w.actGang()
	case k < 13:
		w.actDelete()
	case k < 16:
		w.actResize()
	case k < 20:
		w.actReservation()
	case k == 20:
		w.drawQuotas()
		clear(w.starts)
	default:
		clear(w.starts)
		w.disturb()
	}
}

func (w *poolWalk) some(ids []string) string { return ids[w.r.IntN(len(ids))] }

func (w *poolWalk) drawPart() *dxpuv1.Part {
	return &dxpuv1.Part{MemoryBytes: uint64(1+w.r.IntN(8)) << 27, Compute: uint32(1+w.r.IntN(9)) * 100}
}

func (w *poolWalk) drawSpec() *dxpuv1.LeaseSpec {
	r := w.r
	s := &dxpuv1.LeaseSpec{
		Count: uint32(1 + r.IntN(3)*r.IntN(2)), Tenant: []string{"a", "b", "c"}[r.IntN(3)], Priority: int32(r.IntN(5) - 2),
		Preemptible: oneIn(r, 2), Wait: !oneIn(r, 4),
	}
	if oneIn(r, 3) {
		s.Part = w.drawPart()
	}
	if oneIn(r, 2) {
		s.ExpiresAfter = durationpb.New(time.Duration(1+r.IntN(10)) * time.Minute)
	}
	if oneIn(r, 5) {
		s.HostId = w.some(w.hosts)
	}
	if oneIn(r, 3) {
		s.Tolerations = []*dxpuv1.Toleration{{Key: "k", AnyValue: true}}
	}
	switch r.IntN(10) {
	case 0, 1:
		s.Model = []string{"A100", "T4"}[r.IntN(2)]
	case 2:
		s.BoxLabels = map[string]string{"site": []string{"x", "y"}[r.IntN(2)]}
	case 3:
		s.HostLabels = map[string]string{"site": []string{"x", "y"}[r.IntN(2)]}
	case 4:
		s.MinMemoryBytes = 2 << 30
	case 5:
		box := w.some(w.boxes)
		s.GpuIds, s.Count = []string{placement.Ref{Box: box, Slot: uint32(r.IntN(w.nodes[box].slots))}.String()}, 1
	}
	if s.Count > 1 {
		s.SameBox = []dxpuv1.Preference{0, dxpuv1.Preference_PREFERENCE_REQUIRED, dxpuv1.Preference_PREFERENCE_AVOID}[r.IntN(3)]
	}
	return s
}

func (w *poolWalk) actLease() {
	s := w.drawSpec()
	id, err := w.tryCreate(s)
	w.note("lease %s: %v: %v", id, s, err)
	w.checkRound()
}

func (w *poolWalk) actGang() {
	first := w.drawSpec()
	first.Part, first.Wait, first.Count = nil, true, uint32(1+w.r.IntN(2))
	size := uint32(2)
	w.gangs++
	for range size {
		s := w.drawSpec()
		s.Part, s.Wait, s.Count, s.Tenant, s.Priority, s.Preemptible = nil, true, uint32(1+w.r.IntN(2)), first.Tenant, first.Priority, first.Preemptible
		s.Gang = &dxpuv1.Gang{Name: fmt.Sprint("g", w.gangs), Size: size}
		if s.Count == 1 {
			s.SameBox = 0
		}
		id, err := w.tryCreate(s)
		w.note("lease %s: %v: %v", id, s, err)
		w.checkRound()
		if oneIn(w.r, 6) {
			return // it stays incomplete
		}
	}
}

// open returns the leases that have not ended, false if there are none.
func (w *poolWalk) open(active bool) (ids []string, ok bool) {
	for _, l := range w.leases() {
		if l.EndTime == nil && (!active || l.State == leaseActive) {
			ids = append(ids, l.Id)
		}
	}
	return ids, len(ids) > 0
}

func (w *poolWalk) actDelete() {
	if ids, ok := w.open(oneIn(w.r, 2)); ok {
		id := w.some(ids)
		w.note("delete %s", id)
		w.delete(id, true)
		delete(w.starts, id)
	}
}

func (w *poolWalk) actReservation() {
	s := w.drawSpec()
	s.Part, s.Wait = nil, true
	s.StartTime = timestamppb.New(w.clock.now().Add(time.Duration(2+w.r.IntN(8)) * time.Minute))
	s.ExpiresAfter = durationpb.New(time.Duration(1+w.r.IntN(10)) * time.Minute)
	id, err := w.tryCreate(s)
	w.note("reservation %s: %v: %v", id, s, err)
	if err == nil && !s.Preemptible {
		w.starts[id] = s.StartTime.AsTime()
	}
}

func (w *poolWalk) target(id string) *dxpuv1.Target {
	if n := w.nodes[id]; !n.box() {
		return atHost(id)
	} else if oneIn(w.r, 2) {
		return atGPU(placement.Ref{Box: id, Slot: uint32(w.r.IntN(n.slots))}.String())
	}
	return atBox(id)
}

func (w *poolWalk) disturb() {
	id := w.some(w.order)
	n, target := w.nodes[id], w.target(id)
	switch w.r.IntN(9) {
	case 0:
		slot := uint32(w.r.IntN(n.slots))
		n.dead[slot] = !n.dead[slot]
		w.note("slot %d of %s dead: %t", slot, id, n.dead[slot])
	case 1, 2:
		deadline := time.Duration(w.r.IntN(3)*w.r.IntN(60)) * time.Second
		w.note("drain %v within %s", target, deadline)
		w.drain(target, deadline)
	case 3, 4:
		for _, id := range w.order {
			w.uncordon(atBox(id))
			w.uncordon(atHost(id))
			for slot := range w.nodes[id].slots {
				w.uncordon(atGPU(placement.Ref{Box: id, Slot: uint32(slot)}.String()))
			}
		}
		w.note("uncordon all")
	case 5:
		w.taint(target)
	case 6:
		w.plan(id)
	case 7:
		n.down = !n.down && oneIn(w.r, 2)
		w.note("%s is down: %t", id, n.down)
	case 8:
		n.rack = []string{"", "r1", "r2"}[w.r.IntN(3)]
		n.labels = map[string]string{"site": []string{"x", "y"}[w.r.IntN(2)]}
		n.proxy = uint32(w.r.IntN(3))
		w.note("%s is in rack %q, with labels %v", id, n.rack, n.labels)
	}
}

func (w *poolWalk) taint(target *dxpuv1.Target) {
	req := &dxpuv1.SetTaintsRequest{Target: target}
	effect := []dxpuv1.TaintEffect{dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE, dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE}[w.r.IntN(2)]
	if oneIn(w.r, 2) {
		req.Set = []*dxpuv1.Taint{{Key: "k", Effect: effect}}
	} else {
		req.Remove = []*dxpuv1.Taint{{Key: "k"}}
	}
	_, err := w.api().SetTaints(context.Background(), connect.NewRequest(req))
	w.note("taints %v: %v", req, err)
}

func (w *poolWalk) plan(id string) {
	start := w.clock.now().Add(time.Duration(w.r.IntN(10)) * time.Minute)
	m := &dxpuv1.Maintenance{
		Target: &dxpuv1.Maintenance_HostId{HostId: id}, StartTime: timestamppb.New(start), EndTime: timestamppb.New(start.Add(time.Duration(1+w.r.IntN(10)) * time.Minute)),
		KeepLeases: oneIn(w.r, 3),
	}
	switch {
	case oneIn(w.r, 4):
		m.Target = &dxpuv1.Maintenance_Rack{Rack: []string{"r1", "r2"}[w.r.IntN(2)]}
	case w.nodes[id].box():
		m.Target = &dxpuv1.Maintenance_BoxId{BoxId: id}
	}
	if oneIn(w.r, 2) {
		m.DrainBefore = durationpb.New(time.Duration(1+w.r.IntN(3)) * time.Minute)
	}
	_, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(&dxpuv1.PlanMaintenanceRequest{Maintenance: m}))
	w.note("plan %v: %v", m, err)
}

// advance lets time pass from one event to the next.
func (w *poolWalk) advance(d time.Duration) {
	end := w.clock.now().Add(d)
	for w.clock.now().Before(end) && !w.Failed() {
		next := w.clock.now().Add(50 * time.Second)
		for _, at := range append(w.times(), end) {
			if at.After(w.clock.now()) && at.Before(next) {
				next = at
			}
		}
		w.calm = w.clock.now()
		w.pass(next.Sub(w.clock.now()))
		w.follow()
	}
}

// rest lets the nodes attach and release GPUs, and looks at the pool after each round. It takes
// some seconds, so that what could not move at once has moved.
func (w *poolWalk) rest() {
	for range 4 {
		w.follow()
		w.pass(900 * time.Millisecond)
	}
	w.follow()
}

// follow lets the nodes follow the manager until nothing is under way.
func (w *poolWalk) follow() {
	for n := range 12 {
		w.rounds(1)
		if w.checkRound(); w.Failed() || n > 0 && !w.busy() {
			return
		}
	}
}

// busy reports whether a node is to attach or to release something.
func (w *poolWalk) busy() (busy bool) {
	_ = w.m.view(func(tx *tx) error {
		for _, id := range tx.bindings.ids() {
			s := tx.bindings.get(id).State
			busy = busy || s != attached && s != released && s != lost
		}
		return nil
	})
	return busy
}

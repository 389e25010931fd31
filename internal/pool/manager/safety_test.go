package manager

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// fewerChecks lets a test check a quarter of the random sequences.
func fewerChecks(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	n, err := strconv.Atoi(checks.Value.String())
	if err != nil {
		t.Fatal(err)
	}
	set := func(n int) {
		if err := checks.Value.Set(strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	set(max(n/4, 1))
	t.Cleanup(func() { set(n) })
}

// In any order of events no GPU serves two bindings, no host slot has two, and no node
// receives a binding too early. Once the faults are over everything converges and
// nothing has leaked.
func TestSafety(t *testing.T) {
	if raceEnabled {
		fewerChecks(t)
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, Config{
			Quarantine: gpuerr.Backoff{Base: 2 * time.Second, Max: 8 * time.Second}, Probation: gpuerr.Backoff{Base: 2 * time.Second, Max: 8 * time.Second},
			Reserve:     placement.Reserve{Count: rapid.IntRange(0, 2).Draw(t, "spares")},
			HostTimeout: time.Duration(rapid.SampledFrom([]int{-1, 3, 600}).Draw(t, "host timeout")) * time.Second,
			RackUplink:  rapid.IntRange(0, 2).Draw(t, "uplink"),
		},
			hostNode("h1", 2), hostNode("h2", 3), dividedBox("b1", 2), dividedBox("b2", 3))
		w.putTenant("a", &dxpuv1.Quota{MaxGpus: 3})
		w.putTenant("b", nil)
		var leases []string
		promises := &promiseWatch{}
		node := rapid.SampledFrom(w.order)
		box := rapid.SampledFrom([]string{"b1", "b2"})
		host := rapid.SampledFrom([]string{"h1", "h2"})
		someLease := func(t *rapid.T) string {
			if len(leases) == 0 {
				t.Skip("no lease")
			}
			return rapid.SampledFrom(leases).Draw(t, "lease")
		}
		someTarget := func(t *rapid.T) *dxpuv1.Target {
			return rapid.SampledFrom([]*dxpuv1.Target{atGPU("b1/0"), atGPU("b2/2"), atBox("b1"), atBox("b2"), atHost("h1"), atHost("h2")}).Draw(t, "target")
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				id, err := w.tryCreate(&dxpuv1.LeaseSpec{
					Count: rapid.Uint32Range(1, 3).Draw(t, "count"), Wait: rapid.Bool().Draw(t, "wait"),
					SameBox: dxpuv1.Preference(rapid.IntRange(0, 3).Draw(t, "same")),
					Tenant:  rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"), Priority: rapid.Int32Range(0, 2).Draw(t, "priority"),
					Preemptible: rapid.Bool().Draw(t, "preemptible"), ExpiresAfter: rapid.SampledFrom([]*durationpb.Duration{nil, nil, durationpb.New(10 * time.Second)}).Draw(t, "expires"),
				})
				if err == nil {
					leases = append(leases, id)
				}
			},
			"part": func(t *rapid.T) {
				id, err := w.tryCreate(&dxpuv1.LeaseSpec{
					Count: rapid.Uint32Range(1, 2).Draw(t, "count"), Wait: rapid.Bool().Draw(t, "wait"), Part: drawPart(t),
					Tenant: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"), Priority: rapid.Int32Range(0, 2).Draw(t, "priority"),
					Preemptible: rapid.Bool().Draw(t, "preemptible"), PartRules: &dxpuv1.PartRules{
						AntiAffinity: rapid.SampledFrom([]string{"", "x"}).Draw(t, "anti"), Exclusion: rapid.SampledFrom([]string{"", "", "y"}).Draw(t, "exclusion"),
					},
				})
				if err == nil {
					leases = append(leases, id)
				}
			},
			"resize part": func(t *rapid.T) {
				_ = w.resizePart(someLease(t), drawPart(t), time.Duration(rapid.IntRange(0, 3).Draw(t, "s"))*time.Second)
			},
			"keep": func(t *rapid.T) { n := w.nodes[box.Draw(t, "box")]; n.keeps = !n.keeps },
			"gang": func(t *rapid.T) {
				id, err := w.tryCreate(&dxpuv1.LeaseSpec{
					Count: rapid.Uint32Range(1, 2).Draw(t, "count"), Wait: true, Tenant: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"),
					HostId: rapid.SampledFrom([]string{"", "h1", "h2"}).Draw(t, "host"), Preemptible: rapid.Bool().Draw(t, "preemptible"),
					Gang: &dxpuv1.Gang{Name: rapid.SampledFrom([]string{"g1", "g2"}).Draw(t, "gang"), Size: 2},
				})
				if err == nil {
					leases = append(leases, id)
				}
			},
			"delete": func(t *rapid.T) { w.delete(someLease(t), rapid.Bool().Draw(t, "grace")) },
			"replace": func(t *rapid.T) {
				l := w.lease(someLease(t))
				if len(l.Bindings) > 0 {
					_, _ = (&poolService{m: w.m}).ReplaceGPU(context.Background(),
						connect.NewRequest(&dxpuv1.ReplaceGPURequest{GpuId: l.Bindings[len(l.Bindings)-1].GpuId}))
				}
			},
			"migrate": func(t *rapid.T) {
				l := w.lease(someLease(t))
				if len(l.Bindings) > 0 {
					_, _ = w.migrate(&dxpuv1.MigrateLeaseRequest{LeaseId: l.Id, GpuId: l.Bindings[len(l.Bindings)-1].GpuId})
				}
			},
			"cancel migration": func(t *rapid.T) {
				_, _ = w.api().CancelMigration(context.Background(), connect.NewRequest(&dxpuv1.CancelMigrationRequest{LeaseId: someLease(t)}))
			},
			"reserve": func(t *rapid.T) {
				s := w.later(rapid.Uint32Range(1, 3).Draw(t, "count"),
					time.Duration(rapid.IntRange(1, 90).Draw(t, "in"))*time.Second, time.Duration(rapid.IntRange(1, 120).Draw(t, "lasts"))*time.Second)
				s.Tenant, s.Preemptible = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tenant"), rapid.Bool().Draw(t, "preemptible")
				if id, err := w.tryCreate(s); err == nil {
					leases = append(leases, id)
				}
			},
			"hinder": func(t *rapid.T) {
				w.nodes[node.Draw(t, "node")].moves = rapid.SampledFrom([]move{{}, {fails: "a fault"}, {stalls: true}, {never: true}}).Draw(t, "moves")
			},
			"resize": func(t *rapid.T) {
				_ = w.resize(someLease(t), rapid.Uint32Range(1, 4).Draw(t, "count"), 0)
			},
			"drain": func(t *rapid.T) {
				w.drain(someTarget(t), time.Duration(rapid.IntRange(0, 3).Draw(t, "s"))*time.Second)
			},
			"uncordon": func(t *rapid.T) { w.uncordon(someTarget(t)) },
			"hear":     func(t *rapid.T) { w.deliver(node.Draw(t, "node")) },
			"tell":     func(t *rapid.T) { w.report(node.Draw(t, "node")) },
			"pass":     func(t *rapid.T) { w.pass(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond) },
			"settle":   func(*rapid.T) { w.settle() },
			"kill":     func(t *rapid.T) { n := w.nodes[node.Draw(t, "node")]; n.down = !n.down },
			"deafen":   func(t *rapid.T) { n := w.nodes[node.Draw(t, "node")]; n.deaf = !n.deaf },
			"refuse":   func(t *rapid.T) { n := w.nodes[node.Draw(t, "node")]; n.refuses = !n.refuses },
			"expel":    func(t *rapid.T) { w.deleteAndForget(node.Draw(t, "node")) },
			"restart":  func(t *rapid.T) { w.nodes[node.Draw(t, "node")].restart() },
			"amnesia":  func(t *rapid.T) { w.nodes[node.Draw(t, "node")].forget() },
			"break": func(t *rapid.T) {
				n, i := w.nodes[box.Draw(t, "box")], rapid.Uint32Range(0, 1).Draw(t, "slot")
				n.dead[i] = !n.dead[i]
			},
			"fail": func(t *rapid.T) {
				id := ""
				if len(leases) > 0 {
					id = someLease(t)
				}
				_ = w.m.update(context.Background(), func(t *tx) error {
					_, _ = t.createLease("", &dxpuv1.LeaseSpec{Count: 2, Wait: true})
					if l := t.leases.get(id); l != nil && !l.ended() {
						t.endLease(id, dxpuv1.Reason_REASON_LEASE_DELETED, "deleted", false)
					}
					if err := t.settle(); err != nil {
						return err
					}
					return errors.New("the call fails after all")
				})
			},
			"unlist": func(t *rapid.T) {
				n, i := w.nodes[node.Draw(t, "node")], rapid.Uint32Range(0, 1).Draw(t, "slot")
				n.unlisted[i] = !n.unlisted[i] && n.has[i] == nil
			},
			"duplicate": func(t *rapid.T) {
				n := w.nodes[box.Draw(t, "box")]
				n.serials[rapid.Uint32Range(0, 1).Draw(t, "slot")] = rapid.SampledFrom([]string{"", "S1", "S2"}).Draw(t, "serial")
			},
			"move": func(t *rapid.T) {
				w.nodes[node.Draw(t, "node")].rack = rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "rack")
			},
			"eject": func(t *rapid.T) { n := w.nodes[host.Draw(t, "host")]; n.ejects = !n.ejects },
			"replug": func(t *rapid.T) {
				if l := w.lease(someLease(t)); len(l.Bindings) > 0 {
					_, _ = (&poolService{m: w.m}).ReplugGPU(context.Background(),
						connect.NewRequest(&dxpuv1.ReplugGPURequest{GpuId: l.Bindings[len(l.Bindings)-1].GpuId}))
				}
			},
			"hold": func(t *rapid.T) {
				n := w.nodes[host.Draw(t, "host")]
				n.holds = rapid.SampledFrom([]string{"", "a driver has it", "a driver has it and uses it"}).Draw(t, "why")
				n.forces = n.holds
			},
			"cut": func(t *rapid.T) { n := w.nodes[host.Draw(t, "host")]; n.linkDown = !n.linkDown },
			"":    func(t *rapid.T) { w.check(t, promises) },
		})
		w.heal()
		w.check(t, promises)
		w.checkConverged(t, leases)
	})
}

// check compares the nodes with each other and with the records.
func (w *world) check(t *rapid.T, promises *promiseWatch) {
	w.checkIndex(t)
	type side struct {
		node string
		slot uint32
	}
	_ = w.m.view(func(tx *tx) error {
		gpus := map[placement.Ref]string{}
		wanted := map[side]string{}
		for _, id := range tx.bindings.ids() {
			b := tx.bindings.get(id)
			if b.holdsGPU() {
				if other := gpus[b.ref()]; other != "" {
					t.Fatalf("GPU %s belongs to %s and %s", b.gpuID(), other, b.ID)
				}
				gpus[b.ref()] = b.ID
			}
			if b.AwaitsGPUOf != "" && b.wantedByBox() {
				t.Fatalf("%s waits for a GPU, and its box has it in the desired state", b.ID)
			}
			if b.wantedByHost() {
				at := side{b.HostID, b.HostSlot}
				if other := wanted[at]; other != "" {
					t.Fatalf("host slot %v is wanted for %s and %s", at, other, b.ID)
				}
				wanted[at] = b.ID
			}
		}
		checkParts(t, w, tx)
		w.checkUse(t, tx)
		checkGangs(t, tx)
		promises.check(t, w, tx)
		// The records call no binding gone that a node has.
		for _, n := range w.nodes {
			for slot, has := range n.has {
				b := tx.bindings.get(has.BindingId)
				if b == nil || n.box() && b.BoxClear || !n.box() && b.HostClear {
					t.Fatalf("%s slot %d has %s, which the records call gone: %+v", n.id, slot, has.BindingId, b)
				}
			}
		}
		return nil
	})
}

// checkGangs checks that the leases of a gang wait together, have GPUs together and end
// together, and that none has GPUs before all of them exist.
func checkGangs(t *rapid.T, tx *tx) {
	for gang, ids := range tx.gangs {
		waiting, holding, ending := 0, 0, 0
		for _, id := range ids {
			switch l := tx.leases.get(id); {
			case l.State == leasePending:
				waiting++
			case l.holds():
				holding++
			default:
				ending++
			}
		}
		if holding > 0 && holding < 2 || min(waiting, holding)+min(waiting, ending)+min(holding, ending) > 0 {
			t.Fatalf("of gang %v %d leases wait, %d have GPUs and %d end", gang, waiting, holding, ending)
		}
	}
}

// heal ends all faults and waits until the pool is at rest.
func (w *world) heal() {
	for _, n := range w.nodes {
		n.keeps, n.moves = false, move{}
		n.down, n.deaf, n.refuses, n.linkDown, n.ejects, n.holds = false, false, false, false, false, ""
		clear(n.dead)
		clear(n.unlisted)
		clear(n.serials)
		target := atHost(n.id)
		if n.box() {
			target = atBox(n.id)
			for i := range uint32(n.slots) {
				w.uncordon(atGPU(gpuID(n.id, i)))
			}
		}
		w.uncordon(target)
	}
	// The pool is at rest when nothing has happened for longer than any deadline, and no time
	// of a lease comes.
	for quiet, n := 0, 0; (quiet < 25 || w.timeComes()) && n < 300; n++ {
		before := w.m.totals().Revision
		w.rounds(1)
		w.pass(900 * time.Millisecond) // less than the time after which a node is lost
		if quiet++; w.m.totals().Revision != before {
			quiet = 0
		}
	}
	w.rounds(3)
}

func (w *world) checkConverged(t *rapid.T, leases []string) {
	held, bound := 0, map[string]bool{} // host slots; GPUs
	for _, id := range leases {
		l := w.lease(id)
		switch l.State {
		case leaseActive:
			held += int(l.Spec.Count)
			if n := len(strings.Fields(w.has(id))); n != int(l.Spec.Count) {
				t.Fatalf("lease %s has %d GPUs and should have %d\n%s", id, n, l.Spec.Count, w.events())
			}
		case leasePending:
			w.checkBegun(t, id)
		case leaseReleased, leaseFailed:
		case leaseDegraded: // other leases took the GPUs close to its own
			if l.Spec.SameBox != dxpuv1.Preference_PREFERENCE_REQUIRED {
				t.Fatalf("lease %s came to rest as degraded (%s)\n%s", id, l.StateReason, w.events())
			}
			for _, b := range l.Bindings {
				if b.State == attached {
					held++
				}
			}
		default:
			t.Fatalf("lease %s came to rest as %s (%s)\n%s", id, leaseWord(l.State), l.StateReason, w.events())
		}
		for _, b := range l.Bindings {
			if b.State == attached {
				bound[cmp.Or(b.PartOfGpuId, b.GpuId)] = true
			}
			if b.State != attached && b.State != released {
				t.Fatalf("binding %s came to rest as %s", b.Id, stateWord(b.State))
			}
		}
	}
	if p := w.m.totals(); int(p.GpusBound) != len(bound) || p.GpusFree+p.GpusBound != p.Gpus {
		t.Fatalf("leases hold %d GPUs, pool: %v\n%s", len(bound), p, w.events())
	}
	for _, n := range w.nodes {
		held -= len(n.has)
	}
	for _, n := range w.nodes {
		if n.box() {
			held += len(n.has)
		}
	}
	if held != 0 {
		t.Fatal(fmt.Sprint("hosts and boxes disagree by ", held))
	}
}

// checkUse counts the use of the tenants and compares it with the index and the quotas.
func (w *world) checkUse(t *rapid.T, tx *tx) {
	want := map[string]tenantUsage{}
	for _, id := range tx.leases.ids() {
		l := tx.leases.get(id)
		u := want[l.spec.Tenant]
		switch {
		case l.ended():
			continue
		case l.State == leasePending:
			u.pending++
		case l.HostID == "": // deleted before it had anything
		default:
			u.gpus += l.size()
		}
		if u.open == nil {
			u.open = map[string]bool{}
		}
		u.open[id] = true
		want[l.spec.Tenant] = u
	}
	for _, tenant := range []string{"a", "b"} {
		have, u := tx.usageOf(tenant), want[tenant]
		if have.gpus != u.gpus || have.leases() != u.leases() || have.pending != u.pending {
			t.Fatalf("tenant %s has %+v, the index says %+v", tenant, u, have)
		}
		if q := tx.quota(tenant); q.MaxGPUs > 0 && u.gpus > wholeGPUs(q.MaxGPUs) {
			t.Fatalf("tenant %s has %v GPUs, its quota is %d\n%s", tenant, u.gpus, q.MaxGPUs, w.events())
		}
	}
}

func (w *world) uncordon(target *dxpuv1.Target) {
	w.t.Helper()
	if _, err := w.api().Uncordon(context.Background(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		w.t.Fatalf("uncordon: %v", err)
	}
}

func drawPart(t *rapid.T) *dxpuv1.Part {
	return &dxpuv1.Part{
		MemoryBytes: rapid.Uint64Range(1, 1<<30).Draw(t, "memory"), Compute: rapid.Uint32Range(1, 1000).Draw(t, "compute"),
		Share: dxpuv1.ShareMode(rapid.IntRange(0, 2).Draw(t, "share")),
	}
}

// checkParts checks that the parts which bindings hold, those on boxes included, never
// exceed their GPU, that no part is beside a binding of the whole GPU, that a lease has one
// part of a GPU, and that the rules of the parts hold.
func checkParts(t *rapid.T, w *world, tx *tx) {
	type use struct {
		memory       uint64
		compute      uint32
		parts, whole int
		exclusive    int
		share        map[dxpuv1.ShareMode]bool
		averse       map[string]int
	}
	type onGPU struct {
		lease string
		gpu   placement.Ref
	}
	leases := map[onGPU]bool{} // with a part that serves them
	uses := map[placement.Ref]*use{}
	at := func(r placement.Ref) *use {
		if uses[r] == nil {
			uses[r] = &use{share: map[dxpuv1.ShareMode]bool{}, averse: map[string]int{}}
		}
		return uses[r]
	}
	for _, id := range tx.bindings.ids() {
		b := tx.bindings.get(id)
		if !b.holdsGPU() {
			continue
		}
		u := at(b.gpu())
		if b.Part == nil {
			u.whole++
			continue
		}
		if own := (onGPU{b.LeaseID, b.gpu()}); b.serving() {
			if leases[own] {
				t.Fatalf("lease %s has two parts of GPU %s\n%s", b.LeaseID, b.gpu(), w.events())
			}
			leases[own] = true
		}
		u.parts++
		u.memory += b.Part.memory()
		u.compute += b.Part.compute()
		u.share[b.Part.Share] = true
		if r := tx.leases.get(b.LeaseID); r != nil {
			rules := placementRules(r.spec)
			u.averse[rules.Tenant+rules.AntiAffinity]++
			if rules.AntiAffinity != "" && u.averse[rules.Tenant+rules.AntiAffinity] > 1 {
				t.Fatalf("GPU %s has two parts with an anti-affinity of tenant %s\n%s", b.gpu(), rules.Tenant, w.events())
			}
			if rules.Exclusion != "" {
				u.exclusive++
			}
		}
	}
	for r, u := range uses {
		if u.whole > 1 || u.whole > 0 && u.parts > 0 || u.memory > 1<<30 || u.compute > placement.Whole || len(u.share) > 1 || u.exclusive > 0 && u.exclusive < u.parts {
			t.Fatalf("GPU %s: %+v\n%s", r, *u, w.events())
		}
	}
	for _, n := range w.nodes { // the boxes themselves
		memory := map[uint32]uint64{}
		for slot, b := range n.has {
			if gpu, part := n.gpuOf(slot); part {
				if memory[gpu] += b.Part.GetMemoryBytes(); memory[gpu] > 1<<30 {
					t.Fatalf("box %s: the parts of GPU %d have %d bytes\n%s", n.id, gpu, memory[gpu], w.events())
				}
			}
		}
	}
}

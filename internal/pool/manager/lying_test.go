package manager

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// honest is what honest nodes and the tenant of a lease can see.
func (w *world) honest(lease string) []proto.Message {
	out := []proto.Message{w.lease(lease)}
	_ = w.m.view(func(t *tx) error {
		for _, id := range []string{"h1", "b1"} {
			d := t.desired(t.nodes.get(id))
			d.Revision = 0
			out = append(out, d)
		}
		return nil
	})
	return out
}

// A host or a box that lies harms itself only: what other nodes and tenants have stays, the pool
// goes on, and its numbers count no GPU that the liar does not have.
func TestLyingNodes(t *testing.T) {
	const ok, failedPath = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_FAILED
	each := func(o *dxpuv1.ObservedState, f func(*dxpuv1.ObservedSlot)) {
		for _, s := range o.Slots {
			f(s)
		}
	}
	// foreign reports the binding of another host and box, in each slot.
	foreign := func(w *world, o *dxpuv1.ObservedState, round int, state dxpuv1.BindingState) {
		var theirs *dxpuv1.ObservedBinding
		for _, b := range w.nodes["h1"].has {
			theirs = b
		}
		path := ok
		if round%2 == 1 {
			path = failedPath
		}
		each(o, func(s *dxpuv1.ObservedSlot) {
			s.Binding = &dxpuv1.ObservedBinding{
				BindingId: theirs.BindingId, Epoch: theirs.Epoch, State: state, Use: dxpuv1.Use_USE_BUSY, Ejected: round%2 == 0,
				Paths: []*dxpuv1.PathStatus{{Health: ok}, {Path: 1, Health: path}},
			}
			s.Removal = &dxpuv1.Removal{BindingId: theirs.BindingId, Forced: true, Detail: "forced"}
		})
	}
	tests := []struct {
		name string
		node string
		lie  func(w *world, o *dxpuv1.ObservedState, round int)
		// refused is part of the refusal, event of an event that tells the operator; "": none.
		refused, event string
	}{
		{name: "bindings of others, attached", node: "h2", lie: func(w *world, o *dxpuv1.ObservedState, round int) { foreign(w, o, round, attached) }},
		{name: "bindings of others, failed", node: "h2", lie: func(w *world, o *dxpuv1.ObservedState, round int) { foreign(w, o, round, failed) }},
		{name: "bindings of others, lost, by a box", node: "b2", lie: func(w *world, o *dxpuv1.ObservedState, round int) { foreign(w, o, round, lost) }},
		{name: "attached where it was never told", node: "h2", lie: func(_ *world, o *dxpuv1.ObservedState, round int) {
			each(o, func(s *dxpuv1.ObservedSlot) {
				s.Binding = &dxpuv1.ObservedBinding{BindingId: fmt.Sprintf("b-%d", 1000+round), Epoch: math.MaxUint64, State: attached, Use: dxpuv1.Use_USE_BUSY}
			})
		}},
		{name: "revisions of the future", node: "h2", lie: func(_ *world, o *dxpuv1.ObservedState, _ int) { o.AppliedRevision = math.MaxUint64 }},
		{name: "revisions of the past", node: "b2", lie: func(_ *world, o *dxpuv1.ObservedState, _ int) { o.AppliedRevision = 0 }},
		{name: "counters that run backwards", node: "h2", lie: func(_ *world, o *dxpuv1.ObservedState, round int) {
			each(o, func(s *dxpuv1.ObservedSlot) {
				if s.Binding != nil {
					s.Binding.Counters = &dxpuv1.Counters{BytesSent: math.MaxUint64 >> round, BytesReceived: math.MaxUint64 - uint64(round)}
				}
			})
		}},
		{name: "times out of all ranges", node: "h2", lie: func(_ *world, o *dxpuv1.ObservedState, round int) {
			each(o, func(s *dxpuv1.ObservedSlot) {
				if s.Binding != nil {
					for range 100 {
						s.Binding.Steps = append(s.Binding.Steps, &dxpuv1.Step{
							Name: strings.Repeat("<", 4096), Time: &timestamppb.Timestamp{Seconds: math.MaxInt64 - int64(round)}, Duration: &durationpb.Duration{Seconds: math.MinInt64},
						})
					}
				}
			})
		}},
		{name: "another run each time", node: "b2", lie: func(_ *world, o *dxpuv1.ObservedState, round int) {
			o.InstanceId = fmt.Sprint("run ", round)
			each(o, func(s *dxpuv1.ObservedSlot) { s.Errors = []*dxpuv1.DeviceError{{Code: 79, Count: math.MaxUint64}} })
		}},
		{name: "two processes with one identity", node: "h2", lie: func(_ *world, o *dxpuv1.ObservedState, round int) {
			o.InstanceId = []string{"here", "there"}[round%2]
		}, event: "two processes report as host h2"},
		{name: "thousands of slots", node: "b2", lie: func(_ *world, o *dxpuv1.ObservedState, _ int) {
			for i := range uint32(5000) {
				o.Slots = append(o.Slots, &dxpuv1.ObservedSlot{Slot: 100 + i, Health: ok})
			}
		}, refused: "slots, at most 1024"},
		{name: "a slot twice", node: "b2", lie: func(_ *world, o *dxpuv1.ObservedState, _ int) { o.Slots = append(o.Slots, o.Slots[0]) }, refused: "listed twice"},
		{name: "GPUs of another box", node: "b2", lie: func(w *world, o *dxpuv1.ObservedState, _ int) {
			each(o, func(s *dxpuv1.ObservedSlot) { s.Device.Serial = w.nodes["b1"].serials[s.Slot] })
		}, event: "gets no new bindings: its serial number"},
		{name: "another box as its own", node: "h2", lie: func(_ *world, o *dxpuv1.ObservedState, _ int) { o.LocalPeer = "b1" }},
		{name: "another host as its own", node: "b2", lie: func(_ *world, o *dxpuv1.ObservedState, _ int) { o.LocalPeer = "h1" }},
		{name: "parts of slots that there are not", node: "b2", lie: func(_ *world, o *dxpuv1.ObservedState, round int) {
			each(o, func(s *dxpuv1.ObservedSlot) { s.PartOf = proto.Uint32(uint32(round) * 77) })
		}},
		{name: "a migration of others", node: "h2", lie: func(w *world, o *dxpuv1.ObservedState, round int) {
			foreign(w, o, round, attached)
			each(o, func(s *dxpuv1.ObservedSlot) {
				s.Binding.Migration = &dxpuv1.Migration{BindingId: s.Binding.BindingId, Pause: &durationpb.Duration{Seconds: math.MaxInt64}}
			})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b1, b2 := boxNode("b1", 1), boxNode("b2", 2)
			b1.serials = map[uint32]string{0: "1320921000001"}
			w := newWorld(t, Config{}, hostNode("h1", 2), hostNode("h2", 2), b1, b2)
			const tenant = "honest"
			mine := w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1", Tenant: tenant})
			theirs := w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h2"})
			w.settle()
			if l := w.wantLease(mine, leaseActive); l.Bindings[0].BoxId != "b1" {
				t.Fatalf("the honest lease has %s", l.Bindings[0].GpuId)
			}
			w.wantLease(theirs, leaseActive)
			events, _, _, _ := w.m.events.after(0)
			before, busy := w.honest(mine), w.m.totals().GpusBusy
			for round := range 40 {
				err := w.reportAs(tt.node, func(o *dxpuv1.ObservedState) {
					tt.lie(w, o, round)
				})
				if tt.refused == "" && err != nil || tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)) {
					t.Fatalf("round %d: %v, want %q", round, err, tt.refused)
				}
				for _, id := range w.order {
					w.deliver(id)
					if id != tt.node {
						w.report(id)
					}
				}
				w.pass(50 * time.Millisecond)
				switch round {
				case 10:
					w.delete(theirs, false)
				case 20:
					_, _ = w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, HostId: "h2", Wait: true}) // the lie may keep it waiting
				}
			}
			for i, m := range w.honest(mine) {
				if !proto.Equal(m, before[i]) {
					t.Errorf("%v\nhas become\n%v", before[i], m)
				}
			}
			if got := w.m.totals().GpusBusy; got > busy {
				t.Errorf("%d GPUs are busy, of %d that are bound", got, busy)
			}
			now, _, _, _ := w.m.events.after(events[len(events)-1].Revision)
			for _, e := range now {
				if e.LeaseId == mine || e.Tenant == tenant {
					t.Errorf("an event of the honest tenant: %s", e.Message)
				}
			}
			if !slices.ContainsFunc(now, func(e *dxpuv1.Event) bool { return strings.Contains(e.Message, tt.event) }) && tt.event != "" {
				t.Errorf("no event has %q:\n%s", tt.event, w.events())
			}
			if len(now) > 200 {
				t.Errorf("%d events", len(now))
			}
			for key, raw := range w.encoded() {
				if len(raw) > 100_000 {
					t.Errorf("record %s has %d bytes", key, len(raw))
				}
			}
			w.settle()
			w.wantLease(mine, leaseActive)
		})
	}
}

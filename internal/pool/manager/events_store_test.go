package manager

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The next leader has the events of the last one, and a watch goes on from its revision.
func TestEventsSurviveAChangeOfLeader(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 4))
	w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.settle()
	before, revision, _, _ := w.m.events.after(0)
	for range 2 {
		var err error
		w.m, err = New(t.Context(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now})
		if err != nil {
			t.Fatal(err)
		}
	}
	after, newest, _, ok := w.m.events.after(0)
	if diff := cmp.Diff(before, after, protocmp.Transform()); diff != "" || newest < revision || !ok {
		t.Errorf("events of the next leader (-before +after), complete: %v\n%s", ok, diff)
	}
	half := before[len(before)/2].Revision
	rest, _, _, ok := w.m.events.after(half)
	if !ok || len(rest) != len(before)-len(before)/2-1 {
		t.Errorf("%d events after revision %d, complete: %v; want %d", len(rest), half, ok, len(before)-len(before)/2-1)
	}
	w.settle()
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	if more, _, _, ok := w.m.events.after(newest); !ok || len(more) == 0 {
		t.Errorf("no events after those of the last leader, complete: %v", ok)
	}
}

// The ring of events is bounded, and a watch of forgotten events is told so.
func TestEventRingIsBounded(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 1))
	first, _, _, _ := w.m.events.after(0)
	for i := range keepEventRecords + 10 {
		_ = w.m.update(context.Background(), func(t *tx) error {
			t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_OVERDUE}, "%d", i)
			return nil
		})
	}
	if n := w.m.state.eventRing.len(); n != keepEventRecords {
		t.Errorf("%d records of events, want %d", n, keepEventRecords)
	}
	m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: store})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, ok := m.events.after(first[0].Revision); ok {
		t.Error("forgotten events are called complete")
	}
	kept, _, _, ok := m.events.after(m.events.start())
	if !ok || len(kept) != keepEventRecords || kept[len(kept)-1].Message != fmt.Sprint(keepEventRecords+9) {
		t.Errorf("%d events are kept, complete: %v", len(kept), ok)
	}
}

// A change with many events makes several records, none of them too large.
func TestManyEventsOfOneChange(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 1))
	before := w.m.state.eventRing.len()
	if err := w.m.update(t.Context(), func(t *tx) error {
		for range 2000 {
			t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_OVERDUE}, "%0200d", 0)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n := w.m.state.eventRing.len() - before; n < 5 || n > 10 {
		t.Errorf("%d records", n)
	}
	for k, raw := range store.records {
		if len(raw) > maxRecord/4 {
			t.Errorf("record %s has %d bytes", k, len(raw))
		}
	}
}

// A deposed leader that leads again has the events of the other one in between.
func TestEventsOfTheOtherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		w.want(w.call("a", "PoolService/CreateLease", queued), 200, `"lease"`)
		for range 2 {
			w.election.depose(true)
			time.Sleep(time.Second)
			w.want(w.call(w.leader(), "PoolService/CreateLease", queued), 200, `"lease"`)
		}
		res, err := (&poolService{m: w.managers[w.leader()]}).ListEvents(operatorContext(), connect.NewRequest(&dxpuv1.ListEventsRequest{
			Filter: &dxpuv1.EventFilter{Types: []dxpuv1.EventType{dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED}},
		}))
		if err != nil || len(res.Msg.Events) != 3 {
			t.Errorf("events of three leases: %v, %v", res, err)
		}
	})
}

package torture

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// watcher is the number of the client that watches the events.
const watcher = operator + 1

// watch is a watch that goes on from one manager to the next.
type watch struct {
	at     uint64 // the revision that it has reached
	events []*dxpuv1.Event
}

// run watches until ctx ends. A watch that a manager or the network ends goes on at another
// manager from its revision.
func (w *watch) run(ctx context.Context, p *pool) error {
	for i := 0; ctx.Err() == nil; i++ {
		err := w.once(ctx, p.apis[watcher][i%len(p.managers)], math.MaxUint64)
		switch connect.CodeOf(err) {
		case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal:
		default:
			if err != nil {
				return fmt.Errorf("the watch of events at %d: %w", w.at, err)
			}
		}
		wait(ctx, 20*time.Millisecond)
	}
	return nil
}

func (w *watch) once(ctx context.Context, api dxpuv1connect.PoolServiceClient, until uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout) // a manager that is paused says nothing
	defer cancel()
	stream, err := api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{AfterRevision: w.at}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }() // the watch is over
	for w.at < until && stream.Receive() {
		w.at = stream.Msg().Revision
		if e := stream.Msg().Event; e != nil {
			w.events = append(w.events, e)
		}
	}
	return stream.Err()
}

// eventsAfter lists all events after a revision, and the revision that they reach.
func (p *pool) eventsAfter(ctx context.Context, after uint64) (events []*dxpuv1.Event, revision uint64, err error) {
	req := &dxpuv1.ListEventsRequest{PageSize: 1000, AfterRevision: after}
	for {
		res, _, err := ask(ctx, p, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListEventsResponse], error) {
			return api.ListEvents(ctx, connect.NewRequest(req))
		})
		if err != nil {
			return nil, 0, fmt.Errorf("list the events after %d: %w", after, err)
		}
		events = append(events, res.Msg.Events...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return events, res.Msg.Revision, nil
		}
	}
}

// checkEvents checks the events since the history began: a watch through all changes of leader
// has seen what the log has now, and the log is that of a pool which keeps its rules.
func (h *history) checkEvents(ctx context.Context) error {
	events, _, err := h.eventsAfter(ctx, h.from)
	if err != nil {
		return err
	}
	for i := 0; len(h.watched.events) < len(events); i++ {
		err := h.watched.once(ctx, h.apis[watcher][i%len(h.managers)], events[len(events)-1].Revision)
		if ctx.Err() != nil {
			return fmt.Errorf("the watch has %d of %d events: %w", len(h.watched.events), len(events), err)
		}
	}
	if err := sameEvents(h.watched.events, events); err != nil {
		return err
	}
	if err := h.checkLog(events); err != nil {
		return err
	}
	return checkCordons(events)
}

// sameEvents checks that a watch has had the events of a log, and no others between them. It may
// be further.
func sameEvents(watched, log []*dxpuv1.Event) error {
	for i, e := range log {
		if i == len(watched) {
			return fmt.Errorf("the watch has %d of %d events", i, len(log))
		}
		if !proto.Equal(e, watched[i]) {
			return fmt.Errorf("event %d of the watch is %v, and %v in the log of %d", i, watched[i], e, len(log))
		}
	}
	return nil
}

// An event that the watch or the log lacks, that comes twice or in another order is noticed.
func TestEventsFindFaults(t *testing.T) {
	h := &history{known: []string{"l-1", "l-2"}}
	var log []*dxpuv1.Event
	for i, e := range []*dxpuv1.Event{
		{Type: dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED, LeaseId: "l-1"},
		{Type: dxpuv1.EventType_EVENT_TYPE_BINDING_STATE, LeaseId: "l-1", BindingId: "b-1"},
		{Type: dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED, LeaseId: "l-2"},
		{Type: dxpuv1.EventType_EVENT_TYPE_BINDING_STATE, LeaseId: "l-2", BindingId: "b-2"},
	} {
		e.Revision = uint64(i + 1)
		log = append(log, e)
	}
	check := func(watched, log []*dxpuv1.Event) error { return cmp.Or(sameEvents(watched, log), h.checkLog(log)) }
	if err := check(append(slices.Clone(log), &dxpuv1.Event{Revision: 9}), log); err != nil {
		t.Errorf("a watch with one event more: %v", err)
	}
	for i := range log {
		fewer := slices.Delete(slices.Clone(log), i, i+1)
		if check(fewer, log) == nil {
			t.Errorf("a watch without event %d is not noticed", i)
		}
		if i < len(log)-1 && check(log, fewer) == nil {
			t.Errorf("a log without event %d, which the watch has, is not noticed", i)
		}
		if twice := slices.Insert(slices.Clone(log), i, log[i]); check(twice, twice) == nil {
			t.Errorf("event %d is twice in both, and is not noticed", i)
		}
		// Both lack it: only those of a creation can be missed.
		if got := check(fewer, fewer) != nil; got != (log[i].Type == dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED) {
			t.Errorf("event %d is in neither, noticed: %v", i, got)
		}
	}
	swapped := []*dxpuv1.Event{log[0], log[2], log[1], log[3]}
	if check(swapped, log) == nil || check(swapped, swapped) == nil {
		t.Error("another order is not noticed")
	}
}

// checkLog checks that the events are in order, that no binding has the number of another one,
// that each lease was created once and before all else, and that only leases that may be are preempted.
func (h *history) checkLog(events []*dxpuv1.Event) error {
	var last, lastEpoch uint64
	created, bound := map[string]bool{}, map[string]bool{}
	for _, e := range events {
		if e.Revision <= last {
			return fmt.Errorf("revision %d of an event follows %d", e.Revision, last)
		}
		last = e.Revision
		if e.Type == dxpuv1.EventType_EVENT_TYPE_LEASE_CREATED {
			if created[e.LeaseId] {
				return fmt.Errorf("lease %s was created twice: %v", e.LeaseId, e)
			}
			created[e.LeaseId] = true
		}
		if e.Type != dxpuv1.EventType_EVENT_TYPE_BINDING_STATE || bound[e.BindingId] {
			continue
		}
		bound[e.BindingId] = true
		if !created[e.LeaseId] {
			return fmt.Errorf("a binding of lease %s, which was not created: %v", e.LeaseId, e)
		}
		if epoch := bindingEpoch(e.BindingId); epoch <= lastEpoch {
			return fmt.Errorf("binding %s follows one with epoch %d", e.BindingId, lastEpoch)
		} else {
			lastEpoch = epoch
		}
	}
	for _, id := range h.known {
		if !created[id] {
			return fmt.Errorf("no event of the creation of lease %s", id)
		}
	}
	return nil
}

// bindingEpoch returns the epoch in the ID of a binding.
func bindingEpoch(id string) uint64 {
	number, _, _ := strings.Cut(strings.TrimPrefix(id, "b-"), "-")
	n, _ := strconv.ParseUint(number, 10, 64) // 0 for another form: refused as a repetition
	return n
}

package manager

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// Events are stored with the changes that they report, in a ring of records. So the
// next leader has them, and a watch goes on from its revision after a takeover.

const (
	// keepEventRecords is the number of records in the ring. Each change with events
	// makes at least one.
	keepEventRecords = 4096
	// maxEventRecord bounds the events in a record, in bytes before their encoding. It
	// may be exceeded by one event.
	maxEventRecord = 64 << 10
)

// eventRecord is the events of one change, or a part of them.
type eventRecord struct {
	Events [][]byte `json:"events"` // of the API, in protocol buffers
}

// storeEvents adds the transaction's events to the ring.
func (t *tx) storeEvents() error {
	r, size := &eventRecord{}, 0
	flush := func() {
		if len(r.Events) > 0 {
			t.eventRing.put(sortable("", t.meta.EventRecords%keepEventRecords), r)
			t.meta.EventRecords++
			r, size = &eventRecord{}, 0
		}
	}
	for _, e := range t.events {
		raw, err := proto.Marshal(e)
		if err != nil {
			return err
		}
		r.Events = append(r.Events, raw)
		if size += len(raw); size >= maxEventRecord {
			flush()
		}
	}
	flush()
	return nil
}

// storedEvents returns the events of the ring in order, and the revision after which
// they are complete.
func (s *state) storedEvents() (events []*dxpuv1.Event, floor uint64, err error) {
	for _, r := range s.eventRing.rows {
		for _, raw := range r.Events {
			e := &dxpuv1.Event{}
			if err := proto.Unmarshal(raw, e); err != nil {
				return nil, 0, err
			}
			// A restored pool begins a new incarnation; its watches begin there.
			if revision.Incarnation(e.Revision) == revision.Incarnation(s.meta.Revision) {
				events = append(events, e)
			}
		}
	}
	slices.SortFunc(events, func(a, b *dxpuv1.Event) int { return cmp.Compare(a.Revision, b.Revision) })
	switch {
	case len(events) == 0:
		return nil, s.meta.Revision, nil
	case s.meta.EventRecords <= keepEventRecords:
		return events, s.meta.EventsFrom, nil // none was overwritten
	}
	return events, events[0].Revision - 1, nil
}

package manager

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// keepEvents is the number of events in memory: some hours of a busy pool, a
// few megabytes.
const keepEvents = 16384

// eventLog keeps the newest events in the order of their revisions.
type eventLog struct {
	mu       sync.Mutex
	events   []*dxpuv1.Event // not changed once added
	floor    uint64          // events up to this revision may be missing
	revision uint64          // of the newest
	more     chan struct{}   // closed and replaced when events are added
}

func newEventLog() *eventLog { return &eventLog{more: make(chan struct{})} }

// reset makes the log that of a state that was just read. Watches that have seen more,
// which was not stored, find that out by their revision.
func (l *eventLog) reset(events []*dxpuv1.Event, floor, revision uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.floor < floor && floor <= l.revision && l.revision <= revision {
		// The log has older events of the same history than the store keeps.
		kept := l.events[:0]
		for _, e := range l.events {
			if e.Revision <= floor {
				kept = append(kept, e)
			}
		}
		events, floor = append(kept, events...), l.floor
	}
	l.events, l.floor, l.revision = events, floor, revision
	close(l.more)
	l.more = make(chan struct{})
}

func (l *eventLog) add(events []*dxpuv1.Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, events...)
	l.revision = events[len(events)-1].Revision
	if over := len(l.events) - keepEvents; over > keepEvents/4 {
		l.floor = l.events[over-1].Revision
		l.events = slices.Clone(l.events[over:])
	}
	close(l.more)
	l.more = make(chan struct{})
}

// newest returns the time of the newest event, or the zero time.
func (l *eventLog) newest() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 {
		return time.Time{}
	}
	return l.events[len(l.events)-1].Time.AsTime()
}

// after returns the events after a revision, the newest revision, and a channel
// that is closed when events are added. ok is false if some of the events are
// no longer kept, or if the revision is a later one of another incarnation,
// because the pool was restored.
func (l *eventLog) after(from uint64) (events []*dxpuv1.Event, newest uint64, more <-chan struct{}, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.events, from+1, func(e *dxpuv1.Event, r uint64) int { return cmp.Compare(e.Revision, r) })
	foreign := from > l.revision && revision.Incarnation(from) != revision.Incarnation(l.revision)
	return slices.Clone(l.events[i:]), l.revision, l.more, from >= l.floor && !foreign
}

// start returns the revision after which the log is complete.
func (l *eventLog) start() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.floor
}

// matches reports whether an event passes a filter, which may be nil.
func matches(e *dxpuv1.Event, f *dxpuv1.EventFilter) bool {
	return f == nil || (f.LeaseId == "" || f.LeaseId == e.LeaseId) && (f.BindingId == "" || f.BindingId == e.BindingId) &&
		(f.GpuId == "" || f.GpuId == e.GpuId) && (f.BoxId == "" || f.BoxId == e.BoxId) &&
		(f.HostId == "" || f.HostId == e.HostId) && (len(f.Types) == 0 || slices.Contains(f.Types, e.Type))
}

// hasReached returns an error if a caller has seen a later revision than the pool has: it
// would wait for events that it takes for known. It also returns one while the state is being
// loaded, because the events come with it.
func (s *poolService) hasReached(ctx context.Context, after uint64) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err := s.m.readyLocked(ctx); err != nil {
		return err
	}
	return reached(s.m.state.meta.Revision, after)
}

func reached(newest, after uint64) error {
	if after > newest {
		return errorf(connect.CodeOutOfRange, "after_revision: the pool is at revision %d, not yet at %d; was it restored from a backup?", newest, after)
	}
	return nil
}

func errForgotten() error {
	return errorf(connect.CodeOutOfRange, "after_revision: these events are no longer kept; list again")
}

func (s *poolService) WatchEvents(ctx context.Context, req *connect.Request[dxpuv1.WatchEventsRequest], stream *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	at, visible, over := req.Msg.AfterRevision, scopeOf(ctx), s.m.termEnded()
	if err := s.hasReached(ctx, at); err != nil {
		return err
	}
	switch {
	case req.Msg.FromStart:
		at = s.m.events.start()
	case at == 0:
		_, at, _, _ = s.m.events.after(0)
	}
	if _, _, _, ok := s.m.events.after(at); !ok {
		return errForgotten()
	}
	// The first message confirms the watch and its first revision.
	here := func(at uint64) error { return stream.Send(&dxpuv1.WatchEventsResponse{Revision: at}) }
	if err := here(at); err != nil {
		return err
	}
	return s.m.events.follow(ctx, over, at, here, func(events []*dxpuv1.Event, _ uint64) error {
		for _, e := range events {
			if e = visible.event(e); e != nil && matches(e, req.Msg.Filter) {
				if err := stream.Send(&dxpuv1.WatchEventsResponse{Event: e, Revision: e.Revision}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// watchAlive is the interval of the messages of a watch on which nothing happens.
const watchAlive = 10 * time.Second

// follow calls handle with the events after a revision, and then with new ones as they
// come, until ctx ends or over is closed. newest is the revision that they reach. When
// nothing happens, it calls alive from time to time.
func (l *eventLog) follow(ctx context.Context, over <-chan struct{}, at uint64, alive func(at uint64) error,
	handle func(events []*dxpuv1.Event, newest uint64) error,
) error {
	tick := time.NewTicker(watchAlive)
	defer tick.Stop()
	for {
		events, newest, more, ok := l.after(at)
		if !ok {
			return errForgotten()
		}
		if err := handle(events, newest); err != nil {
			return err
		}
		at = max(at, newest)
		idling(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-over:
			return nil
		case <-more:
		case <-tick.C:
			if err := alive(at); err != nil {
				return err
			}
		}
	}
}

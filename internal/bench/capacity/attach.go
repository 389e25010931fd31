package capacity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// attachment is a lease of one GPU and the times of its attach.
type attachment struct {
	binding  *dxpuv1.Binding
	lease    string
	called   time.Time // start of CreateLease
	answered time.Time // CreateLease returned
	active   time.Time // arrival of the event that the lease is active
	commit   time.Duration
}

// watcher collects the ends of leases from the manager's events.
type watcher struct {
	mu     sync.Mutex
	ends   map[string]end // by lease
	news   chan struct{}  // closed and replaced at each event
	failed error
}

// end is the latest state of a lease.
type end struct {
	at    time.Time
	state dxpuv1.EventType
	why   string
}

// watch collects events until ctx ends. No event after its return is missed.
func (w *world) watch(ctx context.Context) (*watcher, error) {
	stream, err := w.api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{Filter: &dxpuv1.EventFilter{Types: []dxpuv1.EventType{
		dxpuv1.EventType_EVENT_TYPE_LEASE_ACTIVE, dxpuv1.EventType_EVENT_TYPE_LEASE_FAILED, dxpuv1.EventType_EVENT_TYPE_LEASE_RELEASED,
	}}}))
	if err != nil {
		return nil, err
	}
	if !stream.Receive() { // the first message: the watch has begun
		return nil, errors.Join(stream.Err(), stream.Close())
	}
	l := &watcher{ends: map[string]end{}, news: make(chan struct{})}
	w.Go(func(context.Context) error {
		for stream.Receive() {
			if e := stream.Msg().Event; e != nil {
				l.add(e)
			}
		}
		l.fail(stream.Err())
		_ = stream.Close()
		return nil
	})
	return l, nil
}

func (l *watcher) add(e *dxpuv1.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends[e.LeaseId] = end{time.Now(), e.Type, e.Message}
	close(l.news)
	l.news = make(chan struct{})
}

func (l *watcher) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = errors.Join(errors.New("the watch of events ended"), err)
	close(l.news)
	l.news = make(chan struct{})
}

// await waits until a lease has a state and returns the time of that; a failure of
// the lease is an error.
func (l *watcher) await(ctx context.Context, lease string, want dxpuv1.EventType) (time.Time, error) {
	for {
		l.mu.Lock()
		e, known := l.ends[lease]
		news, failed := l.news, l.failed
		l.mu.Unlock()
		switch {
		case known && e.state == want:
			return e.at, nil
		case known && e.state == dxpuv1.EventType_EVENT_TYPE_LEASE_FAILED:
			return time.Time{}, errors.New(e.why)
		case failed != nil:
			return time.Time{}, failed
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("lease %s: %w", lease, context.Cause(ctx))
		case <-news:
		}
	}
}

// attachAll attaches n GPUs, atOnce at a time, each with its own lease.
func (w *world) attachAll(ctx context.Context, l *watcher, n, atOnce int) ([]*attachment, error) {
	out := make([]*attachment, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range out {
		g.Go(func() (err error) {
			out[i], err = w.attach(ctx, l)
			return err
		})
	}
	return out, g.Wait()
}

// attach makes a lease for one GPU and waits until it is active.
func (w *world) attach(ctx context.Context, l *watcher) (*attachment, error) {
	a := &attachment{called: time.Now()}
	res, err := w.api.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1}}))
	if err != nil {
		return nil, err
	}
	a.answered, a.lease = time.Now(), res.Msg.Lease.Id
	if a.active, err = l.await(ctx, a.lease, dxpuv1.EventType_EVENT_TYPE_LEASE_ACTIVE); err != nil {
		return nil, err
	}
	return a, nil
}

// details fetches the timelines of attachments.
func (w *world) details(ctx context.Context, all []*attachment) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(w.spec.AtOnce)
	for _, a := range all {
		g.Go(func() error {
			res, err := w.api.GetLease(ctx, connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: a.lease}))
			if err != nil {
				return err
			}
			for _, b := range res.Msg.Lease.Bindings {
				if b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
					a.binding = b
				}
			}
			if a.binding == nil {
				return fmt.Errorf("lease %s no longer has an attached GPU: %s", a.lease, res.Msg.Lease.StateReason)
			}
			a.commit = w.store.last(a.called, a.answered)
			return nil
		})
	}
	return g.Wait()
}

// release deletes the leases and waits until the GPUs are clean.
func (w *world) release(ctx context.Context, l *watcher, all []*attachment) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(w.spec.AtOnce)
	for _, a := range all {
		g.Go(func() error {
			if _, err := w.api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: a.lease})); err != nil {
				return err
			}
			_, err := l.await(ctx, a.lease, dxpuv1.EventType_EVENT_TYPE_LEASE_RELEASED)
			return err
		})
	}
	return g.Wait()
}

// step returns the time of a step in the timeline of a binding: a step of the
// manager or, if from is set, of the node whose ID has that prefix.
func (a *attachment) step(name, from string) time.Time {
	for _, s := range a.binding.Timeline {
		if s.Name == name && strings.HasPrefix(s.NodeId, from) && (from == "") == (s.NodeId == "") {
			return s.Time.AsTime()
		}
	}
	return time.Time{}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// A wait prints each state and obstacle once.
func TestWaitProgress(t *testing.T) {
	var out strings.Builder
	w := leaseWait{out: &out}
	for _, reason := range []string{"a", "a", "waiting for host h1: no VM runs", "waiting for host h1: no VM runs", "a"} {
		w.progress(&dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_BINDING, StateReason: reason})
	}
	if want := "l-1 is binding: a\nl-1 is binding: waiting for host h1: no VM runs\nl-1 is binding: a\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

// An interruption, the end of the time and another error have different exit codes.
func TestWaitEnds(t *testing.T) {
	l := &dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_PENDING, StateReason: "in the queue: no GPU is free"}
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	late, cancel := context.WithTimeoutCause(t.Context(), 0, errTimeout)
	defer cancel()
	for _, c := range []struct {
		name       string
		outer, ctx context.Context
		err        error
		code       int
		says       string
	}{
		{"interrupted", interrupted, interrupted, context.Canceled, 130, "interrupted: lease l-1 is pending, and the manager continues"},
		{"timeout", t.Context(), late, context.DeadlineExceeded, 4, "lease l-1 is pending after 0s, and the manager continues: in the queue: no GPU is free"},
		{"other", t.Context(), t.Context(), errors.New("no route"), 1, "no route"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := (&leaseWait{}).ended(c.outer, c.ctx, l, c.err)
			if got := exitCode(err); got != c.code || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("exit code %d, %v; want %d, %s", got, err, c.code, c.says)
			}
		})
	}
}

// A command whose time ends while the manager does not answer does not know what the pool
// does, and says that.
func TestWaitEndsWithoutAManager(t *testing.T) {
	var out strings.Builder
	w := leaseWait{says: &notices{out: &out}, limit: time.Minute}
	late, cancel := context.WithTimeoutCause(t.Context(), 0, errTimeout)
	defer cancel()
	for _, c := range []struct{ told, says string }{
		{"m1 does not answer", "timeout: after 1m0s there is no answer: m1 does not answer"},
		{"", "timeout: lease l-1 is pending after 1m0s, and the manager continues: "},
	} {
		w.says.told(c.told)
		err := w.ended(t.Context(), late, &dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_PENDING}, context.DeadlineExceeded)
		if exitCode(err) != exitTimeout || err.Error() != c.says {
			t.Errorf("%q", err)
		}
	}
	if out.String() != "waiting: m1 does not answer\nthe manager answers\n" {
		t.Errorf("printed %q", out.String())
	}
}

// takeover is a pool whose first leader stops during the first watch. The lease is active
// when the second one leads.
type takeover struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
	watches []uint64 // their first revisions
}

func (p *takeover) WatchEvents(_ context.Context, r *connect.Request[dxpuv1.WatchEventsRequest], s *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	p.watches = append(p.watches, r.Msg.AfterRevision)
	if err := s.Send(&dxpuv1.WatchEventsResponse{Revision: 6 + r.Msg.AfterRevision}); err != nil {
		return err
	}
	if len(p.watches) > 2 {
		return connect.NewError(connect.CodeNotFound, errors.New("the third watch"))
	}
	return s.Send(&dxpuv1.WatchEventsResponse{Revision: 7 + r.Msg.AfterRevision, Event: &dxpuv1.Event{LeaseId: "l-1", Message: fmt.Sprint("watch ", len(p.watches))}})
}

func (p *takeover) GetLease(context.Context, *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	l := &dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_BINDING}
	if len(p.watches) > 1 {
		l.State = dxpuv1.LeaseState_LEASE_STATE_ACTIVE
	}
	return connect.NewResponse(&dxpuv1.GetLeaseResponse{Lease: l}), nil
}

func (p *takeover) serve(t *testing.T) poolAPI {
	_, h := dxpuv1connect.NewPoolServiceHandler(p)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return dxpuv1connect.NewPoolServiceClient(srv.Client(), srv.URL)
}

// A wait goes on when another manager takes over, and does not call that a timeout.
func TestWaitSurvivesATakeover(t *testing.T) {
	p := &takeover{}
	w := &leaseWait{
		api: p.serve(t), out: &strings.Builder{}, limit: time.Hour,
		done: func(l *dxpuv1.Lease) bool { return l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE },
	}
	l, err := w.run(t.Context(), &dxpuv1.Lease{Id: "l-1"})
	if err != nil || l.GetState() != dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
		t.Fatalf("waited for %v: %v", l, err)
	}
	if !slices.Equal(p.watches, []uint64{0, 7}) {
		t.Errorf("watches from %v, want 0 and 7", p.watches)
	}
}

// "dxpu events --watch" goes on at the next leader, without a gap.
func TestEventsSurviveATakeover(t *testing.T) {
	p, out := &takeover{}, &strings.Builder{}
	err := watchEvents(t.Context(), p.serve(t), nil, &dxpuv1.WatchEventsRequest{FromStart: true}, out, true)
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("it ended with %v", err)
	}
	if !slices.Equal(p.watches, []uint64{0, 7, 14}) || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("watches from %v printed %q", p.watches, out)
	}
}

// A manager that does not answer at all is what a wait for nodes names.
func TestNodeWaitNamesASilentManager(t *testing.T) {
	p := &silentPool{}
	err := (&nodeWait{api: p, out: &strings.Builder{}, limit: time.Millisecond}).run(t.Context(), []string{"b1"})
	if !errors.Is(err, errTimeout) || !strings.Contains(err.Error(), "no connection to the manager") {
		t.Errorf("it ended with %v", err)
	}
}

// silentPool is the API of a manager that answers no call.
type silentPool struct{ poolAPI }

func (*silentPool) ListHosts(ctx context.Context, _ *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	<-ctx.Done()
	return nil, connect.NewError(connect.CodeDeadlineExceeded, ctx.Err())
}

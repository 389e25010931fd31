package web

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
)

// fakeAPI implements the part of the API that streams need, for tests in virtual
// time. A token is "ROLE" or "tenant/NAME"; those in bad are no longer valid.
type fakeAPI struct {
	dxpuv1connect.UnimplementedPoolServiceHandler

	mu      sync.Mutex // guards the fields below
	events  []*dxpuv1.Event
	floor   uint64
	more    chan struct{}
	bad     map[string]bool
	watches int
	pools   int
	takes   time.Duration // how long GetPool takes
	leader  string        // URL of the leader; empty: this manager leads
	absent  []string      // managers that do not run
}

func newFakeAPI() *fakeAPI { return &fakeAPI{more: make(chan struct{}), bad: map[string]bool{}} }

// serve serves the pages of an API.
func serve(api dxpuv1connect.PoolServiceHandler, change ...func(*Config)) *Server {
	mux := http.NewServeMux()
	mux.Handle(dxpuv1connect.NewPoolServiceHandler(api))
	cfg := Config{Client: LocalClient(mux)}
	for _, c := range change {
		c(&cfg)
	}
	return New(cfg)
}

func (a *fakeAPI) caller(h http.Header) (*dxpuv1.WhoAmIResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leader != "" {
		err := connect.NewError(connect.CodeUnavailable, errors.New("this manager does not lead"))
		err.Meta().Set(client.LeaderHeader, a.leader)
		return nil, err
	}
	token := strings.TrimPrefix(h.Get("Authorization"), "Bearer ")
	if token == "" || a.bad[token] {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("the token is not valid"))
	}
	if tenant, ok := strings.CutPrefix(token, "tenant/"); ok {
		return &dxpuv1.WhoAmIResponse{Actor: token, Role: dxpuv1.Role_ROLE_TENANT, Tenant: tenant}, nil
	}
	return &dxpuv1.WhoAmIResponse{Actor: token, Role: dxpuv1.Role_ROLE_OPERATOR}, nil
}

func (a *fakeAPI) WhoAmI(_ context.Context, req *connect.Request[dxpuv1.WhoAmIRequest]) (*connect.Response[dxpuv1.WhoAmIResponse], error) {
	me, err := a.caller(req.Header())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(me), nil
}

func (a *fakeAPI) revision() uint64 {
	if len(a.events) == 0 {
		return a.floor
	}
	return a.events[len(a.events)-1].Revision
}

func (a *fakeAPI) GetPool(context.Context, *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	a.mu.Lock()
	a.pools++
	revision, takes := a.revision(), a.takes
	a.mu.Unlock()
	time.Sleep(takes) // of virtual time
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: &dxpuv1.Pool{Revision: revision, AbsentManagers: a.absent}}), nil
}

func (a *fakeAPI) ListTenants(context.Context, *connect.Request[dxpuv1.ListTenantsRequest]) (*connect.Response[dxpuv1.ListTenantsResponse], error) {
	return connect.NewResponse(&dxpuv1.ListTenantsResponse{}), nil
}

func (a *fakeAPI) ListBoxes(context.Context, *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListBoxesResponse{}), nil
}

func (a *fakeAPI) ListGPUs(context.Context, *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	return connect.NewResponse(&dxpuv1.ListGPUsResponse{}), nil
}

func (a *fakeAPI) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListLeasesResponse{}), nil
}

func (a *fakeAPI) ListEvents(context.Context, *connect.Request[dxpuv1.ListEventsRequest]) (*connect.Response[dxpuv1.ListEventsResponse], error) {
	return connect.NewResponse(&dxpuv1.ListEventsResponse{}), nil
}

// happen adds n events of a tenant.
func (a *fakeAPI) happen(n int, tenant string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for range n {
		a.events = append(a.events, &dxpuv1.Event{
			Revision: a.revision() + 1, Type: dxpuv1.EventType_EVENT_TYPE_LEASE_ACTIVE, Tenant: tenant, HostId: "h-" + tenant, Message: "of " + tenant,
		})
	}
	close(a.more)
	a.more = make(chan struct{})
}

// forget removes all events.
func (a *fakeAPI) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.floor, a.events = a.revision(), nil
}

func (a *fakeAPI) WatchEvents(ctx context.Context, req *connect.Request[dxpuv1.WatchEventsRequest], out *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	at := req.Msg.AfterRevision
	a.mu.Lock()
	a.watches++
	if at == 0 {
		at = a.revision()
	}
	floor := a.floor
	a.mu.Unlock()
	if at < floor {
		return connect.NewError(connect.CodeOutOfRange, errors.New("no longer available"))
	}
	if err := out.Send(&dxpuv1.WatchEventsResponse{Revision: at}); err != nil {
		return err
	}
	for {
		me, err := a.caller(req.Header())
		if err != nil {
			return err
		}
		a.mu.Lock()
		events, more := slices.Clone(a.events), a.more
		a.mu.Unlock()
		for _, e := range events {
			if e.Revision <= at {
				continue
			}
			at = e.Revision
			if me.Tenant != "" && me.Tenant != e.Tenant {
				continue
			}
			if err := out.Send(&dxpuv1.WatchEventsResponse{Event: e, Revision: e.Revision}); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}

package controller

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
)

// managerURL is where the manager of a test is.
const managerURL = "http://127.0.0.1:7470"

// awayManager is a manager with one GPU and one host that can be out of reach. Its network is in
// memory, so its time may be that of a bubble.
type awayManager struct {
	dxpuv1connect.UnimplementedPoolServiceHandler // others are not called
	dials                                         chan net.Conn

	mu      sync.Mutex // guards the fields below
	away    bool
	refuses bool              // to create leases, as one without a quorum
	invalid bool              // to create leases, as of a tenant that there is not
	rejects string            // the claim whose leases it fails to create, by UID
	keeps   bool              // fails to delete leases
	silent  bool              // the host has not reported since the manager leads
	lost    bool              // the host does not report any more
	noBox   bool              // the box has not reported since the manager leads
	conns   map[net.Conn]bool // of clients
	leases  map[string]bool   // those that have not ended, by request ID
	specs   map[string]*dxpuv1.LeaseSpec
	creates int    // calls of CreateLease, also those that are refused
	lists   int    // calls of ListHosts
	active  bool   // leases have their GPU
	binding bool   // they get it
	created func() // is called before a lease that is new is answered, if it is set
}

// newAwayManager starts a manager, and returns a client of it.
func newAwayManager(t *testing.T) (*awayManager, dxpuv1connect.PoolServiceClient) {
	m := &awayManager{dials: make(chan net.Conn), conns: map[net.Conn]bool{}, leases: map[string]bool{}, specs: map[string]*dxpuv1.LeaseSpec{}}
	stop := serveManager(m, m.dials)
	c, err := client.New(client.Config{Managers: []string{managerURL}, Transport: &http.Transport{DialContext: m.dial}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		stop()
	})
	return m, c.Pool
}

// serveManager serves the API of a manager on connections.
func serveManager(m dxpuv1connect.PoolServiceHandler, dials <-chan net.Conn) (stop func()) {
	mux := http.NewServeMux()
	mux.Handle(dxpuv1connect.NewPoolServiceHandler(m))
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	srv := &http.Server{Handler: mux}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(&pipeListener{conns: dials, closed: make(chan struct{})}) })
	return func() {
		_ = srv.Close()
		serving.Wait()
	}
}

// pipeListener accepts the connections of a channel.
type pipeListener struct {
	conns  <-chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7470} }

func (m *awayManager) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: (&pipeListener{}).Addr(), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	ours, theirs := net.Pipe()
	select {
	case m.dials <- theirs:
		m.conns[ours] = true
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// set changes the manager.
func (m *awayManager) set(change func(m *awayManager)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
	if m.away {
		for c := range m.conns {
			_ = c.Close()
		}
		clear(m.conns)
	}
}

// counts returns the number of leases that have not ended, and of the calls to create one.
func (m *awayManager) counts() (leases, creates int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.leases), m.creates
}

func (m *awayManager) leaseLocked(id string) *dxpuv1.Lease {
	l := &dxpuv1.Lease{Id: id, Spec: m.specs[id], State: dxpuv1.LeaseState_LEASE_STATE_RELEASING}
	if m.leases[id] {
		l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_PENDING, "in the queue"
		if m.binding {
			l.State, l.StateReason = dxpuv1.LeaseState_LEASE_STATE_BINDING, "waiting for host h1, which does not report"
		}
		if m.active {
			l.State = dxpuv1.LeaseState_LEASE_STATE_ACTIVE
			l.Bindings = []*dxpuv1.Binding{{GpuId: "b1/0", HostId: "h1", State: dxpuv1.BindingState_BINDING_STATE_ATTACHED}}
		}
	}
	return l
}

func (m *awayManager) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	res := &dxpuv1.ListLeasesResponse{Revision: 1}
	for _, id := range slices.Sorted(maps.Keys(m.specs)) {
		res.Leases = append(res.Leases, m.leaseLocked(id))
	}
	return connect.NewResponse(res), nil
}

func (m *awayManager) WatchLeases(ctx context.Context, _ *connect.Request[dxpuv1.WatchLeasesRequest], s *connect.ServerStream[dxpuv1.WatchLeasesResponse]) error {
	err := s.Send(&dxpuv1.WatchLeasesResponse{})
	<-ctx.Done()
	return err
}

func (m *awayManager) WatchEvents(ctx context.Context, _ *connect.Request[dxpuv1.WatchEventsRequest], s *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	err := s.Send(&dxpuv1.WatchEventsResponse{})
	<-ctx.Done()
	return err
}

func (m *awayManager) ListGPUs(context.Context, *connect.Request[dxpuv1.ListGPUsRequest]) (*connect.Response[dxpuv1.ListGPUsResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := &dxpuv1.GPU{Id: "b1/0", BoxId: "b1", Device: &dxpuv1.Device{}, Health: dxpuv1.Health_HEALTH_OK, State: dxpuv1.GPUState_GPU_STATE_FREE}
	if m.noBox {
		g.Health, g.State = dxpuv1.Health_HEALTH_UNREACHABLE, dxpuv1.GPUState_GPU_STATE_UNAVAILABLE
	}
	return connect.NewResponse(&dxpuv1.ListGPUsResponse{Gpus: []*dxpuv1.GPU{g}}), nil
}

func (m *awayManager) ListHosts(context.Context, *connect.Request[dxpuv1.ListHostsRequest]) (*connect.Response[dxpuv1.ListHostsResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lists++
	h := &dxpuv1.Host{Node: node("h1", m.silent), Slots: []*dxpuv1.HostSlot{{}, {}}}
	h.Node.Connected = h.Node.Connected && !m.lost
	return connect.NewResponse(&dxpuv1.ListHostsResponse{Hosts: []*dxpuv1.Host{h}}), nil
}

func (m *awayManager) ListBoxes(context.Context, *connect.Request[dxpuv1.ListBoxesRequest]) (*connect.Response[dxpuv1.ListBoxesResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return connect.NewResponse(&dxpuv1.ListBoxesResponse{Boxes: []*dxpuv1.Box{{Node: node("b1", m.noBox)}}}), nil
}

// node returns a node that reports, or one that has not reported since the manager leads.
func node(id string, silent bool) *dxpuv1.NodeInfo {
	n := &dxpuv1.NodeInfo{Id: id, Connected: !silent}
	if !silent {
		n.LastReportTime = timestamppb.Now()
	}
	return n
}

func (m *awayManager) GetPool(context.Context, *connect.Request[dxpuv1.GetPoolRequest]) (*connect.Response[dxpuv1.GetPoolResponse], error) {
	return connect.NewResponse(&dxpuv1.GetPoolResponse{Pool: &dxpuv1.Pool{}}), nil
}

func (m *awayManager) CreateLease(_ context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.creates++
	if m.refuses || m.rejects != "" && req.Msg.Spec.Labels[claims.LabelClaim] == m.rejects {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the manager has no quorum"))
	}
	if m.invalid {
		return nil, connect.NewError(connect.CodeNotFound, errors.New(noTenant))
	}
	id := req.Msg.RequestId
	m.leases[id], m.specs[id] = true, req.Msg.Spec
	if m.created != nil {
		m.created()
	}
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: m.leaseLocked(id)}), nil
}

func (m *awayManager) DeleteLease(_ context.Context, req *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keeps {
		return nil, connect.NewError(connect.CodeUnavailable, errors.New("the manager has no quorum"))
	}
	delete(m.leases, req.Msg.LeaseId)
	return connect.NewResponse(&dxpuv1.DeleteLeaseResponse{Lease: m.leaseLocked(req.Msg.LeaseId)}), nil
}

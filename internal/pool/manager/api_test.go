package manager_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

const token = "token-for-tests"

// service is a manager behind HTTP whose clock does not run.
type service struct {
	t     *testing.T
	url   string
	pool  dxpuv1connect.PoolServiceClient
	nodes dxpuv1connect.NodeServiceClient
	keys  map[string]string // credentials by node
}

func newService(t *testing.T) *service {
	m, err := manager.New(t.Context(), manager.Config{JoinToken: token, Open: manager.OpenLoopback})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(m.Handler())
	t.Cleanup(srv.Close)
	return &service{
		t: t, url: srv.URL, keys: map[string]string{},
		pool:  dxpuv1connect.NewPoolServiceClient(srv.Client(), srv.URL),
		nodes: dxpuv1connect.NewNodeServiceClient(srv.Client(), srv.URL),
	}
}

func (s *service) enrol(kind dxpuv1.NodeKind, name string) {
	s.t.Helper()
	res, err := s.nodes.Enroll(s.t.Context(), connect.NewRequest(&dxpuv1.EnrollRequest{JoinToken: token, Kind: kind, Name: name}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.keys[name] = res.Msg.Credential
}

// report sends a report as a node, with some node's credential.
func (s *service) report(as, node string, o *dxpuv1.ObservedState) error {
	o.NodeId = node
	req := connect.NewRequest(&dxpuv1.ReportRequest{State: o})
	req.Header().Set("Authorization", "Bearer "+s.keys[as])
	_, err := s.nodes.Report(s.t.Context(), req)
	return err
}

func gpus(n int) *dxpuv1.ObservedState {
	o := &dxpuv1.ObservedState{Sequence: 1}
	for i := range uint32(n) {
		o.Slots = append(o.Slots, &dxpuv1.ObservedSlot{
			Slot: i, Health: dxpuv1.Health_HEALTH_OK, Device: &dxpuv1.Device{Model: []string{"A", "B"}[i%2]},
		})
	}
	return o
}

// populated is a service with a box of 12 GPUs and a host of 4 slots.
func populated(t *testing.T) *service {
	s := newService(t)
	s.enrol(dxpuv1.NodeKind_NODE_KIND_BOX, "b1")
	s.enrol(dxpuv1.NodeKind_NODE_KIND_HOST, "h1")
	if err := s.report("b1", "b1", gpus(12)); err != nil {
		t.Fatal(err)
	}
	host := &dxpuv1.ObservedState{Sequence: 1}
	for i := range uint32(4) {
		host.Slots = append(host.Slots, &dxpuv1.ObservedSlot{Slot: i})
	}
	if err := s.report("h1", "h1", host); err != nil {
		t.Fatal(err)
	}
	return s
}

func wantCode(t *testing.T, err error, code connect.Code, text string) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %v with %q", err, code, text)
	}
}

func TestNodesProveThemselves(t *testing.T) {
	s := populated(t)
	wantCode(t, s.report("h1", "b1", gpus(1)), connect.CodePermissionDenied, "only for itself")
	s.keys["nobody"], s.keys["wrong"] = "none", "wrong"
	for _, as := range []string{"nobody", "wrong"} {
		wantCode(t, s.report(as, "b1", gpus(1)), connect.CodeUnauthenticated, "wrong credential")
		stream, err := s.nodes.WatchDesired(t.Context(), connect.NewRequest(&dxpuv1.WatchDesiredRequest{NodeId: "b1"}))
		if err != nil {
			t.Fatal(err)
		}
		if stream.Receive() {
			t.Errorf("%s sees the desired state of b1", as)
		}
		wantCode(t, stream.Err(), connect.CodeUnauthenticated, "wrong credential")
	}
	enroll := func(r *dxpuv1.EnrollRequest) error {
		_, err := s.nodes.Enroll(t.Context(), connect.NewRequest(r))
		return err
	}
	box := dxpuv1.NodeKind_NODE_KIND_BOX
	wantCode(t, enroll(&dxpuv1.EnrollRequest{Kind: box, Name: "b2"}), connect.CodeUnauthenticated, "join_token")
	wantCode(t, enroll(&dxpuv1.EnrollRequest{JoinToken: token, Name: "b2"}), connect.CodeInvalidArgument, "kind")
	wantCode(t, enroll(&dxpuv1.EnrollRequest{JoinToken: token, Kind: box, Name: "../b"}), connect.CodeInvalidArgument, "name")
	wantCode(t, enroll(&dxpuv1.EnrollRequest{JoinToken: token, Kind: box, Name: "b1"}), connect.CodeAlreadyExists, "in use")
	wantCode(t, enroll(&dxpuv1.EnrollRequest{JoinToken: token, Kind: box, Name: "h1"}), connect.CodeInvalidArgument, "is a host")
	if err := enroll(&dxpuv1.EnrollRequest{JoinToken: token, Kind: box, Name: "b1", PreviousCredential: s.keys["b1"]}); err != nil {
		t.Errorf("with its credential: %v", err)
	}
}

func TestReportsAreBounded(t *testing.T) {
	s := populated(t)
	many := gpus(1025)
	many.Sequence = 2
	wantCode(t, s.report("b1", "b1", many), connect.CodeInvalidArgument, "state.slots: 1025 slots")
	twice := gpus(2)
	twice.Slots[1].Slot = 0
	wantCode(t, s.report("b1", "b1", twice), connect.CodeInvalidArgument, "listed twice")
	empty := connect.NewRequest(&dxpuv1.ReportRequest{})
	empty.Header().Set("Authorization", "Bearer "+s.keys["b1"])
	_, err := s.nodes.Report(t.Context(), empty)
	wantCode(t, err, connect.CodeInvalidArgument, "state: must be set")
}

func TestListsArePagedAndFiltered(t *testing.T) {
	s := populated(t)
	var got []string
	req := &dxpuv1.ListGPUsRequest{PageSize: 5}
	for {
		res, err := s.pool.ListGPUs(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range res.Msg.Gpus {
			got = append(got, g.Id)
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	want := "b1/0 b1/1 b1/2 b1/3 b1/4 b1/5 b1/6 b1/7 b1/8 b1/9 b1/10 b1/11"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("pages give %s", s)
	}
	res, err := s.pool.ListGPUs(t.Context(), connect.NewRequest(&dxpuv1.ListGPUsRequest{Model: "B"}))
	if err != nil || len(res.Msg.Gpus) != 6 {
		t.Errorf("model B: %v, %v", res, err)
	}
	_, err = s.pool.ListGPUs(t.Context(), connect.NewRequest(&dxpuv1.ListGPUsRequest{PageToken: "!"}))
	wantCode(t, err, connect.CodeInvalidArgument, "page_token")
	_, err = s.pool.ListGPUs(t.Context(), connect.NewRequest(&dxpuv1.ListGPUsRequest{PageSize: -1}))
	wantCode(t, err, connect.CodeInvalidArgument, "page_size")
}

func TestCreateIsIdempotent(t *testing.T) {
	s := populated(t)
	create := func(id string, spec *dxpuv1.LeaseSpec) (string, error) {
		res, err := s.pool.CreateLease(t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{RequestId: id, Spec: spec}))
		if err != nil {
			return "", err
		}
		return res.Msg.Lease.Id, nil
	}
	spec := &dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(1e9)}
	first, err := create("r1", spec)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := create("r1", spec); err != nil || again != first {
		t.Errorf("again: %q, %v; want %q", again, err, first)
	}
	_, err = create("r1", &dxpuv1.LeaseSpec{Count: 2})
	wantCode(t, err, connect.CodeAlreadyExists, "request_id")
	if other, err := create("r1", &dxpuv1.LeaseSpec{Count: 1, Tenant: "other"}); err != nil || other == first {
		t.Errorf("another tenant: %q, %v", other, err)
	}
	_, err = create("", &dxpuv1.LeaseSpec{Count: 1, HostId: "b1"})
	wantCode(t, err, connect.CodeNotFound, "spec.host_id")
	_, err = s.pool.DeleteLease(t.Context(), connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: first, ResourceVersion: 1}))
	wantCode(t, err, connect.CodeAborted, "read it again")
	_, err = s.pool.Drain(t.Context(), connect.NewRequest(&dxpuv1.DrainRequest{}))
	wantCode(t, err, connect.CodeInvalidArgument, "target")
}

func TestCordon(t *testing.T) {
	s := populated(t)
	target := &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: "b1"}}
	if _, err := s.pool.Cordon(t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: target})); err != nil {
		t.Fatal(err)
	}
	create := &dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1}}
	_, err := s.pool.CreateLease(t.Context(), connect.NewRequest(create))
	wantCode(t, err, connect.CodeResourceExhausted, "The pool has no usable GPU")
	if _, err := s.pool.Uncordon(t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.CreateLease(t.Context(), connect.NewRequest(create)); err != nil {
		t.Error(err)
	}
	_, err = s.pool.Cordon(t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{}))
	wantCode(t, err, connect.CodeInvalidArgument, "target")

	// Once more changes nothing, and reports nothing.
	if _, err := s.pool.Uncordon(t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil {
		t.Fatal(err)
	}
	events, err := s.pool.ListEvents(t.Context(), connect.NewRequest(&dxpuv1.ListEventsRequest{Filter: &dxpuv1.EventFilter{BoxId: "b1"}}))
	if err != nil {
		t.Fatal(err)
	}
	uncordoned := 0
	for _, e := range events.Msg.Events {
		if e.Type == dxpuv1.EventType_EVENT_TYPE_UNCORDONED {
			uncordoned++
		}
	}
	if uncordoned != 1 {
		t.Errorf("%d events say that the box takes bindings again, want 1", uncordoned)
	}
}

// A watch that is opened again after a break continues without a gap.
func TestWatchResumes(t *testing.T) {
	s := populated(t)
	list, err := s.pool.ListEvents(t.Context(), connect.NewRequest(&dxpuv1.ListEventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	all := list.Msg.Events
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := s.pool.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{AfterRevision: all[2].Revision}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range all[3:] {
		for stream.Receive() && stream.Msg().Event == nil {
		}
		if got := stream.Msg().Event; got.GetRevision() != want.Revision {
			t.Fatalf("event %v, want %v", got, want)
		}
	}
}

// The pages of newest first are those of oldest first in reverse.
func TestListEventsNewestFirst(t *testing.T) {
	s := populated(t)
	list, err := s.pool.ListEvents(t.Context(), connect.NewRequest(&dxpuv1.ListEventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	want := list.Msg.Events
	req := &dxpuv1.ListEventsRequest{NewestFirst: true, PageSize: 3}
	for i := len(want) - 1; i >= 0; {
		list, err := s.pool.ListEvents(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Msg.Events {
			if e.Revision != want[i].Revision {
				t.Fatalf("event %d, want %d", e.Revision, want[i].Revision)
			}
			i--
		}
		req.PageToken = list.Msg.NextPageToken
		if (req.PageToken == "") != (i < 0) {
			t.Fatalf("page token %q with %d events to go", req.PageToken, i+1)
		}
	}
}

// The API as plain JSON and the pages for programs show no secret.
func TestHTTP(t *testing.T) {
	s := populated(t)
	get := func(method, path, body string) string {
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		raw, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, res.Status, err)
		}
		return string(raw)
	}
	tests := []struct{ method, path, body, want string }{
		{"GET", "/healthz", "", "ok"},
		{"GET", "/readyz", "", "ok"},
		{"GET", "/metrics", "", `dxpu_pool_gpus{state="free"} 12`},
		{"POST", "/dxpu.v1.PoolService/CreateLease", `{"spec": {"count": 1}}`, `"state":"LEASE_STATE_BINDING"`},
		{"POST", "/dxpu.v1.PoolService/ListLeases", `{}`, `"gpuId":"b1/0"`},
		{"POST", "/dxpu.v1.PoolService/ListHosts", `{}`, `"connected":true`},
	}
	for _, tt := range tests {
		got := get(tt.method, tt.path, tt.body)
		if !strings.Contains(strings.ReplaceAll(got, " ", ""), strings.ReplaceAll(tt.want, " ", "")) {
			t.Errorf("%s: %s, want %s", tt.path, got, tt.want)
		}
		for _, secret := range []string{token, s.keys["b1"], "secret"} {
			if strings.Contains(got, secret) {
				t.Errorf("%s shows a secret", tt.path)
			}
		}
	}
}

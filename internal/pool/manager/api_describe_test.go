package manager_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// overHTTP2 serves a manager with HTTP/2, which gRPC needs.
func overHTTP2(t *testing.T, cfg manager.Config) *httptest.Server {
	t.Helper()
	cfg.JoinToken = token
	m, err := manager.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(m.Handler())
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}

// get makes a GET and returns the status and the body.
func get(t *testing.T, c *http.Client, to string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(raw), res.Header
}

// The health protocol of gRPC answers everybody: like /healthz for the server, like
// /readyz for a service.
func TestHealthOfGRPC(t *testing.T) {
	leader, follower := overHTTP2(t, manager.Config{}), overHTTP2(t, manager.Config{Store: follower{}})
	for _, tc := range []struct {
		name, service, want string
		at                  *httptest.Server
	}{
		{"the server", "", "SERVING_STATUS_SERVING", leader},
		{"a service of the leader", "dxpu.v1.PoolService", "SERVING_STATUS_SERVING", leader},
		{"a follower", "", "SERVING_STATUS_SERVING", follower},
		{"a service of a follower", "dxpu.v1.PoolService", "SERVING_STATUS_NOT_SERVING", follower},
		{"a service that does not exist", "dxpu.v1.Other", "not_found", leader},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res, err := tc.at.Client().Post(tc.at.URL+"/grpc.health.v1.Health/Check", "application/json", strings.NewReader(`{"service":"`+tc.service+`"}`))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = res.Body.Close() }()
			raw, _ := io.ReadAll(res.Body)
			if !strings.Contains(string(raw), `"`+tc.want+`"`) {
				t.Errorf("%s %s, want %s", res.Status, raw, tc.want)
			}
		})
	}
}

// follower is the cluster of a manager that is never the leader.
type follower struct{}

func (follower) Campaign(ctx context.Context) (<-chan struct{}, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (follower) Valid() bool                                                       { return false }
func (follower) Resign(context.Context) error                                      { return nil }
func (follower) Managers() []*dxpuv1.ManagerInfo                                   { return nil }
func (follower) Absent() []string                                                  { return nil }
func (follower) Load(context.Context, string) (map[string][]byte, error)           { return nil, nil }
func (follower) Scan(context.Context, string, func(map[string][]byte) error) error { return nil }
func (follower) Commit(context.Context, map[string][]byte, []string) error         { return nil }

// Reflection describes both services to a caller with a credential, and to no other.
func TestReflection(t *testing.T) {
	srv := overHTTP2(t, manager.Config{Open: manager.OpenLoopback})
	client := grpcreflect.NewClient(srv.Client(), srv.URL)
	stream := client.NewStream(t.Context())
	names, err := stream.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []protoreflect.FullName{"dxpu.v1.PoolService", "dxpu.v1.NodeService", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("services %v: no %s", names, want)
		}
	}
	files, err := stream.FileContainingSymbol("dxpu.v1.PoolService")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	if _, err := stream.Close(); err != nil {
		t.Error(err)
	}
	closed := overHTTP2(t, manager.Config{})
	stream = grpcreflect.NewClient(closed.Client(), closed.URL).NewStream(t.Context())
	if _, err := stream.ListServices(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("without a credential: %v", err)
	}
	_, _ = stream.Close()
}

// A call may be a GET if and only if it changes nothing. RenewLease changes the lease, but
// the audit log does not note it: a program renews every few seconds.
func TestReadsMayBeGET(t *testing.T) {
	reads := 0
	methods := dxpuv1.File_dxpu_v1_dxpu_proto.Services().ByName("PoolService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		o, _ := m.Options().(*descriptorpb.MethodOptions)
		safe := o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
		rule, ok := auth.Lookup("/dxpu.v1.PoolService/" + string(m.Name()))
		if m.Name() == "RenewLease" && !safe && !rule.Changes {
			continue
		}
		if !ok || safe != (!rule.Changes && !m.IsStreamingServer()) {
			t.Errorf("%s: no side effects %v, but changes the pool %v", m.Name(), safe, rule.Changes)
		}
		if safe {
			reads++
		}
	}
	if reads < 16 {
		t.Errorf("%d calls without side effects", reads)
	}
	srv := overHTTP2(t, manager.Config{Open: manager.OpenLoopback})
	query := "?" + url.Values{"encoding": {"json"}, "message": {"{}"}}.Encode()
	code, body, header := get(t, srv.Client(), srv.URL+"/dxpu.v1.PoolService/GetPool"+query)
	if code != http.StatusOK || !strings.Contains(body, `"clusterId"`) || header.Get("Cache-Control") != "no-store" {
		t.Errorf("GetPool: %d %s %v", code, body, header)
	}
	if code, body, _ := get(t, srv.Client(), srv.URL+"/dxpu.v1.PoolService/GetLease?"+url.Values{"encoding": {"json"}, "message": {`{"leaseId":"l-7"}`}}.Encode()); code != http.StatusNotFound {
		t.Errorf("GetLease: %d %s", code, body)
	}
	if code, body, _ := get(t, srv.Client(), srv.URL+"/dxpu.v1.PoolService/DeleteLease?"+url.Values{"encoding": {"json"}, "message": {`{"leaseId":"l-7"}`}}.Encode()); code != http.StatusMethodNotAllowed {
		t.Errorf("DeleteLease by GET: %d %s", code, body)
	}
	if code, body, _ := get(t, srv.Client(), srv.URL+"/dxpu.v1.PoolService/GetPool"+query, "Sec-Fetch-Site", "cross-site"); code != http.StatusUnauthorized {
		t.Errorf("a page of another site reads the pool of a manager that trusts this machine: %d %s", code, body)
	}
	if code, _, _ := get(t, srv.Client(), srv.URL+"/dxpu.v1.PoolService/GetPool"+query, "Authorization", "Bearer wrong"); code != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", code)
	}
}

// The manager serves the OpenAPI description, which has every call and every field.
func TestOpenAPI(t *testing.T) {
	srv := overHTTP2(t, manager.Config{})
	code, body, header := get(t, srv.Client(), srv.URL+"/openapi.json")
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", code, header)
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas map[string]struct{ Properties map[string]json.RawMessage }
		}
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.") {
		t.Errorf("OpenAPI %q", doc.OpenAPI)
	}
	methods := dxpuv1.File_dxpu_v1_dxpu_proto.Services().ByName("PoolService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		o, _ := m.Options().(*descriptorpb.MethodOptions)
		at := doc.Paths["/dxpu.v1.PoolService/"+string(m.Name())]
		if m.IsStreamingServer() {
			continue
		}
		if _, post := at["post"]; !post {
			t.Errorf("no POST of %s", m.Name())
		}
		if _, get := at["get"]; get != (o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS) {
			t.Errorf("GET of %s: %v", m.Name(), get)
		}
	}
	for _, m := range []proto.Message{&dxpuv1.Lease{}, &dxpuv1.GPU{}, &dxpuv1.Pool{}, &dxpuv1.Incident{}} {
		d := m.ProtoReflect().Descriptor()
		have := doc.Components.Schemas[string(d.FullName())].Properties
		for i := range d.Fields().Len() {
			if name := d.Fields().Get(i).JSONName(); have[name] == nil {
				t.Errorf("%s has no field %s", d.FullName(), name)
			}
		}
	}
}

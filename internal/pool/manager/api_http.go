package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// maxRequest bounds the body of a call, in bytes: a report of maxSlots slots has
// less than half of it.
const maxRequest = 4 << 20

// minCompress is the size in bytes from which answers are compressed. The many
// answers to reports are smaller.
const minCompress = 4 << 10

// Handler serves the API with its description, /healthz, /readyz and /metrics.
func (m *Manager) Handler() http.Handler {
	mux := http.NewServeMux()
	// Calls of nodes and calls of persons have a gate each.
	options := func(g *gate, largest int) connect.HandlerOption {
		return connect.WithHandlerOptions(connect.WithReadMaxBytes(largest), connect.WithCompressMinBytes(minCompress), strictCodecs(),
			connect.WithInterceptors(callMeter{m.metrics}, leaderOnly{m}, g, &guard{m}))
	}
	persons, nodes := newGate(gateWidth), newGate(gateWidth)
	pool := func(largest int) (string, http.Handler) {
		return dxpuv1connect.NewPoolServiceHandler(&poolService{m: m}, connect.WithInterceptors(tracing()), options(persons, largest))
	}
	node := func(largest int) (string, http.Handler) {
		return dxpuv1connect.NewNodeServiceHandler(&nodeService{m: m}, options(nodes, largest))
	}
	path, calls := bounded(pool)
	mux.Handle(path, m.Protect(explainRefusals(uncached(calls))))
	path, calls = bounded(node)
	mux.Handle(path, m.Protect(explainRefusals(calls)))
	m.describe(mux)
	mux.HandleFunc("GET /healthz", m.healthz)
	mux.HandleFunc("GET /readyz", m.readyz)
	mux.HandleFunc("GET /metrics", m.serveMetrics)
	return mux
}

// bounded makes a service that reads larger requests of callers that may make the call than
// of all others: those are read only to be refused, and for the audit log.
func bounded(service func(largest int) (string, http.Handler)) (path string, h http.Handler) {
	path, large := service(maxRequest)
	_, small := service(maxUnauthenticatedBody)
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if mayCall(r) {
			large.ServeHTTP(w, r)
		} else {
			small.ServeHTTP(w, r)
		}
	})
}

// mayCall reports whether the caller of an admitted request has a credential with a role that may make the call.
func mayCall(r *http.Request) bool {
	role := auth.From(r.Context()).Role
	rule, _ := auth.Lookup(r.URL.Path)
	return role != dxpuv1.Role_ROLE_UNSPECIFIED && rule.For(role) != auth.Deny
}

// uncached keeps caches between a caller and the manager from answering a call: a read
// may be a GET.
func uncached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}

// healthz reports that the process serves.
func (m *Manager) healthz(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok\n")
}

// readyz reports whether the manager is the leader and its state can be stored.
// A follower is healthy but not ready, and names the leader as in its answers to calls.
func (m *Manager) readyz(w http.ResponseWriter, _ *http.Request) {
	if why := m.unready(); why != "" {
		if leader, err := (leaderOnly{m}).check(); err != nil {
			w.Header().Set(client.LeaderHeader, leader)
		}
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok: leader\n")
}

// unready returns why this manager does not decide, "" if it does.
func (m *Manager) unready() string {
	if isClosed(m.stop) {
		return "the manager is stopping"
	}
	m.mu.Lock()
	state, leads, trouble := m.state, m.leads, m.stateErr
	m.mu.Unlock()
	switch {
	case !leads:
		return "follower: " + message(m.notLeading())
	case state == nil:
		return fmt.Sprintf("leader, but the state is not available: %v", trouble)
	}
	return ""
}

// errorf returns an error of the API with a code.
func errorf(code connect.Code, format string, args ...any) error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

func invalid(format string, args ...any) error {
	return errorf(connect.CodeInvalidArgument, format, args...)
}

func notFound(kind, id string) error {
	return errorf(connect.CodeNotFound, "%s %q does not exist", kind, id)
}

func conflict(kind, id string, have, want uint64) error {
	return errorf(connect.CodeAborted, "resource_version: %s %s has version %d, not %d; read it again", kind, id, have, want)
}

// apiError passes errors of the API on, and turns all others, which come from
// the store, into UNAVAILABLE.
func apiError(err error) error {
	var ce *connect.Error
	if err == nil || errors.As(err, &ce) {
		return err
	}
	return unavailable("%w", err) // the transaction was rolled back
}

// updateResponse makes a transaction for a call and returns the response, which
// fn fills in.
func updateResponse[T any](ctx context.Context, m *Manager, fn func(t *tx, res *T) error) (*connect.Response[T], error) {
	res := new(T)
	if err := m.update(ctx, func(t *tx) error { return fn(t, res) }); err != nil {
		return nil, apiError(err)
	}
	return connect.NewResponse(res), nil
}

// viewResponse is updateResponse for a call that changes nothing.
func viewResponse[T any](ctx context.Context, m *Manager, fn func(t *tx, res *T) error) (*connect.Response[T], error) {
	res := new(T)
	err := m.viewIn(ctx, func(t *tx) error { return fn(t, res) })
	return connect.NewResponse(res), err
}

func kindWord(k dxpuv1.NodeKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "NODE_KIND_"))
}

func healthWord(h dxpuv1.Health) string {
	return strings.ToLower(strings.TrimPrefix(h.String(), "HEALTH_"))
}

// period returns a duration in words without parts that are zero: 24h, 10m, 1m30s.
func period(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func gpuID(box string, slot uint32) string { return placement.Ref{Box: box, Slot: slot}.String() }

func gpuEvent(n *nodeRecord, slot uint32, typ dxpuv1.EventType) *dxpuv1.Event {
	e := nodeEvent(n, typ)
	e.GpuId = gpuID(n.ID, slot)
	return e
}

func nodeEvent(n *nodeRecord, typ dxpuv1.EventType) *dxpuv1.Event {
	e := &dxpuv1.Event{Type: typ}
	if n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		e.BoxId = n.ID
	} else {
		e.HostId = n.ID
	}
	return e
}

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
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
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
	options := func() connect.HandlerOption {
		return connect.WithHandlerOptions(connect.WithReadMaxBytes(maxRequest), connect.WithCompressMinBytes(minCompress), strictCodecs(),
			connect.WithInterceptors(callMeter{m.metrics}, leaderOnly{m}, newGate(gateWidth), &guard{m}))
	}
	path, pool := dxpuv1connect.NewPoolServiceHandler(&poolService{m: m}, connect.WithInterceptors(tracing()), options())
	mux.Handle(path, m.Protect(explainRefusals(uncached(pool))))
	path, node := dxpuv1connect.NewNodeServiceHandler(&nodeService{m: m}, options())
	mux.Handle(path, m.Protect(explainRefusals(node)))
	m.describe(mux)
	mux.HandleFunc("GET /healthz", m.healthz)
	mux.HandleFunc("GET /readyz", m.readyz)
	mux.HandleFunc("GET /metrics", m.serveMetrics)
	return mux
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

// strictJSON decodes requests of people and scripts. It refuses unknown fields
// instead of ignoring them. Programs that must work with managers of other
// versions send protobuf.
type strictJSON struct{ name string }

func (c strictJSON) Name() string { return c.name }

// strictCodecs replaces connect's own JSON codec.
func strictCodecs() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

var errNoMessage = errors.New("manager: not a message of the API")

func (strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, errNoMessage
	}
	return protojson.Marshal(m)
}

func (strictJSON) Unmarshal(raw []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return errNoMessage
	}
	if len(raw) == 0 {
		return errors.New(`no JSON: send {} for a request without fields`)
	}
	err := protojson.UnmarshalOptions{RecursionLimit: maxJSONDepth}.Unmarshal(raw, m)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "unknown field"):
		return fmt.Errorf("%w; the fields are those of %s in api/dxpu/v1", err, m.ProtoReflect().Descriptor().Name())
	case strings.Contains(err.Error(), "google.protobuf.Duration"):
		return fmt.Errorf(`%w; write a duration like "90s"`, err)
	}
	return err
}

// maxJSONDepth bounds the nesting of a request; the API needs eight levels.
const maxJSONDepth = 32

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

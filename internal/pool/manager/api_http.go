package manager

import (
	"fmt"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// maxRequest bounds the body of a call, in bytes: a report of maxSlots slots has
// less than half of it.
const maxRequest = 4 << 20

// minCompress is the size in bytes from which answers are compressed. The many
// answers to reports are smaller.
const minCompress = 4 << 10

func (m *Manager) handler() http.Handler {
	mux := http.NewServeMux()
	// Calls of nodes and calls of persons have a gate each.
	options := func() connect.HandlerOption {
		return connect.WithHandlerOptions(connect.WithReadMaxBytes(maxRequest), connect.WithCompressMinBytes(minCompress), strictCodecs(),
			connect.WithInterceptors(leaderOnly{m}, newGate(gateWidth), &guard{m}))
	}
	path, pool := dxpuv1connect.NewPoolServiceHandler(&poolService{m: m}, connect.WithInterceptors(tracing()), options())
	mux.Handle(path, m.Protect(pool))
	path, node := dxpuv1connect.NewNodeServiceHandler(&nodeService{m: m}, options())
	mux.Handle(path, m.Protect(node))
	mux.HandleFunc("GET /healthz", m.healthz)
	mux.HandleFunc("GET /readyz", m.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

// healthz reports that the process serves.
func (m *Manager) healthz(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok\n")
}

// readyz reports whether the manager is the leader and its state can be stored.
// A follower is healthy but not ready.
func (m *Manager) readyz(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-m.stop:
		http.Error(w, "the manager is stopping", http.StatusServiceUnavailable)
		return
	default:
	}
	m.mu.Lock()
	state, leads, trouble := m.state, m.leads, m.stateErr
	m.mu.Unlock()
	switch {
	case !leads:
		http.Error(w, "follower: "+message(m.notLeading()), http.StatusServiceUnavailable)
	case state == nil:
		http.Error(w, fmt.Sprintf("leader, but the state is not available: %v", trouble), http.StatusServiceUnavailable)
	default:
		_, _ = io.WriteString(w, "ok: leader\n")
	}
}

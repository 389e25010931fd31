package manager

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// metrics serves /metrics: totals that are read on request (metrics_pool.go), and
// counters of events and calls.
type metrics struct {
	registry *prometheus.Registry // of this process and of the pool as a whole
	details  *prometheus.Registry // of single tenants and GPUs
	events   *prometheus.CounterVec
	errors   *prometheus.CounterVec
	steps    *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	took     *prometheus.HistogramVec
	commits  prometheus.Histogram
	batches  prometheus.Histogram
	hearing  prometheus.Histogram
	failures prometheus.Counter
	limited  prometheus.Counter
}

func newMetrics(m *Manager) *metrics {
	x := &metrics{
		registry: prometheus.NewRegistry(), details: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dxpu_manager_events_total", Help: "Events by type.",
		}, []string{"type"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dxpu_gpu_errors_total", Help: "Errors that GPUs have reported, by code (XID) and by the action of the manager.",
		}, []string{"xid", "action"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dxpu_manager_binding_step_seconds", Help: "Time that bindings took to enter a state from the one before; the time attached does not count.",
			// 1 ms to 16 s: an attach takes tens of milliseconds, a time-out 20 s.
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"state"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dxpu_manager_calls_total", Help: "Calls of the API that have ended, by their code.",
		}, []string{"call", "code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dxpu_manager_call_seconds", Help: "Time that calls took, streams excepted.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9), // 0.5 ms to 33 s
		}, []string{"call"}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dxpu_manager_commit_seconds", Help: "Time that the store took for a batch of transactions.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16), // 100 µs to 3 s
		}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dxpu_manager_commit_transactions", Help: "Transactions that were stored together.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11), // 1 to maxBatch
		}),
		hearing: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dxpu_manager_hearing_seconds", Help: "Time after which the manager hears what nodes send, measured with messages to itself.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9), // 100 µs to 6.6 s
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dxpu_manager_commit_failures_total", Help: "Batches that could not be stored.",
		}),
		limited: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dxpu_manager_calls_limited_total", Help: "Calls that were refused because their caller makes too many.",
		}),
	}
	// The counters of known errors and steps begin with 0, so that the first error is an increase.
	for _, c := range gpuerr.Classes() {
		x.gpuError(c.Code, dxpuv1.ErrorAction(c.Action), 0)
		if c.Escalated != 0 {
			x.gpuError(c.Code, dxpuv1.ErrorAction(c.Escalated), 0)
		}
	}
	for _, s := range []dxpuv1.BindingState{ready, attached} {
		x.steps.WithLabelValues(stateWord(s))
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dxpu_build_info", Help: "1; the labels have the version of this program.",
		ConstLabels: prometheus.Labels{"version": m.cfg.Version, "goversion": runtime.Version()},
	})
	build.Set(1)
	x.registry.MustRegister(x.events, x.errors, x.steps, x.calls, x.took, x.commits, x.batches, x.hearing, x.failures, x.limited, build, &poolCollector{m, false},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	x.details.MustRegister(&poolCollector{m, true})
	return x
}

// MetricsHandler serves all metrics to every caller, for an address that only operators
// reach.
func (m *Manager) MetricsHandler() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{m.metrics.registry, m.metrics.details}, promhttp.HandlerOpts{})
}

// serveMetrics serves the metrics at the address of the API, which tenants reach: only
// operators and admins get those of single tenants and GPUs. A manager that cannot check
// a credential, because it does not lead, has none of those.
func (m *Manager) serveMetrics(w http.ResponseWriter, r *http.Request) {
	ctx, err := m.admit(r)
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated:
		http.Error(w, message(err), http.StatusUnauthorized)
		return
	case connect.CodeResourceExhausted:
		w.Header().Set("Retry-After", retryAfter(err))
		http.Error(w, message(err), http.StatusTooManyRequests)
		return
	}
	if err == nil && scopeOf(ctx).all {
		m.MetricsHandler().ServeHTTP(w, r)
		return
	}
	promhttp.HandlerFor(m.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// stored counts a batch that was sent to the store.
func (x *metrics) stored(transactions int, took time.Duration, err error) {
	if err != nil {
		x.failures.Inc()
		return
	}
	x.commits.Observe(took.Seconds())
	x.batches.Observe(float64(transactions))
}

func (x *metrics) event(e *dxpuv1.Event) {
	x.events.WithLabelValues(strings.ToLower(strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_"))).Inc()
	switch e.Type {
	case dxpuv1.EventType_EVENT_TYPE_BINDING_STATE:
		if e.Duration != nil {
			x.steps.WithLabelValues(stateWord(e.BindingState)).Observe(e.Duration.AsDuration().Seconds())
		}
	case dxpuv1.EventType_EVENT_TYPE_GPU_ERROR:
		x.gpuError(e.ErrorCode, e.ErrorAction, e.ErrorCount)
	}
}

func (x *metrics) gpuError(code uint32, action dxpuv1.ErrorAction, n uint64) {
	word := strings.ToLower(strings.TrimPrefix(action.String(), "ERROR_ACTION_"))
	x.errors.WithLabelValues(xidLabel(code), word).Add(float64(n))
}

// maxXID is the largest error code that has a label of its own: a box may report any
// number, and each label costs memory. NVIDIA's driver has fewer than 200.
const maxXID = 255

func xidLabel(code uint32) string {
	if code > maxXID {
		return "other"
	}
	return strconv.FormatUint(uint64(code), 10)
}

// call counts a call that has ended. It does not trust the name of the procedure, which
// may be any path.
func (x *metrics) call(procedure string, err error) {
	name := "unknown"
	if _, ok := auth.Lookup(procedure); ok {
		name = strings.TrimPrefix(procedure, "/dxpu.v1.")
	}
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	x.calls.WithLabelValues(name, code).Inc()
}

// callMeter counts calls and measures their time. It implements connect.Interceptor.
type callMeter struct{ x *metrics }

// WrapUnary implements connect.Interceptor.
func (c callMeter) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		began := time.Now()
		res, err := next(ctx, req)
		c.x.call(req.Spec().Procedure, err)
		c.x.took.WithLabelValues(strings.TrimPrefix(req.Spec().Procedure, "/dxpu.v1.")).Observe(time.Since(began).Seconds())
		return res, err
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (c callMeter) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		c.x.call(conn.Spec().Procedure, err)
		return err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (callMeter) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

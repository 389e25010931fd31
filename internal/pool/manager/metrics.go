package manager

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// metrics serves /metrics: totals that are read on request, and counters of events.
type metrics struct {
	registry *prometheus.Registry
	events   *prometheus.CounterVec
	steps    *prometheus.HistogramVec
	commits  prometheus.Histogram
	batches  prometheus.Histogram
	failures prometheus.Counter
	limited  prometheus.Counter
}

func newMetrics(m *Manager) *metrics {
	x := &metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dxpu_manager_events_total", Help: "Events by type.",
		}, []string{"type"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dxpu_manager_binding_step_seconds", Help: "Time that bindings took to enter a state from the one before; the time attached does not count.",
			// 1 ms to 16 s: an attach takes tens of milliseconds, a time-out 20 s.
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"state"}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dxpu_manager_commit_seconds", Help: "Time that the store took for a batch of transactions.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16), // 100 µs to 3 s
		}),
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dxpu_manager_commit_transactions", Help: "Transactions that were stored together.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 11), // 1 to maxBatch
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dxpu_manager_commit_failures_total", Help: "Batches that could not be stored.",
		}),
		limited: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dxpu_manager_calls_limited_total", Help: "Calls that were refused because their caller makes too many.",
		}),
	}
	x.registry.MustRegister(x.events, x.steps, x.commits, x.batches, x.failures, x.limited, &poolCollector{m})
	return x
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
	if e.Type == dxpuv1.EventType_EVENT_TYPE_BINDING_STATE && e.Duration != nil {
		x.steps.WithLabelValues(stateWord(e.BindingState)).Observe(e.Duration.AsDuration().Seconds())
	}
}

// poolCollector reports the pool's totals as gauges.
type poolCollector struct{ m *Manager }

// Describe implements prometheus.Collector. It describes nothing, because the
// metrics depend on whether the manager is the leader.
func (*poolCollector) Describe(chan<- *prometheus.Desc) {}

func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	p := c.m.totals()
	gauge := func(name, help, state string, v uint32) {
		desc := prometheus.NewDesc("dxpu_pool_"+name, help, []string{"state"}, nil)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), state)
	}
	const gpus, nodes, leases = "GPUs of the pool.", "Enrolled nodes.", "Leases."
	gauge("gpus", gpus, "free", p.GpusFree)
	gauge("gpus", gpus, "bound", p.GpusBound)
	gauge("gpus", gpus, "unavailable", p.GpusUnavailable)
	gauge("hosts", nodes, "connected", p.HostsConnected)
	gauge("hosts", nodes, "lost", p.Hosts-p.HostsConnected)
	gauge("boxes", nodes, "connected", p.BoxesConnected)
	gauge("boxes", nodes, "lost", p.Boxes-p.BoxesConnected)
	gauge("spares", "Free GPUs held back from ordinary leases.", "held", p.SparesHeld)
	gauge("leases", leases, "active", p.LeasesActive)
	gauge("leases", leases, "pending", p.LeasesPending)
}

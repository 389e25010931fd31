package manager

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// metrics are what /metrics shows: totals read when asked, and what happened,
// counted as it does.
type metrics struct {
	registry *prometheus.Registry
	events   *prometheus.CounterVec
	steps    *prometheus.HistogramVec
}

func newMetrics(m *Manager) *metrics {
	x := &metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dxpu_manager_events_total", Help: "Events by type.",
		}, []string{"type"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dxpu_manager_binding_step_seconds", Help: "Time that bindings took to enter a state from the one before.",
			// 1 ms to 16 s: an attach takes tens of milliseconds, a time-out 20 s.
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"state"}),
	}
	x.registry.MustRegister(x.events, x.steps, &poolCollector{m})
	return x
}

func (x *metrics) event(e *dxpuv1.Event) {
	x.events.WithLabelValues(strings.ToLower(strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_"))).Inc()
	if e.Type == dxpuv1.EventType_EVENT_TYPE_BINDING_STATE {
		x.steps.WithLabelValues(stateWord(e.BindingState)).Observe(e.Duration.AsDuration().Seconds())
	}
}

// poolCollector turns the pool's totals into gauges.
type poolCollector struct{ m *Manager }

// The gauges of a poolCollector; what names them is their first label.
func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("dxpu_pool_"+name, help, []string{"state"}, nil)
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	prometheus.DescribeByCollect(c, ch)
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	p := c.m.pool()
	gauge := func(name, help, state string, v uint32) {
		ch <- prometheus.MustNewConstMetric(poolDesc(name, help), prometheus.GaugeValue, float64(v), state)
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

package controller

import "github.com/prometheus/client_golang/prometheus"

// Metrics are those of a controller.
type Metrics struct {
	reconciles, errors, poolErrors     prometheus.Counter
	created, deleted, refused, reports prometheus.Counter
	devices                            prometheus.Gauge
	attach                             prometheus.Histogram
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "dxpu_dra_" + name, Help: help})
		r.MustRegister(c)
		return c
	}
	m := &Metrics{
		reconciles: counter("reconciles_total", "Claims looked at."),
		errors:     counter("reconcile_errors_total", "Claims that are tried again after an error of the manager or the API server."),
		poolErrors: counter("pool_errors_total", "Failures to follow the pool."),
		created:    counter("leases_created_total", "Leases created or found by their request ID."),
		deleted:    counter("leases_deleted_total", "Leases deleted."),
		refused:    counter("leases_refused_total", "Leases that the manager refused."),
		reports:    counter("reports_total", "Changes of the status of claims."),
		devices:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "dxpu_dra_devices", Help: "GPUs published as devices."}),
		attach: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "dxpu_dra_attach_seconds", Help: "Time from the allocation of a claim until its device is attached.",
			Buckets: []float64{.05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 300},
		}),
	}
	r.MustRegister(m.devices, m.attach)
	return m
}

package agent

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/link"
)

// Metrics makes the metrics that both proxies have. Those of a slot carry its
// number, those of a path the path's.
type Metrics struct{ out chan<- prometheus.Metric }

// NewMetrics writes to out, during one collection.
func NewMetrics(out chan<- prometheus.Metric) Metrics { return Metrics{out} }

// Counter emits a counter of a slot.
func (m Metrics) Counter(name, help string, slot int, v uint64, labels ...string) {
	m.emit(prometheus.CounterValue, name, help, slot, float64(v), labels)
}

// Gauge emits a gauge of a slot.
func (m Metrics) Gauge(name, help string, slot int, v float64, labels ...string) {
	m.emit(prometheus.GaugeValue, name, help, slot, v, labels)
}

// emit makes a constant metric; labels are names and values in turn.
func (m Metrics) emit(kind prometheus.ValueType, name, help string, slot int, v float64, labels []string) {
	fixed := prometheus.Labels{"slot": strconv.Itoa(slot)}
	for i := 0; i+1 < len(labels); i += 2 {
		fixed[labels[i]] = labels[i+1]
	}
	desc := prometheus.NewDesc("dxpu_"+name, help, nil, fixed)
	m.out <- prometheus.MustNewConstMetric(desc, kind, v)
}

// Link emits the counters of a slot's link.
func (m Metrics) Link(slot int, s *link.Stats) {
	m.Counter("link_tlps_total", "TLPs through the link of the binding.", slot, s.TLPsSent, "direction", "out")
	m.Counter("link_tlps_total", "TLPs through the link of the binding.", slot, s.TLPsReceived, "direction", "in")
	m.Counter("link_payload_bytes_total", "Payload of those TLPs.", slot, s.BytesSent, "direction", "out")
	m.Counter("link_payload_bytes_total", "Payload of those TLPs.", slot, s.BytesReceived, "direction", "in")
	m.Counter("link_retransmissions_total", "Fragments of TLPs sent again.", slot, s.Retransmissions)
	m.Counter("link_duplicates_total", "Fragments that had come before.", slot, s.Duplicates)
	m.Counter("link_key_changes_total", "Key phases begun.", slot, s.KeyChanges)
	for reason, n := range drops(&s.Drops) {
		m.Counter("link_drops_total", "Datagrams dropped, by reason.", slot, n, "reason", reason)
	}
	for i, p := range s.Paths {
		path := strconv.Itoa(i)
		usable := 0.0
		if p.Usable {
			usable = 1
		}
		m.Gauge("path_usable", "Whether the path works for the binding.", slot, usable, "path", path)
		m.Gauge("path_srtt_seconds", "Smoothed round trip of the path.", slot, p.SRTT.Seconds(), "path", path)
		m.Gauge("path_mtu_bytes", "Largest datagram in use.", slot, float64(p.MTU), "path", path)
		m.Gauge("path_cwnd_bytes", "Congestion window.", slot, float64(p.Cwnd), "path", path)
	}
}

// Fabric emits the counters of the sockets.
func (m Metrics) Fabric(f *netio.Fabric) {
	stats := f.Stats()
	for i, s := range stats.Paths {
		path := prometheus.Labels{"path": strconv.Itoa(i)}
		counter := func(name, help string, v uint64) {
			m.out <- prometheus.MustNewConstMetric(prometheus.NewDesc("dxpu_"+name, help, nil, path), prometheus.CounterValue, float64(v))
		}
		counter("udp_received_datagrams_total", "Datagrams received.", s.RxDatagrams)
		counter("udp_received_batches_total", "System calls they took.", s.RxBatches)
		counter("udp_sent_datagrams_total", "Datagrams sent.", s.TxDatagrams)
		counter("udp_sent_batches_total", "System calls they took.", s.TxBatches)
		counter("udp_send_errors_total", "Datagrams that the kernel did not take.", s.TxErrors)
		counter("udp_segmentation_refused_total", "Batches sent one by one because segmentation offload was refused.", s.GSORefused)
	}
	total := func(name, help string, v uint64) {
		m.out <- prometheus.MustNewConstMetric(prometheus.NewDesc("dxpu_"+name, help, nil, nil), prometheus.CounterValue, float64(v))
	}
	total("stray_datagrams_total", "Datagrams of no binding of this node.", stats.Stray)
	total("stranger_datagrams_total", "Datagrams of a binding that are not from its peer's address.", stats.Strangers)
}

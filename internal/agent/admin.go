//go:build linux

package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/link"
)

// SlotsHandler serves the report of a proxy as JSON.
func SlotsHandler(report func() Report) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(report()) // fails only when the client has gone
	})
}

// CaptureHandler serves a pcapng stream of the TLPs of a fabric's bindings until
// the client disconnects. Query parameters: slot, binding (its number), snaplen.
//
// The stream contains tenants' memory, decrypted. The handler is therefore a
// LocalHandler.
func CaptureHandler(f *netio.Fabric, allowed bool, program, name string) http.Handler {
	return LocalHandler(allowed, "a capture shows the memory of tenants: start the proxy with --allow-capture to allow it", func(w http.ResponseWriter, r *http.Request) {
		o := capture.Options{Program: program, Interface: name, About: "TLPs between the links and the slots of a DxPU proxy"}
		if err := captureQuery(r, &o); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/x-pcapng")
		flush := http.NewResponseController(w)
		// The capture ends when the client disconnects: an error has no reader.
		_ = f.Capture(r.Context(), o, w, func() { _ = flush.Flush() })
	})
}

// LocalHandler serves only programs of the same machine, and only if allowed is
// true. refusal says how to allow it. Pages in a browser of this machine are
// refused, too.
func LocalHandler(allowed bool, refusal string, serve http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !allowed:
			http.Error(w, refusal, http.StatusForbidden)
		case !isLocal(r):
			http.Error(w, "only programs of the same machine may do this: use a tunnel, such as ssh -L, and an address or localhost in the URL", http.StatusForbidden)
		case fromOtherPage(r):
			http.Error(w, "pages of other sites may not do this", http.StatusForbidden)
		default:
			serve(w, r)
		}
	})
}

// fromOtherPage reports whether a browser sent the request for a page of another
// origin. Unlike http.CrossOriginProtection it includes GET: to start a capture is
// an effect.
func fromOtherPage(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	return origin != "" && origin != "http://"+r.Host
}

// isLocal reports whether a request came over loopback and names an address or
// localhost: a web page that resolves its own name to this machine (DNS
// rebinding) sends that name in Host.
func isLocal(r *http.Request) bool {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	to, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		to = r.Host
	}
	return net.ParseIP(from).IsLoopback() && (to == "localhost" || net.ParseIP(to) != nil)
}

// captureQuery reads the query parameters of a capture.
func captureQuery(r *http.Request, o *capture.Options) error {
	for _, p := range []struct {
		name string
		bits int
		set  func(v uint64)
	}{
		{"slot", 16, func(v uint64) { o.Slot = new(uint16(v)) }},
		{"binding", 32, func(v uint64) { o.Binding = new(uint32(v)) }},
		{"snaplen", 16, func(v uint64) { o.SnapLen = int(v) }},
	} {
		s := r.FormValue(p.name)
		if s == "" {
			continue
		}
		v, err := strconv.ParseUint(s, 0, p.bits)
		if err != nil {
			return fmt.Errorf("%s: %q is not a number of %d bits", p.name, s, p.bits)
		}
		p.set(v)
	}
	return nil
}

// Metrics emits the metrics that both proxies have. Metrics of a slot carry the
// label slot, those of a path the label path.
type Metrics struct{ out chan<- prometheus.Metric }

// NewMetrics returns Metrics that write to out during one collection.
func NewMetrics(out chan<- prometheus.Metric) Metrics { return Metrics{out} }

// Counter emits a counter of a slot.
func (m Metrics) Counter(name, help string, slot int, v uint64, labels ...string) {
	m.emit(prometheus.CounterValue, name, help, slot, float64(v), labels)
}

// Gauge emits a gauge of a slot.
func (m Metrics) Gauge(name, help string, slot int, v float64, labels ...string) {
	m.emit(prometheus.GaugeValue, name, help, slot, v, labels)
}

// emit writes a constant metric; labels are alternating names and values.
func (m Metrics) emit(kind prometheus.ValueType, name, help string, slot int, v float64, labels []string) {
	fixed := prometheus.Labels{"slot": strconv.Itoa(slot)}
	for i := 0; i+1 < len(labels); i += 2 {
		fixed[labels[i]] = labels[i+1]
	}
	desc := prometheus.NewDesc("dxpu_"+name, help, nil, fixed)
	m.out <- prometheus.MustNewConstMetric(desc, kind, v)
}

// Slot emits the counters of a slot and of its link, if it has one.
func (m Metrics) Slot(slot int, s *SlotState) {
	for direction, f := range map[string]*Flow{"to_device": &s.Traffic.ToDevice, "from_device": &s.Traffic.FromDevice} {
		m.Counter("slot_tlps_total", "TLPs between the device and its host.", slot, f.tlps.Load(), "direction", direction)
		m.Counter("slot_payload_bytes_total", "Payload of those TLPs.", slot, f.bytes.Load(), "direction", direction)
	}
	m.Counter("slot_peer_tlps_total", "TLPs of the device that went to another device of its domain.", slot, s.Traffic.Peer.Load())
	if l := s.LinkStats.Load(); l != nil {
		m.link(slot, l)
	}
}

// link emits the counters of a slot's link.
func (m Metrics) link(slot int, s *link.Stats) {
	m.Counter("link_tlps_total", "TLPs through the link of the binding.", slot, s.TLPsSent, "direction", "out")
	m.Counter("link_tlps_total", "TLPs through the link of the binding.", slot, s.TLPsReceived, "direction", "in")
	m.Counter("link_payload_bytes_total", "Payload bytes of TLPs through the link of the binding.", slot, s.BytesSent, "direction", "out")
	m.Counter("link_payload_bytes_total", "Payload bytes of TLPs through the link of the binding.", slot, s.BytesReceived, "direction", "in")
	m.Counter("link_retransmissions_total", "Fragments of TLPs retransmitted.", slot, s.Retransmissions)
	m.Counter("link_duplicates_total", "Fragments received more than once.", slot, s.Duplicates)
	m.Counter("link_marked_datagrams_total", "Datagrams that arrived with the mark of a congested network (ECN).", slot, s.MarkedDatagrams)
	m.Counter("link_mark_cuts_total", "Cuts of the congestion window for marks that the peer told of.", slot, s.MarkCuts)
	m.Counter("link_key_changes_total", "Key changes.", slot, s.KeyChanges)
	for reason, n := range drops(&s.Drops) {
		m.Counter("link_drops_total", "Datagrams dropped, by reason.", slot, n, "reason", reason)
	}
	for i, p := range s.Paths {
		path := strconv.Itoa(i)
		usable := 0.0
		if p.Usable {
			usable = 1
		}
		m.Gauge("path_usable", "1 if the path works for the binding.", slot, usable, "path", path)
		m.Gauge("path_srtt_seconds", "Smoothed round trip of the path.", slot, p.SRTT.Seconds(), "path", path)
		m.Gauge("path_mtu_bytes", "Largest datagram that the path uses.", slot, float64(p.MTU), "path", path)
		m.Gauge("path_cwnd_bytes", "Congestion window of the path.", slot, float64(p.Cwnd), "path", path)
	}
}

// Fabric emits the counters of the sockets, if the driver has any.
func (m Metrics) Fabric(d engine.Driver) {
	f, ok := d.(*netio.Fabric)
	if !ok {
		return
	}
	stats := f.Stats()
	var path prometheus.Labels
	counter := func(name, help string, v uint64) {
		m.out <- prometheus.MustNewConstMetric(prometheus.NewDesc("dxpu_"+name, help, nil, path), prometheus.CounterValue, float64(v))
	}
	counter("stray_datagrams_total", "Datagrams received for no binding of this node.", stats.Stray)
	counter("stranger_datagrams_total", "Datagrams received for a binding from an address other than its peer's.", stats.Strangers)
	counter("forged_handshakes_total", "Handshake datagrams that failed their checks and reached no link.", stats.Forged)
	counter("flooded_handshakes_total", "Handshake datagrams beyond the rate of a peer.", stats.Flood)
	counter("cookies_sent_total", "Handshake datagrams that were answered with a cookie, because of their rate.", stats.Cookies)
	for i, s := range stats.Paths {
		path = prometheus.Labels{"path": strconv.Itoa(i)}
		counter("udp_received_datagrams_total", "Datagrams received.", s.RxDatagrams)
		counter("udp_received_batches_total", "System calls that received datagrams.", s.RxBatches)
		counter("udp_sent_datagrams_total", "Datagrams sent.", s.TxDatagrams)
		counter("udp_sent_batches_total", "System calls that sent datagrams.", s.TxBatches)
		counter("udp_send_errors_total", "Datagrams that the kernel refused to send.", s.TxErrors)
		counter("udp_segmentation_refused_total", "Batches sent as single datagrams because the kernel refused segmentation offload.", s.GSORefused)
	}
}

package agent

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
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
// The stream contains tenants' memory, decrypted. The handler therefore serves
// only processes of the same machine, and only if allowed is true.
func CaptureHandler(f *netio.Fabric, allowed bool, program, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !allowed:
			http.Error(w, "a capture shows the memory of tenants: start the proxy with --allow-capture to allow it", http.StatusForbidden)
			return
		case !isLocal(r):
			http.Error(w, "a capture is available only to processes of the same machine: use a tunnel, such as ssh -L", http.StatusForbidden)
			return
		}
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

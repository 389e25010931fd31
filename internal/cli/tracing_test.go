package cli

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spanCollector is an OTLP collector that keeps spans as "TRACE|SERVICE|NAME".
type spanCollector struct {
	mu    sync.Mutex
	spans []string
}

func (c *spanCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(raw, &req) != nil {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans = append(c.spans, strings.Join([]string{hex.EncodeToString(s.TraceId), service, s.Name}, "|"))
			}
		}
	}
}

// complete reports whether one trace has all of the spans, "SERVICE|NAME".
func (c *spanCollector) complete(want []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		trace, _, _ := strings.Cut(s, "|")
		if !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(c.spans, trace+"|"+w) }) {
			return true
		}
	}
	return false
}

// startCollector serves an OTLP collector to the processes of a script.
func startCollector(ts *testscript.TestScript, _ bool, _ []string) {
	c := &spanCollector{}
	srv := httptest.NewServer(c)
	ts.Defer(srv.Close)
	ts.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	ts.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // milliseconds
	spanCollectors.Store(ts.Getenv("WORK"), c)
}

var spanCollectors sync.Map // of *spanCollector by the script's directory

// oneTrace waits until one trace has a span of each given service and name:
//
//	one-trace SERVICE|NAME...
func oneTrace(ts *testscript.TestScript, _ bool, args []string) {
	v, _ := spanCollectors.Load(ts.Getenv("WORK"))
	c := v.(*spanCollector)
	poll(ts, func() bool { return c.complete(args) }, "no trace has the spans "+strings.Join(args, ", "))
}

package agent_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// What shows a tenant's memory, or takes its GPU away, is for programs of the same
// machine: not for the network, and not for pages in a browser there, whatever
// their names resolve to.
func TestLocalHandler(t *testing.T) {
	for _, c := range []struct {
		name         string
		off          bool
		remote, host string
		header       map[string]string
		want         int
	}{
		{"a program", false, "127.0.0.1:5000", "127.0.0.1:9100", nil, http.StatusOK},
		{"a program, IPv6", false, "[::1]:5000", "[::1]:9100", nil, http.StatusOK},
		{"localhost", false, "127.0.0.1:5000", "localhost:9100", nil, http.StatusOK},
		{"not asked for", true, "127.0.0.1:5000", "127.0.0.1:9100", nil, http.StatusForbidden},
		{"another machine", false, "192.0.2.1:5000", "192.0.2.2:9100", nil, http.StatusForbidden},
		{"another machine, as localhost", false, "192.0.2.1:5000", "localhost:9100", nil, http.StatusForbidden},
		{"DNS rebinding", false, "127.0.0.1:5000", "rebound.example:9100", nil, http.StatusForbidden},
		{"no host", false, "127.0.0.1:5000", "", nil, http.StatusForbidden},
		{"a page of another site", false, "127.0.0.1:5000", "127.0.0.1:9100", map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		{"a page of another port", false, "127.0.0.1:5000", "127.0.0.1:9100", map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		{"a page, of an old browser", false, "127.0.0.1:5000", "127.0.0.1:9100", map[string]string{"Origin": "http://evil.example"}, http.StatusForbidden},
		{"a page without an origin", false, "127.0.0.1:5000", "127.0.0.1:9100", map[string]string{"Origin": "null"}, http.StatusForbidden},
		{"typed in a browser", false, "127.0.0.1:5000", "127.0.0.1:9100", map[string]string{"Sec-Fetch-Site": "none"}, http.StatusOK},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(c.name+", "+method, func(t *testing.T) {
				served := false
				h := agent.LocalHandler(!c.off, "refused", func(http.ResponseWriter, *http.Request) { served = true })
				r := httptest.NewRequestWithContext(t.Context(), method, "/faults", nil)
				r.RemoteAddr, r.Host = c.remote, c.host
				for k, v := range c.header {
					r.Header.Set(k, v)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != c.want || served != (c.want == http.StatusOK) {
					t.Errorf("status %d, served: %v, want status %d", w.Code, served, c.want)
				}
			})
		}
	}
}

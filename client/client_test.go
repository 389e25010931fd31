package client

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func TestNewRefuses(t *testing.T) {
	hash := "sha256:" + strings.Repeat("ab", 32)
	https := []string{"https://m1:7470"}
	tests := []struct {
		name string
		cfg  Config
		want string // in the error; empty: none
	}{
		{"no manager", Config{}, "the URL of a manager is missing"},
		{"no URL", Config{Managers: []string{"m1"}}, `"m1" is not the URL of a manager`},
		{"hash without TLS", Config{Managers: []string{"http://m1:7470"}, CAHash: hash}, "write its URL with https"},
		{"malformed hash", Config{Managers: https, CAHash: "sha256:1"}, "hash of the authority: "},
		{"empty authority", Config{Managers: https, CA: []byte{}}, "contains no certificate"},
		{"malformed authority", Config{Managers: https, CA: []byte("no PEM")}, "contains no certificate"},
		{"token in cleartext", Config{Managers: []string{"http://192.0.2.1:7470"}, Token: "t"}, "cleartext"},
		{"token in cleartext, allowed", Config{Managers: []string{"http://192.0.2.1:7470"}, Token: "t", AllowCleartext: true}, ""},
		{"token to this machine", Config{Managers: []string{"http://localhost:1", "http://127.0.0.1:1", "http://[::1]:1"}, Token: "t"}, ""},
		{"token over TLS", Config{Managers: https, Token: "t", CAHash: hash}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(tt.cfg)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New: %v, want %q", err, tt.want)
			}
			if strings.HasPrefix(tt.want, "cleartext") && !errors.Is(err, ErrCleartext) {
				t.Errorf("%v is not ErrCleartext", err)
			}
		})
	}
}

// The token goes with every request, also to a leader that a follower names.
func TestTokenIsSent(t *testing.T) {
	var got []string
	leader := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.Path+" "+r.Header.Get("Authorization"))
		http.Error(w, "not found", http.StatusNotFound)
	}))
	defer leader.Close()
	follower := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(LeaderHeader, leader.URL)
		http.Error(w, "follower", http.StatusServiceUnavailable)
	}))
	defer follower.Close()
	c, err := New(Config{Managers: []string{follower.URL}, Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Pool.GetPool(t.Context(), connect.NewRequest(&dxpuv1.GetPoolRequest{}))
	_, _ = c.Node.Report(t.Context(), connect.NewRequest(&dxpuv1.ReportRequest{}))
	want := "/dxpu.v1.PoolService/GetPool Bearer secret, /dxpu.v1.NodeService/Report Bearer secret"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

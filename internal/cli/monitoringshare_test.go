//go:build linux

package cli

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/share"
)

// shareMetricsURL serves the metrics of a sharing agent with a share.
func shareMetricsURL(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "share") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	a, err := agent.New(agent.Config{
		Broker: broker.Config{Policy: "gemini", GPUs: []broker.GPU{{Name: "gpu0", Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 1 << 30}}}},
		Dir:    filepath.Join(dir, "run"), State: filepath.Join(dir, "state.json"), Group: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	api, limit, tick := agent.NewClient(filepath.Join(dir, "run")), time.After(testTimeout), time.NewTicker(2*time.Millisecond)
	defer tick.Stop()
	for _, err = api.GPUs(t.Context()); err != nil; _, err = api.GPUs(t.Context()) {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal(err)
		}
	}
	if _, err := api.Create(t.Context(), agent.Part{Memory: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(a, buildInfo())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

package controller

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestDashboard: the dashboard for Grafana asks for metrics that exist, and for all of them.
func TestDashboard(t *testing.T) {
	raw, err := os.ReadFile("../../../grafana/dxpu-kubernetes.json")
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(raw) {
		t.Fatal("the dashboard is no JSON")
	}
	registry := prometheus.NewRegistry()
	NewMetrics(registry)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, name := range regexp.MustCompile(`dxpu_dra_[a-z_]+`).FindAllString(string(raw), -1) {
		shown[strings.TrimSuffix(name, "_bucket")] = true
	}
	for _, f := range families {
		if !shown[f.GetName()] {
			t.Errorf("the dashboard lacks %s", f.GetName())
		}
		delete(shown, f.GetName())
	}
	if len(shown) > 0 {
		t.Errorf("the dashboard asks for %v, which the controller does not have", shown)
	}
}

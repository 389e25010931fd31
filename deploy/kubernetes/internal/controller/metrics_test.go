package controller

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
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

// TestAttachTime: an allocation by a clock that is ahead takes no negative time.
func TestAttachTime(t *testing.T) {
	claim := &resourceapi.ResourceClaim{}
	claim.Namespace, claim.Name, claim.UID = "lab", "train", "u"
	claim.Status.Allocation = &resourceapi.AllocationResult{AllocationTimestamp: &metav1.Time{Time: time.Now().Add(time.Hour)}}
	c := controllerWith(oneAnswer{})
	c.cfg.Kube, c.said = fake.NewClientset(claim), map[string]map[string]saying{}
	if _, err := c.report(t.Context(), claim, []claims.Status{{Device: "b1-0", Phase: claims.Attached, Reason: "Attached"}}); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.cfg.Metrics.attach)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if h := families[0].Metric[0].Histogram; h.GetSampleCount() != 1 || h.GetSampleSum() != 0 {
		t.Errorf("%v", h)
	}
}

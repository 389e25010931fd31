package web

import (
	"regexp"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The page's form drains like the command line: without a deadline nothing is removed by
// force.
func TestDrainHasNoDeadlineByDefault(t *testing.T) {
	parts, err := assets.ReadFile("assets/parts.html")
	if err != nil {
		t.Fatal(err)
	}
	field := regexp.MustCompile(`<input name="deadline"[^>]*>`).FindString(string(parts))
	if field == "" || strings.Contains(field, "value=") {
		t.Errorf("the field is %q", field)
	}
}

// Spares are "held back". A GPU that is cordoned or in quarantine is something else.
func TestKindsAreNotSpares(t *testing.T) {
	for k := range kinds {
		if strings.Contains(k.String(), "held") {
			t.Errorf("GPUs of kind %d are %q, like spares", k, k)
		}
	}
	if k := kindOf(&dxpuv1.GPU{Health: dxpuv1.Health_HEALTH_OK, State: dxpuv1.GPUState_GPU_STATE_UNAVAILABLE}); k.String() != "out of service" {
		t.Errorf("an unavailable GPU is %q", k)
	}
}

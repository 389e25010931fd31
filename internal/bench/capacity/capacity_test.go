package capacity

import (
	"testing"
	"time"
)

// Run works as in "dxpu bench capacity", with 8 GPUs of two boxes on two hosts, not 512.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Spec{Boxes: 2, GPUsPerBox: 4, Hosts: 2, Idle: 50 * time.Millisecond, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Parts {
		t.Logf("%-45s p50 %10v p99 %10v", p.Name, p.P50NS, p.P99NS)
	}
	t.Logf("%+v", *r)
	if r.GPUs != 8 || r.AttachNS <= 0 || r.DriveNS <= 0 || r.ReleaseNS <= 0 || r.Goroutines == 0 {
		t.Errorf("%+v", *r)
	}
	for _, p := range r.Parts {
		if p.P99NS < p.P50NS || p.P50NS < 0 || p.P99NS > time.Minute {
			t.Errorf("%+v", p)
		}
	}
}

func TestAttach(t *testing.T) {
	const count = 3
	r, err := Attach(t.Context(), Spec{Boxes: 1, GPUsPerBox: 2, Hosts: 1, Timeout: time.Minute}, count)
	if err != nil {
		t.Fatal(err)
	}
	if r.Count != count || len(r.Parts) == 0 || r.Detach.P50NS <= 0 {
		t.Errorf("%+v", *r)
	}
}

func TestSpecIsChecked(t *testing.T) {
	if _, err := Run(t.Context(), Spec{Boxes: 64, GPUsPerBox: 8, Hosts: 8}); err == nil {
		t.Error("64 slots in a host are accepted")
	}
}

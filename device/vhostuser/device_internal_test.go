package vhostuser

import (
	"log/slog"
	"testing"
	"time"
)

// A device whose back end goes away may take its time to connect again. The box looks at it at
// any moment, also while the connection ends: each look finds it healthy, or the box would end the
// lease.
func TestLookWhileABackendIsLost(t *testing.T) {
	d, err := New(t.Context(), Spec{Socket: t.TempDir() + "/none"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		d.mu.Lock()
		d.present.Store(new(backend))
		d.lost, d.why, d.planned = time.Time{}, "", false
		d.mu.Unlock()
		lost := make(chan struct{})
		go func() { d.lose(errScrubbed); close(lost) }()
		for over := false; !over; {
			select {
			case <-lost:
				over = true
			default:
			}
			if ok, why := d.Check(); !ok {
				t.Fatalf("unhealthy: %q", why)
			}
		}
	}
}

package agent

import (
	"testing"
	"time"
)

func TestNextReport(t *testing.T) {
	now := time.Now()
	tests := []struct {
		name       string
		configured time.Duration
		told       time.Duration
		behind     time.Time
		want       time.Duration
	}{
		{"no interval", 0, 0, time.Time{}, defaultHeartbeat},
		{"interval of the manager", 0, 5 * time.Second, time.Time{}, 5 * time.Second},
		{"interval too long", 0, time.Hour, time.Time{}, maxHeartbeat},
		{"negative interval", 0, -1, time.Time{}, defaultHeartbeat},
		{"configured interval", 20 * time.Millisecond, 5 * time.Second, time.Time{}, 20 * time.Millisecond},
		{"a snapshot is missing", 0, 5 * time.Second, now, snapshotTimeout},
		{"a snapshot is missing, and reports are frequent", 0, 250 * time.Millisecond, now, 250 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &Agent{cfg: Config{Heartbeat: tt.configured}}
			if got := c.nextReport(tt.told, tt.behind); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

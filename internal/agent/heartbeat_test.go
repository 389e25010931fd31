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
		{"nothing said", 0, 0, time.Time{}, defaultHeartbeat},
		{"the manager says", 0, 5 * time.Second, time.Time{}, 5 * time.Second},
		{"too long", 0, time.Hour, time.Time{}, maxHeartbeat},
		{"negative", 0, -1, time.Time{}, defaultHeartbeat},
		{"configured", 20 * time.Millisecond, 5 * time.Second, time.Time{}, 20 * time.Millisecond},
		{"a snapshot is owed", 0, 5 * time.Second, now, silence},
		{"a snapshot is owed, and reports are frequent", 0, 250 * time.Millisecond, now, 250 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &Client{cfg: Config{Heartbeat: tt.configured}}
			if got := c.nextReport(tt.told, tt.behind); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

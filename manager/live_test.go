package manager

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Many nodes report less often, and may be silent for longer.
func TestHeartbeatOfManyNodes(t *testing.T) {
	const rate = 40 // reports a second: ten nodes every 250 ms
	for _, tt := range []struct {
		nodes           int
		every, patience time.Duration
	}{
		{1, 250 * time.Millisecond, time.Second},
		{10, 250 * time.Millisecond, time.Second},
		{11, 500 * time.Millisecond, 2 * time.Second},
		{20, 500 * time.Millisecond, 2 * time.Second},
		{45, 1250 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(fmt.Sprint(tt.nodes), func(t *testing.T) {
			nodes := []*fakeNode{hostNode("h", 1)}
			for i := 1; i < tt.nodes; i++ {
				nodes = append(nodes, hostNode(fmt.Sprint("other-", i), 1))
			}
			w := newWorld(t, Config{ReportRate: rate}, nodes...)
			_, every, err := w.m.report(context.Background(), w.nodes["h"].observe(), func(*tx) error { return nil })
			if err != nil || every != tt.every {
				t.Errorf("told to report every %v, want %v; %v", every, tt.every, err)
			}
			w.pass(tt.patience - time.Millisecond)
			if !w.readsAsConnected("h") {
				t.Error("lost too early")
			}
			w.pass(time.Millisecond)
			if w.readsAsConnected("h") {
				t.Error("not lost")
			}
		})
	}
}

func (w *world) readsAsConnected(id string) (there bool) {
	_ = w.m.view(func(t *tx) error {
		there = t.connected(id)
		return nil
	})
	return there && !w.m.live[id].lost
}

//go:build linux

package agent_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// A share that a user has ended, and whose programs have not ended yet, ends with the next agent
// too: it asks the programs that come back, with the time of the user.
func TestEndedShareOfAFormerAgent(t *testing.T) {
	m := start(t, "", "gemini")
	s := m.create(agent.Part{ID: "web", Memory: gib})
	m.create(agent.Part{ID: "other", Memory: gib})
	c := m.connect(s)
	for _, grace := range []time.Duration{time.Hour, 40 * time.Minute, 50 * time.Minute} { // the shortest holds
		if err := m.api.End(t.Context(), s.ID, grace); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := c.receive(); err != nil || got.Type != wire.End {
		t.Fatalf("message %+v, %v", got, err)
	}
	for _, grace := range []time.Duration{40 * time.Minute, 40 * time.Minute} { // also the agent after the next
		m.stop()
		m = start(t, m.dir, "gemini")
		got := m.shares()
		if len(got) != 2 || got[0].State != "ending" || got[1].State != "ready" {
			t.Fatalf("shares %+v", got)
		}
		c = m.connect(got[0])
		if x, err := c.receive(); err != nil || x.Type != wire.End || x.Arg[0] != uint64(grace) || !c.state(t).End {
			t.Errorf("message %+v, %v, page %+v", x, err, c.state(t))
		}
	}
}

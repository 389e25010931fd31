//go:build linux

package agent_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// A program that connects again and again, beyond the processes that its share may have, does not
// fill the log, and leaves another share its lines.
func TestLogIsBounded(t *testing.T) {
	var text bytes.Buffer
	m := start(t, "", "gemini", func(c *agent.Config) { c.Log = slog.New(slog.NewTextHandler(&text, nil)) })
	shares := []agent.Share{m.create(agent.Part{Memory: gib}), m.create(agent.Part{Memory: gib})}
	for i, n := range []int{300, 70} {
		for range n {
			c, err := dial(shares[i].Socket)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.socket.Close() })
			c.greet() // the agent has answered, or closed
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.agent)
	families, err := registry.Gather()
	var suppressed float64
	for _, f := range families {
		if f.GetName() == "dxpu_log_suppressed_total" {
			suppressed = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if err != nil || suppressed < 150 {
		t.Errorf("%v suppressed lines in the metrics, %v: want at least 150", suppressed, err)
	}
	m.stop()
	for i, bounds := range [][2]int{{10, 60}, {6, 6}} {
		n := strings.Count(text.String(), `msg="process is refused" share=`+shares[i].ID+" ")
		if n < bounds[0] || n > bounds[1] {
			t.Errorf("%d lines of refusals of share %s in the log, want %v", n, shares[i].ID, bounds)
		}
	}
}

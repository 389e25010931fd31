//go:build linux

package agent_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// gauges returns the values of a metric by the share.
func (m *machine) gauges(name string) map[string]float64 {
	m.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.agent)
	families, err := registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, x := range f.GetMetric() {
			for _, l := range x.GetLabel() {
				if l.GetName() == "share" {
					out[l.GetValue()] = x.GetGauge().GetValue()
				}
			}
		}
	}
	return out
}

// Launches that wait for a permit, and messages that do not fit, are counted for their share, and
// go with the process.
func TestMetricsOfAShare(t *testing.T) {
	m := start(t, "", "gemini")
	busy := m.connect(m.create(agent.Part{ID: "busy", Memory: gib}))
	m.connect(m.create(agent.Part{ID: "quiet", Memory: gib}))
	want := func(what, name string, value float64) {
		t.Helper()
		m.until(what, func() bool {
			got := m.gauges(name)
			return len(got) == 2 && got["busy"] == value && got["quiet"] == 0
		})
	}
	const waiting, wrong = "dxpu_share_waiting_launches", "dxpu_share_wrong_messages"
	want("nothing waits", waiting, 0)
	want("nothing is wrong", wrong, 0)
	if err := m.api.Hold(t.Context(), "busy", true); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(3) {
		if err := busy.send(wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{80, 256, 1, 7}}); err != nil {
			t.Fatal(err)
		}
	}
	want("the launches of the held share wait", waiting, 3)
	for range 2 {
		if err := busy.send(wire.Message{Type: wire.Free, Bytes: 1}); err != nil { // it has no memory
			t.Fatal(err)
		}
	}
	want("two messages are wrong", wrong, 2)
	if err := busy.socket.Close(); err != nil {
		t.Fatal(err)
	}
	want("the launches went with the process", waiting, 0)
	want("the count went with the process", wrong, 0)
}

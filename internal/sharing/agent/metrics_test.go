//go:build linux

package agent_test

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// gauges returns the values of a metric by the share, or by the GPU.
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
				if l.GetName() == "share" || l.GetName() == "gpu" {
					out[l.GetValue()] = x.GetGauge().GetValue() + x.GetCounter().GetValue()
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

// The metrics of a share count its permits, and what it did not get. Those of a GPU have its memory.
func TestMetricsOfPermitsAndMemory(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched)
	m.create(agent.Part{ID: "quiet", GPUs: []string{one.Name, two.Name}, Memory: 2 * gib})
	busy := m.connect(m.create(agent.Part{ID: "busy", GPUs: []string{one.Name}, Memory: gib}))
	want := func(name string, want map[string]float64) {
		t.Helper()
		if got := m.gauges(name); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for _, x := range []struct {
		message wire.Message
		answer  wire.Type
	}{
		{wire.Message{Type: wire.Allocate, Bytes: gib + 1}, wire.Refused},
		{wire.Message{Type: wire.Allocate, Bytes: gib / 2}, wire.Granted},
		{wire.Message{Type: wire.Allocate, Bytes: gib}, wire.Refused},
		{wire.Message{Type: wire.Launch, ID: 1, Arg: [wire.Args]uint64{80, 256, 1, 7}}, wire.Permit},
	} {
		if got := m.ask(busy, x.message); got.Type != x.answer {
			t.Fatalf("answer %+v, want %v", got, x.answer)
		}
	}
	want("dxpu_share_permits_total", map[string]float64{"busy": 1, "quiet": 0})
	want("dxpu_share_memory_refusals_total", map[string]float64{"busy": 2, "quiet": 0})
	want("dxpu_share_evictions_total", map[string]float64{"busy": 0, "quiet": 0})
	want("dxpu_share_gpu_memory_bytes", map[string]float64{one.Name: float64(one.Device.Memory), two.Name: float64(two.Device.Memory)})
	want("dxpu_share_gpu_memory_given_bytes", map[string]float64{one.Name: 3 * gib, two.Name: 2 * gib})
	want("dxpu_share_gpu_memory_used_bytes", map[string]float64{one.Name: gib / 2, two.Name: 0})
}

// An eviction counts for the shares whose programs it ends.
func TestMetricsOfAnEviction(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched)
	m.create(agent.Part{ID: "empty", GPUs: []string{one.Name}, Memory: gib})
	other := m.child(m.create(agent.Part{ID: "other", GPUs: []string{two.Name}, Memory: gib}))
	ends := m.child(m.create(agent.Part{ID: "child", GPUs: []string{one.Name}, Memory: gib}))
	if a, b := ends.allocate(gib), other.allocate(gib); a != "GRANTED" || b != "GRANTED" {
		t.Fatal(a, b)
	}
	b.set(two)
	m.until("the program is asked to end", func() bool { return ends.allocate(0) == "END" })
	if got, want := m.gauges("dxpu_share_evictions_total"), map[string]float64{"empty": 0, "other": 0, "child": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	ends.kill()
	other.kill()
}

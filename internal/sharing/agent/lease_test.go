//go:build linux

package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

func inPool(c *agent.Config) { c.Pool = "http://pool" }

// act carries an action out for the lease l-1.
func (m *machine) act(kind offer.Kind, memory int64) error {
	return m.agent.Do(&offer.Action{
		Kind: kind, Lease: offer.Lease{Binding: offer.Binding{Pool: "c", ID: "B-1", Epoch: 1}, Lease: "l-1", BoxSlot: 16, HostSlot: 2},
		Memory: memory, Compute: 300_000, Grace: time.Hour,
	})
}

func (m *machine) mustAct(kind offer.Kind, memory int64) {
	m.t.Helper()
	if err := m.act(kind, memory); err != nil {
		m.t.Fatalf("action %d: %v", kind, err)
	}
}

// The share of a lease: only the manager makes, resizes and ends it, and programs come when
// the host wants it. The next agent has it, too.
func TestShareOfALease(t *testing.T) {
	m := start(t, "", "gemini", inPool)
	if _, err := m.api.Create(t.Context(), agent.Part{Memory: gib}); err == nil || !strings.Contains(err.Error(), "the manager at http://pool divides the GPUs") {
		t.Errorf("a share beside the manager's: %v", err)
	}
	m.mustAct(offer.Open, gib)
	if err := m.act(offer.Open, gib); err == nil {
		t.Error("a binding has two shares")
	}
	entered := make(chan error, 1)
	go func() { _, err := m.api.Enter(t.Context(), "l-1"); entered <- err }()
	m.mustAct(offer.Attach, 0)
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	s := m.shares()[0]
	if s.ID != "l-1" || s.Lease != "l-1" || s.Parts[0].Binding != "B-1" || s.Compute != 300_000 || s.Limit != 300_000 {
		t.Errorf("share %+v", s)
	}
	c := m.connect(s)
	if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: gib}); a.Type != wire.Granted {
		t.Fatalf("answer %+v", a)
	}
	_, err := m.api.Resize(t.Context(), "l-1", agent.Part{Memory: 2 * gib})
	for what, err := range map[string]error{"resize": err, "end": m.api.End(t.Context(), "l-1", 0), "adopt": m.api.Adopt(t.Context(), "l-1", 1)} {
		if err == nil || !strings.Contains(err.Error(), "that of lease l-1") {
			t.Errorf("%s: %v", what, err)
		}
	}
	m.mustAct(offer.Resize, gib/2)
	if got := m.agent.Offered().Shares; len(got) != 1 || got[0].Memory != gib/2 || got[0].Kept != gib || got[0].Processes != 1 || !got[0].Attached {
		t.Errorf("offered %+v", got)
	}
	m.stop()

	m = start(t, m.dir, "gemini", inPool)
	if got := m.agent.Offered().Shares; len(got) != 1 || got[0].HostSlot != 2 || got[0].BoxSlot != 16 || !got[0].Attached || got[0].Kept != gib {
		t.Errorf("the next agent offers %+v", got)
	}
	if err := m.act(offer.End, 0); err == nil {
		t.Error("a share ends before its programs could come back")
	}
	m.stop()

	m = start(t, m.dir, "gemini") // alone: users may do with the share what they like
	if err := m.api.End(t.Context(), "l-1", 0); err != nil {
		t.Error(err)
	}
}

// A share of a lease ends with its last program, and takes none meanwhile.
func TestEndOfALease(t *testing.T) {
	m := start(t, "", "gemini", inPool)
	m.mustAct(offer.Open, gib)
	m.mustAct(offer.Attach, 0)
	p := m.child(m.shares()[0])
	m.mustAct(offer.End, 0)
	if _, err := m.api.Enter(t.Context(), "l-1"); err == nil || !strings.Contains(err.Error(), "lease l-1 ends") {
		t.Errorf("a program enters: %v", err)
	}
	if got := m.agent.Offered().Shares; len(got) != 1 || !got[0].Leaving {
		t.Errorf("offered %+v", got)
	}
	p.kill()
	m.until("the share has ended", func() bool { return len(m.agent.Offered().Shares) == 0 })
}

// Shares that users have made are the pool's to know.
func TestSharesOfUsersInAPool(t *testing.T) {
	m := start(t, "", "gemini")
	m.create(agent.Part{ID: "web", Memory: gib})
	if _, err := m.api.Enter(t.Context(), "l-1"); err == nil || !strings.Contains(err.Error(), "in no pool") {
		t.Errorf("a lease without a pool: %v", err)
	}
	m.stop()
	m = start(t, m.dir, "gemini", inPool)
	if c := m.agent.Offered().Conditions["gpu0"]; len(c.Others) != 1 || c.Others[0] != "web" {
		t.Errorf("condition %+v", c)
	}
	m.mustAct(offer.Open, gib)
	if err := m.api.End(t.Context(), "web", 0); err != nil {
		t.Error(err)
	}
	m.until("only the lease is left", func() bool { return len(m.agent.Offered().Conditions["gpu0"].Others) == 0 })
}

// A GPU has the same place in each start, whatever other GPUs are there.
func TestPlaces(t *testing.T) {
	with := func(names ...string) func(*agent.Config) {
		return func(c *agent.Config) {
			c.Broker.GPUs = nil
			for _, name := range names {
				c.Broker.GPUs = append(c.Broker.GPUs, broker.GPU{Name: name, Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: gib}})
			}
		}
	}
	want := func(m *machine, name string, place int) {
		t.Helper()
		if got, ok := m.agent.Place(name); !ok || got != place {
			t.Errorf("GPU %s has place %d, %v, want %d", name, got, ok, place)
		}
	}
	m := start(t, "", "gemini", with("a", "b", "c"))
	want(m, "c", 2)
	m.stop()
	m = start(t, m.dir, "gemini", with("c", "d"))
	want(m, "c", 2)
	want(m, "d", 3)
	m.stop()
	var many []string
	for i := range offer.MaxGPUs + 1 {
		many = append(many, string(rune('e'+i)))
	}
	m = start(t, m.dir, "gemini", with(many...))
	if _, ok := m.agent.Place(many[offer.MaxGPUs]); ok {
		t.Error("too many GPUs have places")
	}
	want(m, "e", 4)
}

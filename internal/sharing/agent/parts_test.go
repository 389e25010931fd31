//go:build linux

package agent_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// twoGPUs is the configuration of a machine with two GPUs, of which the second one is larger.
func twoGPUs(c *agent.Config) {
	c.Broker.GPUs = append(c.Broker.GPUs, broker.GPU{
		Name: "gpu1", UUID: [16]byte{3, 15: 4}, Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 32 * gib},
	})
}

// actOn carries an action out for the binding of one of the GPUs of the lease l-1.
func (m *machine) actOn(kind offer.Kind, gpu int, memory int64, grace time.Duration) {
	m.t.Helper()
	err := m.agent.Do(&offer.Action{
		Kind:   kind,
		Lease:  offer.Lease{Binding: offer.Binding{Pool: "c", ID: []string{"B-1", "B-2"}[gpu], Epoch: 1}, Lease: "l-1", BoxSlot: uint32(gpu), HostSlot: uint32(gpu)},
		Memory: memory, Compute: share.Whole, Grace: grace,
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// soon is a context for calls that have no answer.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// teller connects a process that tells of its contexts, and makes one on a GPU.
func (m *machine) teller(s agent.Share, gpu int) *client {
	m.t.Helper()
	c, err := dial(s.Socket)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = c.socket.Close() })
	if got := c.greetWith(wire.Tells); got != "WELCOME" {
		m.t.Fatalf("answer to HELLO: %s", got)
	}
	if err := c.send(wire.Message{Type: wire.Context, GPU: uint32(gpu)}); err != nil {
		m.t.Fatal(err)
	}
	m.until("the agent knows the context", func() bool { return m.shares()[0].Parts[gpu].Users > 0 })
	return c
}

// A share has the GPUs that its user names, in that order, or those with the most room, and a
// size of its own on each.
func TestSeveralGPUs(t *testing.T) {
	m := start(t, "", "gemini", twoGPUs)
	s := m.create(agent.Part{GPUs: []string{"gpu1", "gpu0"}, Sizes: []agent.Size{
		{Memory: 2 * gib, Compute: new(int64(600_000))}, {Memory: gib, Compute: new(int64(300_000)), Limit: new(int64(400_000))},
	}})
	if !slices.Equal(s.GPUs, []string{"gpu1", "gpu0"}) || !strings.HasPrefix(s.UUIDs[0], "GPU-03") || s.Memory != 2*gib || s.Parts[1].Memory != gib || s.Parts[1].Limit != 400_000 {
		t.Errorf("share %+v", s)
	}
	if p := m.connect(s).state(t); p.GPUs[0].Limit != 2*gib || p.GPUs[1].Limit != gib || p.GPUs[0].Compute != 600_000 || p.GPUs[1].Compute != 400_000 || p.GPUs[1].UUID[0] != 1 {
		t.Errorf("page %+v", p)
	}
	s, err := m.api.Resize(t.Context(), s.ID, agent.Part{GPUs: []string{"gpu0"}, Memory: 3 * gib})
	if err != nil || s.Parts[0].Memory != 2*gib || s.Parts[1].Memory != 3*gib || s.Parts[1].Compute != 300_000 {
		t.Errorf("%v, share %+v", err, s)
	}
	if s := m.create(agent.Part{Memory: gib}); !slices.Equal(s.GPUs, []string{"gpu1"}) {
		t.Errorf("a share is on %v, not on the GPU with the most room", s.GPUs)
	}
	if s := m.create(agent.Part{Memory: gib, Count: 2}); !slices.Equal(s.GPUs, []string{"gpu1", "gpu0"}) || s.Parts[1].Memory != gib {
		t.Errorf("a share of two GPUs: %+v", s)
	}
	for why, p := range map[string]agent.Part{
		"the agent has 2":       {Memory: 1, Count: 3},
		"want 1 to 16":          {Memory: 1, Count: 17},
		"GPUs are named":        {Memory: 1, Count: 1, GPUs: []string{"gpu0", "gpu1"}},
		"sizes for 2 GPUs":      {Count: 2, Sizes: []agent.Size{{Memory: 1}}},
		"bytes of memory: want": {Count: 2},
		"or twice":              {Memory: 1, GPUs: []string{"gpu0", "gpu0"}},
		"no GPU":                {Memory: 1, GPUs: []string{"gpu2"}},
	} {
		if _, err := m.api.Create(t.Context(), p); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%+v: %v, want %q", p, err, why)
		}
	}
	if _, err := m.api.Resize(t.Context(), s.ID, agent.Part{GPUs: []string{"gpu9"}, Memory: gib}); err == nil {
		t.Error("resized a GPU that the share does not have")
	}
}

// The bindings of a lease are the parts of one share. A program enters when all are there.
func TestLeaseOfTwoGPUs(t *testing.T) {
	m := start(t, "", "gemini", twoGPUs, inPool)
	m.actOn(offer.Open, 0, 16*gib, 0)
	m.actOn(offer.Open, 1, 32*gib, 0)
	entered := make(chan agent.Share, 1)
	go func() {
		s, err := m.api.Enter(t.Context(), "l-1")
		if err != nil {
			t.Error(err)
		}
		entered <- s
	}()
	m.actOn(offer.Attach, 0, 0, 0)
	m.actOn(offer.Attach, 1, 0, 0)
	s := <-entered
	if s.ID != "l-1" || !slices.Equal(s.GPUs, []string{"gpu0", "gpu1"}) || len(s.UUIDs) != 2 || s.Parts[0].Binding != "B-1" || s.Parts[1].Binding != "B-2" {
		t.Fatalf("share %+v", s)
	}
	c := m.connect(s)
	for gpu, most := range []uint64{16 * gib, 32 * gib} {
		if a := m.ask(c, wire.Message{Type: wire.Allocate, GPU: uint32(gpu), Bytes: most}); a.Type != wire.Granted {
			t.Errorf("GPU %d: answer %+v", gpu, a)
		}
		if a := m.ask(c, wire.Message{Type: wire.Allocate, GPU: uint32(gpu), Bytes: 1}); a.Type != wire.Refused {
			t.Errorf("GPU %d: answer %+v", gpu, a)
		}
	}
	m.actOn(offer.Resize, 1, 8*gib, 0)
	if p := c.state(t); p.GPUs[0].Limit != 16*gib || p.GPUs[1].Limit != 8*gib {
		t.Errorf("page %+v", p)
	}
	want := m.agent.Offered().Shares
	if len(want) != 2 || want[0].BoxSlot != 0 || want[1].Kept != 32*gib || want[1].Memory != 8*gib {
		t.Errorf("offered %+v", want)
	}
	m.stop()
	m = start(t, m.dir, "gemini", twoGPUs, inPool)
	if got := m.agent.Offered().Shares; len(got) != 2 || got[1].ID != "B-2" || !got[1].Attached || got[1].Kept != 32*gib || got[1].BoxSlot != 1 {
		t.Errorf("the next agent offers %+v", got)
	}
}

// A lease that loses one of its GPUs ends the programs that used it. Others go on, and new
// ones have the GPUs that are left.
func TestLeaseLosesAGPU(t *testing.T) {
	m := start(t, "", "gemini", twoGPUs, inPool)
	for gpu := range 2 {
		m.actOn(offer.Open, gpu, 16*gib, 0)
		m.actOn(offer.Attach, gpu, 0, 0)
	}
	s := m.shares()[0]
	first, second := m.teller(s, 0), m.teller(s, 1)
	m.actOn(offer.End, 0, 0, time.Hour)
	if a, err := first.receive(); err != nil || a.Type != wire.End {
		t.Errorf("answer %+v, %v", a, err)
	}
	if got := m.agent.Offered().Shares; len(got) != 2 || !got[0].Leaving || got[1].Leaving {
		t.Errorf("offered %+v", got)
	}
	s, err := m.api.Enter(t.Context(), "l-1")
	if err != nil || !slices.Equal(s.GPUs, []string{"gpu1"}) || len(s.UUIDs) != 1 {
		t.Errorf("%v, share %+v", err, s)
	}
	_ = first.socket.Close()
	m.until("the GPU has left", func() bool { return len(m.agent.Offered().Shares) == 1 })
	if a := m.ask(second, wire.Message{Type: wire.Allocate, GPU: 1, Bytes: gib}); a.Type != wire.Granted {
		t.Errorf("answer %+v", a)
	}
	m.actOn(offer.Open, 0, gib, 0)
	if _, err := m.api.Enter(soon(t), "l-1"); err == nil {
		t.Error("a program enters while a GPU comes")
	}
	m.actOn(offer.Attach, 0, 0, 0)
	if s, err = m.api.Enter(t.Context(), "l-1"); err != nil || len(s.GPUs) != 2 || len(m.shares()) != 1 {
		t.Errorf("%v, share %+v", err, s)
	}
	for gpu := range 2 {
		m.actOn(offer.End, gpu, 0, time.Hour)
	}
	if _, err := m.api.Enter(t.Context(), "l-1"); err == nil || !strings.Contains(err.Error(), "lease l-1 ends") {
		t.Errorf("a program enters: %v", err)
	}
	if err := second.send(wire.Message{Type: wire.Free, GPU: 1, Bytes: gib}); err != nil { // this process does not end
		t.Fatal(err)
	}
	m.until("the memory is free", func() bool { return m.used() == 0 })
	_ = second.socket.Close()
	m.until("the share has ended", func() bool { return len(m.shares()) == 0 })
}

// A GPU keeps its place in the page of its share, also when another one has left the share, or
// has come back, and the agent is another one: programs that run know it by that place.
func TestPlacesOutliveTheAgent(t *testing.T) {
	m := start(t, "", "gemini", twoGPUs, inPool)
	for gpu := range 2 {
		m.actOn(offer.Open, gpu, 16*gib, 0)
		m.actOn(offer.Attach, gpu, 0, 0)
	}
	s := m.shares()[0]
	m.actOn(offer.End, 0, 0, time.Hour)
	m.until("the GPU has left", func() bool { return len(m.agent.Offered().Shares) == 1 })
	for _, what := range []string{"both GPUs are there", "the one that has left is missing", "it is there again"} {
		m.stop()
		m = start(t, m.dir, "gemini", twoGPUs, inPool, func(c *agent.Config) {
			if strings.Contains(what, "missing") {
				c.Broker.GPUs = c.Broker.GPUs[1:]
			}
		})
		c := m.connect(s)
		if err := c.send(wire.Message{Type: wire.Holds, GPU: 1, Bytes: 2 * gib}); err != nil {
			t.Fatal(err)
		}
		m.until(what+": the memory of the program is known", func() bool { return m.used() == 2*gib })
		if p := c.state(t); p.GPUs[0].Limit != 0 || p.GPUs[1].Limit != 16*gib || p.GPUs[1].UUID[0] != 3 {
			t.Errorf("%s: page %+v", what, p)
		}
		if got := m.shares()[0]; !slices.Equal(got.GPUs, []string{"gpu1"}) {
			t.Errorf("%s: share %+v", what, got)
		}
		_ = c.socket.Close()
	}
	m.actOn(offer.Open, 0, gib, 0)
	m.stop()
	m = start(t, m.dir, "gemini", twoGPUs, inPool)
	if p := m.connect(s).state(t); p.GPUs[0].Limit != gib || p.GPUs[1].Limit != 16*gib {
		t.Errorf("page %+v", p)
	}
}

// stateV1 is a state file as agents before the parts of shares wrote it.
const stateV1 = `{
	"version": 1,
	"number": 7,
	"shares": [
		{"id": "s-7", "offline": true, "compute_ppm": 300000, "limit_ppm": 400000, "memory_bytes": 1073741824, "kept_bytes": 2147483648, "gpus": ["gpu0", "gpu1"], "uid": 0, "gid": 0},
		{"id": "l-1", "compute_ppm": 500000, "limit_ppm": 500000, "memory_bytes": 1073741824, "gpus": ["gpu1"], "uid": 0, "gid": 0,
			"lease": {"pool": "c", "binding": "B-2", "epoch": 3, "lease": "l-1", "box_slot": 31, "host_slot": 4, "attached": true}}
	],
	"places": {"gpu0": 3, "gpu1": 1}
}`

// The shares of an agent of an earlier version are taken over, with their programs.
func TestStateOfVersion1(t *testing.T) {
	dir, err := os.MkdirTemp("", "share")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	state := filepath.Join(dir, "state.json")
	if err := os.WriteFile(state, []byte(stateV1), 0o600); err != nil {
		t.Fatal(err)
	}
	m := start(t, dir, "gemini", twoGPUs, inPool)
	all := m.shares()
	if len(all) != 2 || all[0].ID != "s-7" || all[0].Class != "offline" || !slices.Equal(all[0].GPUs, []string{"gpu0", "gpu1"}) || all[0].Parts[1].Memory != gib || all[0].Parts[1].Limit != 400_000 {
		t.Fatalf("shares %+v", all)
	}
	want := offer.Lease{Binding: offer.Binding{Pool: "c", ID: "B-2", Epoch: 3}, Lease: "l-1", BoxSlot: 31, HostSlot: 4, Attached: true}
	if got := m.agent.Offered(); len(got.Shares) != 1 || got.Shares[0].Lease != want || got.Shares[0].Memory != gib || len(got.Conditions["gpu0"].Others) != 1 {
		t.Errorf("offered %+v", got)
	}
	if place, ok := m.agent.Place("gpu0"); !ok || place != 3 {
		t.Errorf("place %d, %v", place, ok)
	}
	// A program of the former agent comes back with more than the limit, which was kept for it.
	c := m.connect(all[0])
	if err := c.send(wire.Message{Type: wire.Holds, GPU: 1, Bytes: 2 * gib}); err != nil {
		t.Fatal(err)
	}
	m.until("the memory of the program is known", func() bool { return m.shares()[0].Parts[1].Used == 2*gib })
	if s, err := m.api.Enter(t.Context(), "l-1"); err != nil || s.Parts[0].Binding != "B-2" {
		t.Errorf("%v, share %+v", err, s)
	}
	m.stop()
	var f struct {
		Version int
		Number  uint64
		Shares  []agent.Record
	}
	text, err := os.ReadFile(state)
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil || f.Version != 2 || f.Number != 7 || len(f.Shares) != 2 || f.Shares[0].Parts[0].Kept != 2*gib || *f.Shares[1].Parts[0].Lease != want {
		t.Errorf("%v, state %+v", err, f)
	}
	if err := os.WriteFile(state, []byte(`{"version": 3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.New(agent.Config{Broker: broker.Config{Policy: "gemini", GPUs: []broker.GPU{{Name: "a", Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: gib}}}}, State: state, Log: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "version 3, want 1 to 2") {
		t.Errorf("a later version: %v", err)
	}
}

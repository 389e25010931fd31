//go:build linux

package agent_test

import (
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// withGPUs lets an agent find these GPUs.
func withGPUs(list ...broker.GPU) func(*agent.Config) {
	return func(c *agent.Config) { c.Broker.GPUs = slices.Clone(list) }
}

// page returns what a program of a share sees that tells of its contexts, and has none.
func (m *machine) page(s agent.Share) wire.Page {
	m.t.Helper()
	c, err := dial(s.Socket)
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.socket.Close()
	if got := c.greetWith(wire.Tells); got != "WELCOME" {
		m.t.Fatalf("answer to HELLO: %s", got)
	}
	return c.state(m.t)
}

// pciGPU is a GPU of 16 GiB at an address, with a UUID of one digit.
func pciGPU(bus, uuid byte) broker.GPU {
	g := broker.GPU{Name: "0000:0" + string('0'+bus) + ":00.0", Address: uint16(bus) << 8, Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 * gib}}
	g.UUID[0] = uuid
	return g
}

// A share whose first GPU is missing at a start keeps its part of it and the places of the others,
// and has it again at the next start, wherever the GPU is then. Another GPU at its address is not it.
func TestMissingGPU(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	m := start(t, "", "gemini", withGPUs(one, two))
	s := m.create(agent.Part{GPUs: []string{one.Name, two.Name}, Sizes: []agent.Size{{Memory: 2 * gib}, {Memory: gib}}})
	moved, other := pciGPU(3, 1), pciGPU(1, 9)
	for _, c := range []struct {
		what    string
		list    []broker.GPU
		first   string
		missing bool
	}{
		{"it is gone", []broker.GPU{two}, one.Name, true},
		{"another one is there", []broker.GPU{other, two}, agent.UUIDText(one.UUID), true},
		{"it is at another address", []broker.GPU{other, two, moved}, moved.Name, false},
		{"it is back", []broker.GPU{one, two}, one.Name, false},
		{"its UUID is not known yet", []broker.GPU{pciGPU(1, 0), two}, one.Name, false},
		{"another one is there once more", []broker.GPU{other, two}, agent.UUIDText(one.UUID), true},
	} {
		m.stop()
		m = start(t, m.dir, "gemini", withGPUs(c.list...))
		got := m.shares()
		if len(got) != 1 || !slices.Equal(got[0].GPUs, []string{c.first, two.Name}) || (got[0].Parts[0].Missing != "") != c.missing || got[0].Parts[0].Memory != 2*gib || got[0].State != "ready" {
			t.Fatalf("%s: %+v", c.what, got)
		}
		p := m.page(s)
		if want := map[bool]uint64{false: 2 * gib, true: 0}[c.missing]; p.GPUs[0].Limit != want || p.GPUs[1].Limit != gib || p.GPUs[1].UUID[0] != 2 {
			t.Errorf("%s: page %+v", c.what, p)
		}
		gpus, err := m.api.GPUs(t.Context())
		if i := slices.IndexFunc(gpus, func(g agent.GPU) bool { return g.State == "missing" }); err != nil || (i >= 0) != c.missing || c.missing && (gpus[i].Name != c.first || gpus[i].Free != 14*gib) {
			t.Errorf("%s: GPUs %+v, %v", c.what, gpus, err)
		}
		if c.missing {
			if _, err := m.api.Create(t.Context(), agent.Part{GPUs: []string{c.first}, Memory: gib}); err == nil || !strings.Contains(err.Error(), "missing") {
				t.Errorf("%s: a share was made on it: %v", c.what, err)
			}
			if err := m.api.Repair(t.Context(), c.first); err == nil || !strings.Contains(err.Error(), "missing") {
				t.Errorf("%s: it was repaired: %v", c.what, err)
			}
		}
	}
	m.until("no program is left", func() bool { return len(m.shares()[0].Processes) == 0 })
	if err := m.api.End(t.Context(), s.ID, 0); err != nil {
		t.Fatal(err)
	}
	m.until("the share has ended", func() bool { return len(m.shares()) == 0 })
	m.stop()
	m = start(t, m.dir, "gemini", withGPUs(two))
	if gpus, err := m.api.GPUs(t.Context()); err != nil || len(gpus) != 1 || gpus[0].Free != 16*gib {
		t.Errorf("after the end of the share: %+v, %v", gpus, err)
	}
}

// The end of its owner ends a share that waits for its only GPU.
func TestOwnerOfAMissingGPU(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	m := start(t, "", "gemini", withGPUs(one, two))
	owner := exec.Command("sleep", "1h")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = owner.Process.Kill(), owner.Wait() })
	m.create(agent.Part{GPUs: []string{one.Name}, Memory: gib, Owned: true, Owner: owner.Process.Pid})
	m.stop()
	m = start(t, m.dir, "gemini", withGPUs(two))
	if s := m.shares(); len(s) != 1 || s[0].State != "missing" || !strings.Contains(s[0].Parts[0].Missing, "restart the agent") {
		t.Fatalf("%+v", s)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	m.until("the share has ended", func() bool { return len(m.shares()) == 0 })
}

// The share of a lease waits for its GPU as well. The manager sees that the GPU is not in service,
// in its place, and takes the part away.
func TestLeaseOfAMissingGPU(t *testing.T) {
	m := start(t, "", "gemini", twoGPUs, inPool)
	m.actOn(offer.Open, 0, gib, 0)
	m.actOn(offer.Open, 1, 2*gib, 0)
	place, _ := m.agent.Place("gpu0")
	m.stop()
	m = start(t, m.dir, "gemini", twoGPUs, inPool, func(c *agent.Config) { c.Broker.GPUs = c.Broker.GPUs[1:] })
	seen := m.agent.Offered()
	at, ok := m.agent.Place("gpu0")
	if len(seen.Shares) != 2 || !strings.Contains(seen.Conditions["gpu0"].Failed, "not there") || seen.Conditions["gpu1"].Failed != "" || !ok || at != place {
		t.Fatalf("%+v, place %d", seen, at)
	}
	m.actOn(offer.End, 0, 0, 0)
	m.until("the settled share has lost the part", func() bool { return len(m.agent.Offered().Shares) == 1 })
	if s := m.shares()[0]; !slices.Equal(s.GPUs, []string{"gpu1"}) {
		t.Errorf("%+v", s)
	}
}

// A GPU that comes back with less memory divides it between its shares until it has more again.
func TestGPUWithLessMemory(t *testing.T) {
	one := pciGPU(1, 1)
	m := start(t, "", "gemini", withGPUs(one))
	m.create(agent.Part{Memory: 12 * gib})
	m.create(agent.Part{Memory: 4 * gib})
	m.stop()
	less := one
	less.Device.Memory = 8 * gib
	m = start(t, m.dir, "gemini", withGPUs(less))
	s := m.shares()
	if len(s) != 2 || s[0].Memory != 6*gib || s[1].Memory != 2*gib || !strings.Contains(s[0].Parts[0].Short, "less memory") {
		t.Fatalf("%+v", s)
	}
	if p := m.page(s[0]); p.GPUs[0].Limit != 6*gib {
		t.Errorf("page %+v", p)
	}
	half := int64(share.Whole / 2)
	if s, err := m.api.Resize(t.Context(), s[0].ID, agent.Part{Compute: &half}); err != nil || s.Memory != 6*gib || s.Compute != half || s.Parts[0].Short == "" {
		t.Errorf("with other compute: %+v, %v", s, err)
	}
	if s, err := m.api.Resize(t.Context(), s[1].ID, agent.Part{Memory: gib}); err != nil || s.Memory != gib || s.Parts[0].Short != "" {
		t.Errorf("resized: %+v, %v", s, err)
	}
	m.stop()
	m = start(t, m.dir, "gemini", withGPUs(one))
	if s := m.shares(); len(s) != 2 || s[0].Memory != 12*gib || s[1].Memory != gib {
		t.Errorf("%+v", s)
	}
}

// Whatever GPUs agents find, one after the other, shares keep their parts, and have their limits
// on the GPUs that are there.
func TestGPUsComeAndGo(t *testing.T) {
	all := []broker.GPU{pciGPU(1, 1), pciGPU(2, 2), pciGPU(3, 3)}
	rng := rand.New(rand.NewPCG(1, 2))
	m := start(t, "", "gemini", withGPUs(all...))
	want := map[string][]byte{} // UUIDs of the GPUs
	for _, parts := range [][]int{{0}, {1, 0}, {2, 0, 1}} {
		p := agent.Part{Memory: gib}
		for _, i := range parts {
			p.GPUs = append(p.GPUs, all[i].Name)
		}
		s := m.create(p)
		for _, i := range parts {
			want[s.ID] = append(want[s.ID], all[i].UUID[0])
		}
	}
	for range 20 {
		m.stop()
		buses := rng.Perm(4)
		var list []broker.GPU
		here := map[byte]bool{}
		for i := range all {
			if rng.IntN(3) > 0 {
				list = append(list, pciGPU(byte(buses[i]+1), all[i].UUID[0]))
				here[all[i].UUID[0]] = true
			}
		}
		list = append(list, pciGPU(byte(buses[3]+1), 8))
		m = start(t, m.dir, "gemini", withGPUs(list...))
		shares := m.shares()
		for _, s := range shares {
			for i, g := range m.page(s).GPUs {
				if g.UUID[0] != want[s.ID][i] || (g.Limit == gib) != here[g.UUID[0]] || (s.Parts[i].Missing == "") != here[g.UUID[0]] {
					t.Fatalf("with %+v: share %+v, part %d: %+v", list, s, i, g)
				}
			}
		}
		if len(shares) != len(want) {
			t.Fatalf("%d shares", len(shares))
		}
	}
}

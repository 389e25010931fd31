//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
)

// bus is where an agent looks for GPUs.
type bus struct {
	mu   sync.Mutex
	list []broker.GPU
}

func (b *bus) set(list ...broker.GPU) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = list
}

func (b *bus) look(context.Context) ([]broker.GPU, map[string]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list), nil, nil
}

// watched lets an agent begin with the GPUs of a bus, and look there again.
func (b *bus) watched(c *agent.Config) {
	c.Broker.GPUs, _, _ = b.look(context.Background())
	c.Look, c.Pause = b.look, 2*time.Millisecond
	c.Backoff = gpuerr.Backoff{Base: time.Hour, Max: time.Hour}
}

func (m *machine) state(gpu string) string {
	list, err := m.api.GPUs(m.t.Context())
	i := slices.IndexFunc(list, func(g agent.GPU) bool { return g.Name == gpu })
	if err != nil || i < 0 {
		return "unknown"
	}
	return list[i].State
}

// A GPU that is missing at the start is taken back while the agent runs, at whatever address, and
// one that leaves is missing. Programs of its shares see both.
func TestGPUReturnsToARunningAgent(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched)
	s := m.create(agent.Part{GPUs: []string{one.Name, two.Name}, Sizes: []agent.Size{{Memory: 2 * gib}, {Memory: gib}}})
	m.stop()
	moved, other := pciGPU(3, 1), pciGPU(1, 9)
	b.set(other, two)
	m = start(t, m.dir, "gemini", b.watched)
	for _, c := range []struct {
		what    string
		list    []broker.GPU
		first   string
		missing bool
	}{
		{"at the start", []broker.GPU{other, two}, agent.UUIDText(one.UUID), true},
		{"it is back at another address", []broker.GPU{other, two, moved}, moved.Name, false},
		{"it leaves", []broker.GPU{other, two}, moved.Name, true},
		{"it is back where another one was", []broker.GPU{one, two}, one.Name, false},
	} {
		b.set(c.list...)
		m.until(c.what, func() bool {
			s := m.shares()[0]
			return (s.Parts[0].Missing != "") == c.missing && s.GPUs[0] == c.first
		})
		got := m.shares()[0]
		if !slices.Equal(got.GPUs, []string{c.first, two.Name}) || got.Parts[0].Memory != 2*gib || got.State != "ready" {
			t.Errorf("%s: %+v", c.what, got)
		}
		if p, want := m.page(s), map[bool]uint64{false: 2 * gib, true: 0}[c.missing]; p.GPUs[0].Limit != want || p.GPUs[1].Limit != gib || p.GPUs[0].UUID[0] != 1 {
			t.Errorf("%s: page %+v", c.what, p)
		} else if !c.missing && p.GPUs[0].Address != c.list[slices.IndexFunc(c.list, func(g broker.GPU) bool { return g.Name == c.first })].Address {
			t.Errorf("%s: the page has the address %x", c.what, p.GPUs[0].Address)
		}
	}
	m.until("the other GPU is missing, and one of this start", func() bool { return m.state(agent.UUIDText(other.UUID)) == "missing" })
	m.stop()
	m = start(t, m.dir, "gemini", b.watched)
	if got := m.shares()[0]; !slices.Equal(got.GPUs, []string{one.Name, two.Name}) || got.Parts[0].Missing != "" {
		t.Errorf("at the next start: %+v", got)
	}
}

// A program that uses a GPU is asked to end when the GPU leaves; its memory is free with it.
func TestProgramOfAGPUThatLeaves(t *testing.T) {
	one := pciGPU(1, 1)
	var b bus
	b.set(one)
	m := start(t, "", "gemini", b.watched)
	s := m.create(agent.Part{Memory: gib})
	p := m.child(s)
	if got := p.allocate(gib / 2); got != "GRANTED" {
		t.Fatal(got)
	}
	b.set()
	m.until("the program is asked to end", func() bool { return p.allocate(0) == "END" })
	if got := m.shares()[0]; got.State != "missing" || !strings.Contains(got.Evicted, "missing") {
		t.Errorf("%+v", got)
	}
	p.kill()
	b.set(one)
	m.until("the share is ready", func() bool { s := m.shares()[0]; return s.State == "ready" && s.Used == 0 })
	if got := m.child(s).allocate(gib); got != "GRANTED" {
		t.Errorf("a new program: %s", got)
	}
}

// A GPU that comes and goes is out of service for a while.
func TestGPUThatComesAndGoes(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched)
	for i := range 3 {
		b.set(two)
		m.until("it is missing", func() bool { return m.state(one.Name) == "missing" })
		b.set(two, one)
		m.until("it is back", func() bool { return m.state(one.Name) == []string{"in service", "in service", "out of service"}[i] })
	}
	if _, err := m.api.Create(t.Context(), agent.Part{GPUs: []string{one.Name}, Memory: gib}); err == nil || !strings.Contains(err.Error(), "out of service") {
		t.Errorf("a share on it: %v", err)
	}
	if err := m.api.Repair(t.Context(), one.Name); err != nil || m.state(one.Name) != "in service" {
		t.Errorf("after a repair: %s, %v", m.state(one.Name), err)
	}
}

// Errors of a GPU at the address of a missing one are its own.
func TestErrorsAtTheAddressOfAnother(t *testing.T) {
	one, two, other := pciGPU(1, 1), pciGPU(2, 2), pciGPU(1, 9)
	moved := pciGPU(3, 1)
	r, log, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched, func(c *agent.Config) { c.KernelLog = r })
	m.create(agent.Part{GPUs: []string{one.Name}, Memory: gib})
	b.set(two)
	m.until("it is missing", func() bool { return m.state(one.Name) == "missing" })
	b.set(other, two)
	m.until("another one is there", func() bool { return m.state(one.Name) == "in service" })
	if _, err := fmt.Fprintln(log, "3,339,5140900,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=python"); err != nil {
		t.Fatal(err)
	}
	m.until("it has failed", func() bool { return m.state(other.Name) == "out of service" })
	b.set(other, two, moved)
	m.until("the first one is back", func() bool { return m.state(moved.Name) != "unknown" })
	if got := m.state(moved.Name); got != "in service" {
		t.Errorf("the first one is %s", got)
	}
}

// A look that fails, such as of an agent without open files, says nothing of a GPU.
func TestLookThatFails(t *testing.T) {
	one := pciGPU(1, 1)
	looks := make(chan struct{}, 10)
	m := start(t, "", "gemini", withGPUs(one), func(c *agent.Config) {
		c.Pause = time.Millisecond
		c.Look = func(context.Context) ([]broker.GPU, map[string]string, error) {
			select {
			case looks <- struct{}{}:
			default:
			}
			return nil, nil, errors.New("too many open files")
		}
	})
	for range cap(looks) {
		<-looks
	}
	if got := m.state(one.Name); got != "in service" {
		t.Errorf("a GPU after failed looks is %s", got)
	}
}

// One look does not make a GPU missing, nor take it back.
func TestLooksMustAgree(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var mu sync.Mutex
	n, present := 0, true
	m := start(t, "", "gemini", withGPUs(one, two), func(c *agent.Config) {
		c.Pause = time.Millisecond
		c.Look = func(context.Context) ([]broker.GPU, map[string]string, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			if here := n%3 == 0; here == present { // two looks of three find the opposite
				return []broker.GPU{one, two}, nil, nil
			}
			return []broker.GPU{two}, nil, nil
		}
	})
	m.until("there were some looks", func() bool { mu.Lock(); defer mu.Unlock(); return n > 30 })
	if got := m.state(one.Name); got != "in service" {
		t.Errorf("a GPU that is seen by each third look is %s", got)
	}
}

// A GPU that comes back with less memory than its shares were given needs a new start.
func TestGPUThatReturnsSmaller(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched)
	m.create(agent.Part{GPUs: []string{one.Name}, Memory: 12 * gib})
	b.set(two)
	m.until("it is missing", func() bool { return m.state(one.Name) == "missing" })
	less := one
	less.Device.Memory = 8 * gib
	b.set(less, two)
	m.until("its share says why", func() bool {
		return strings.Contains(m.shares()[0].Parts[0].Missing, "8 GiB of memory, and its shares were given 12 GiB: restart")
	})
	b.set(one, two)
	m.until("it is back", func() bool { return m.state(one.Name) == "in service" })
}

// The pool sees a GPU that leaves and returns in its place, a new one, and one of a former start
// only as long as a lease waits for it.
func TestLeaseOfAGPUThatReturns(t *testing.T) {
	one, two, three := pciGPU(1, 1), pciGPU(2, 2), pciGPU(3, 3)
	one.Name, two.Name = "gpu0", "gpu1"
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched, inPool)
	m.actOn(offer.Open, 0, gib, 0)
	place, _ := m.agent.Place("gpu0")
	offered := func() (names []string) {
		for _, g := range m.agent.GPUs() {
			names = append(names, g.Name)
		}
		return names
	}
	b.set(two)
	m.until("the pool sees that it is missing", func() bool { return strings.Contains(m.agent.Offered().Conditions["gpu0"].Failed, "not there") })
	if why := m.agent.Offered().Conditions["gpu0"].Failed; !strings.Contains(why, "dxpu lease delete") || strings.Contains(why, "restart") {
		t.Errorf("the pool is told: %s", why)
	}
	b.set(two, one, three)
	m.until("all are there", func() bool {
		c := m.agent.Offered().Conditions
		return c["gpu0"].Failed == "" && len(c) == 3
	})
	if at, ok := m.agent.Place("gpu0"); !ok || at != place {
		t.Errorf("its place is %d, %v, not %d", at, ok, place)
	}
	if at, ok := m.agent.Place(three.Name); !ok || at == place {
		t.Errorf("the place of the new one is %d, %v", at, ok)
	}
	m.stop()
	b.set(two)
	m = start(t, m.dir, "gemini", b.watched, inPool)
	if got := offered(); !slices.Equal(got, []string{"gpu1", "gpu0"}) {
		t.Errorf("with a lease that waits: %q", got)
	}
	end := offer.Action{Kind: offer.End, Lease: offer.Lease{Binding: offer.Binding{Pool: "c", ID: "B-1", Epoch: 1}}}
	m.until("the lease may end", func() bool { return m.agent.Do(&end) == nil })
	m.until("the departed GPU is not offered", func() bool { return slices.Equal(offered(), []string{"gpu1"}) })
	if c := m.agent.Offered().Conditions; len(c) != 1 {
		t.Errorf("conditions %+v", c)
	}
	if list, err := m.api.GPUs(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("GPUs %+v, %v", list, err)
	}
	b.set(two, one)
	m.until("it is offered again", func() bool { return m.agent.Offered().Conditions["gpu0"].Failed == "" && len(offered()) == 2 })
}

// A part of a lease is on the GPU of its slot, whatever name the GPU has got since the manager's wish
// was read: two GPUs have changed places.
func TestLeaseOnAGPUWithAnotherName(t *testing.T) {
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	m := start(t, "", "gemini", b.watched, inPool)
	b.set(pciGPU(1, 2), pciGPU(2, 1))
	m.until("they have changed places", func() bool {
		place, _ := m.agent.Place(two.Name)
		return place == 0 && m.state(one.Name) == "in service" && m.state(two.Name) == "in service"
	})
	m.actOn(offer.Open, 0, gib, 0)
	if got := m.shares()[0]; !slices.Equal(got.UUIDs, []string{agent.UUIDText(one.UUID)}) || got.GPUs[0] != two.Name {
		t.Errorf("%+v", got)
	}
}

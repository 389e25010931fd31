package sim_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/sim"
)

// smallPool is a pool of real proxies under a random sequence of commands.
type smallPool struct {
	*sim.Pool
	stop bool // tenants end
}

var quietNetwork = fault.Plan{Delay: 5 * us, Jitter: 2 * us}

func newSmallPool(rt *rapid.T) *smallPool {
	s := &smallPool{}
	use := tenant(3*time.Millisecond, &s.stop)
	p, err := sim.NewPool(sim.PoolSpec{
		Hosts: 2, Boxes: 2, HostSlots: 2, BoxSlots: 2, Paths: rapid.IntRange(1, 2).Draw(rt, "paths"),
		GPU: gpu.Spec{VRAM: tenantMemory}, Memory: 1 << 20, Plan: quietNetwork,
		ControlDelay: time.Millisecond, ControlLoss: 0.05, Program: use, Seed: rapid.Uint64().Draw(rt, "seed"),
	})
	if err != nil {
		rt.Fatal(err)
	}
	s.Pool = p
	return s
}

func (s *smallPool) member(rt *rapid.T) *sim.Member {
	if i := rapid.IntRange(0, len(s.Hosts)+len(s.Boxes)-1).Draw(rt, "member"); i < len(s.Hosts) {
		return &s.Hosts[i].Member
	} else {
		return &s.Boxes[i-len(s.Hosts)].Member
	}
}

func span(rt *rapid.T, most time.Duration) time.Duration {
	return time.Duration(rapid.Int64Range(0, int64(most)).Draw(rt, "time"))
}

func (s *smallPool) attach(rt *rapid.T) {
	s.Attach(s.Hosts[rapid.IntRange(0, len(s.Hosts)-1).Draw(rt, "host")])
}

func (s *smallPool) commands() map[string]func(*rapid.T) {
	run := func(rt *rapid.T) { s.Run(s.Now() + span(rt, 1500*time.Millisecond)) }
	return map[string]func(*rapid.T){
		"attach":         s.attach,
		"attach another": s.attach,
		"detach": func(rt *rapid.T) {
			if len(s.Bindings) > 0 {
				s.Detach(s.Bindings[rapid.IntRange(0, len(s.Bindings)-1).Draw(rt, "binding")])
			}
		},
		"hand over": func(rt *rapid.T) { // to another tenant, often in the same box slot
			if len(s.Bindings) > 0 {
				s.Detach(s.Bindings[0])
				s.Run(s.Now() + span(rt, 300*time.Millisecond))
				s.attach(rt)
			}
		},
		"restart": func(rt *rapid.T) { s.member(rt).Restart(span(rt, 2*time.Second)) },
		"fail": func(rt *rapid.T) {
			if b := s.Boxes[rapid.IntRange(0, len(s.Boxes)-1).Draw(rt, "box")]; b.Running() {
				b.Fail(rapid.IntRange(0, b.Slots()-1).Draw(rt, "slot"))
			}
		},
		"bad network": func(rt *rapid.T) {
			plan := quietNetwork
			plan.Loss, plan.Dup, plan.Reorder, plan.Corrupt = 0.05, 0.02, 0.05, 0.02
			s.member(rt).Disturb(plan)
		},
		"cut network": func(rt *rapid.T) {
			plan := quietNetwork
			plan.Partitions = []fault.Window{{From: s.Now(), To: s.Now() + span(rt, 3*time.Second)}}
			s.member(rt).Disturb(plan)
		},
		"repair network": func(rt *rapid.T) { s.member(rt).Disturb(quietNetwork) },
		"run":            run,
		"run on":         run,
		"":               s.check,
	}
}

// check looks for what must hold at every time: a box slot serves one host slot,
// and no tenant has seen data of another.
func (s *smallPool) check(rt *rapid.T) {
	users := map[string]string{}
	for _, h := range s.Hosts {
		if !h.Running() {
			continue
		}
		for _, id := range h.Attached() {
			place := s.Place(id).String()
			if other := users[place]; other != "" {
				rt.Fatalf("%s is attached by %s and by %s", place, other, id)
			}
			users[place] = id
		}
	}
	for _, err := range s.Failures {
		rt.Error(err)
	}
}

// settle ends the faults and lets the pool come to rest.
func (s *smallPool) settle(rt *rapid.T) {
	for _, h := range s.Hosts {
		h.Disturb(quietNetwork)
	}
	for _, b := range s.Boxes {
		b.Disturb(quietNetwork)
	}
	s.stop = true
	s.Run(s.Now() + 5*time.Second) // every loss is noticed
	if !s.RunUntil(s.Now()+time.Minute, s.Settled) {
		rt.Fatalf("a minute after the faults: %v", s.Bindings)
	}
}

// atRest looks for what must hold after quiet time: the proxies have the bindings
// of the manager and no others, and no access waits.
func (s *smallPool) atRest(rt *rapid.T) {
	hosts, boxes := map[string][]string{}, map[string][]string{}
	for _, b := range s.Bindings {
		hosts[b.Host.Name] = append(hosts[b.Host.Name], b.ID)
		boxes[b.Box.Name] = append(boxes[b.Box.Name], b.ID)
	}
	equal := func(name string, want, have []string) {
		have = slices.DeleteFunc(have, func(id string) bool { return id == "" })
		slices.Sort(want)
		slices.Sort(have)
		if !slices.Equal(want, have) {
			rt.Errorf("%s has the bindings %v, the manager %v", name, have, want)
		}
	}
	for _, h := range s.Hosts {
		equal(h.Name, hosts[h.Name], h.Bindings())
		equal(h.Name, hosts[h.Name], h.Attached())
		if !h.Idle() {
			rt.Errorf("%s: an access waits for a device", h.Name)
		}
	}
	for _, b := range s.Boxes {
		equal(b.Name, boxes[b.Name], b.Bindings())
	}
}

// Any sequence of attach, detach, faults and restarts leaves each box slot to one
// host at a time, shows no tenant's data to another, and ends with everything
// that is wanted attached or reported as lost.
func TestPoolKeepsItsInvariants(t *testing.T) {
	if raceEnabled {
		setFlag(t, "rapid.checks", "10") // of 100, as each takes ten times as long
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := newSmallPool(rt)
		defer s.Close()
		s.Run(10 * time.Millisecond)
		for range 3 {
			s.attach(rt)
		}
		s.Run(300 * time.Millisecond)
		rt.Repeat(s.commands())
		s.settle(rt)
		s.check(rt)
		s.atRest(rt)
	})
}

// setFlag changes a flag for the rest of the test.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	before := flag.Lookup(name).Value.String()
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := flag.Set(name, before); err != nil {
			t.Error(err)
		}
	})
}

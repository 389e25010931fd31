package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// A scenario is two proxies, host and box, with one group each, and prints the
// TLPs that handlers take and refuse.
//
//	join id                       attach both ends of a binding, and wait until it is up
//	send SIDE id n [size]         TLPs for the link, as far as it takes them
//	answer SIDE id                the handler answers each TLP with one
//	peer SIDE from to n           TLPs from one handler to its neighbour
//	refuse SIDE id | accept SIDE id
//	detach SIDE id | close SIDE id code
//	run for=TIME                  let time pass
//	state                         of every binding
type scenario struct {
	*network
	ends map[string][2]*scripted
	ids  []string
	out  strings.Builder
}

// scripted is a handler that does what a scenario says.
type scripted struct {
	end
	s       *scenario
	name    string
	id      string
	queue   []*tlp.Packet // for the link
	peers   []*tlp.Packet // for the neighbour
	to      *scripted
	answers bool
	refuses bool
	refused int
}

func (s *scenario) logf(format string, args ...any) {
	fmt.Fprintf(&s.out, "%v "+format+"\n", append([]any{s.now}, args...)...)
}

func (h *scripted) Receive(e Entry, p *tlp.Packet) bool {
	if h.refuses {
		if h.refused++; h.refused == 1 {
			h.s.logf("%s refuses %v at %#x", h.name, p.Type, p.Addr)
		}
		return false
	}
	h.refused = 0
	h.s.logf("%s takes %v at %#x", h.name, p.Type, p.Addr)
	if h.answers {
		h.queue = append(h.queue, write(p.Addr+0x8000, 4))
	}
	return true
}

func (h *scripted) Transmit(e Entry) {
	for len(h.queue) > 0 && !errors.Is(h.binding.Send(e, h.queue[0]), link.ErrFull) {
		h.queue = h.queue[1:]
	}
	for len(h.peers) > 0 && h.binding.HandOver(e, h.to.binding, h.peers[0]) {
		h.peers = h.peers[1:]
	}
}

func (h *scripted) LinkChanged(e Entry, state link.State) {
	h.s.logf("%s is %v: %s", h.name, state, h.binding.Why(e))
}

func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &scenario{network: newNetwork(t, 1), ends: map[string][2]*scripted{}}
		groups := s.pairOfGroups()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			s.command(d, groups)
			if s.out.Len() == 0 {
				return "ok\n"
			}
			return s.out.String()
		})
	})
}

// find returns the handler that a command names by its side and binding.
func (s *scenario) find(d *datadriven.TestData, at int) *scripted {
	if len(d.CmdArgs) < at+2 {
		d.Fatalf(s.t, "%s needs a side and a binding", d.Cmd)
	}
	return s.ends[d.CmdArgs[at+1].Key][map[string]int{"host": 0, "box": 1}[d.CmdArgs[at].Key]]
}

func (s *scenario) number(d *datadriven.TestData, at, otherwise int) int {
	n := otherwise
	if at < len(d.CmdArgs) {
		if _, err := fmt.Sscan(d.CmdArgs[at].Key, &n); err != nil {
			d.Fatalf(s.t, "%s: %v", d.CmdArgs[at].Key, err)
		}
	}
	return n
}

func (s *scenario) command(d *datadriven.TestData, groups [2]*driver) {
	switch d.Cmd {
	case "join":
		id := d.CmdArgs[0].Key
		ends := [2]*scripted{{s: s, id: id, name: "host " + id}, {s: s, id: id, name: "box " + id}}
		cfg := s.configs(uint32(s.number(d, 0, 0)), link.CipherNone)
		for i, h := range ends {
			s.attachHandler(groups[i], cfg[i], &h.end, h)
		}
		s.ends[id], s.ids = ends, append(s.ids, id)
		s.up(&ends[0].end, &ends[1].end)
	case "send", "peer":
		h := s.find(d, 0)
		count, size := s.number(d, 2, 1), s.number(d, 3, 64)
		if d.Cmd == "peer" {
			h.to, count, size = s.ends[d.CmdArgs[2].Key][h.driver.index], s.number(d, 3, 1), 64
		}
		for i := range count {
			p := write(uint64(i)<<12, size)
			if d.Cmd == "peer" {
				h.peers = append(h.peers, p)
			} else {
				h.queue = append(h.queue, p)
			}
		}
		h.with(func(e Entry) { h.binding.Touch(e) })
	case "answer":
		s.find(d, 0).answers = true
	case "refuse", "accept":
		h := s.find(d, 0)
		h.refuses = d.Cmd == "refuse"
		h.with(func(e Entry) { h.binding.Touch(e) })
	case "close":
		h := s.find(d, 0)
		h.with(func(e Entry) { h.binding.Shutdown(e, CloseCode(s.number(d, 2, 1))) })
	case "detach":
		h := s.find(d, 0)
		h.with(func(e Entry) { h.binding.Detach(e) })
	case "run":
		var text string
		d.ScanArgs(s.t, "for", &text)
		span, err := time.ParseDuration(text)
		if err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		s.run(s.now+span, nil)
	case "state":
		for _, id := range s.ids {
			for _, h := range s.ends[id] {
				h.with(func(e Entry) {
					s.logf("%s: %v, %d TLPs to send, %d for the neighbour, %d held", h.name, h.binding.State(e), len(h.queue), len(h.peers), len(h.binding.held.packets))
				})
			}
		}
	default:
		d.Fatalf(s.t, "unknown command %s", d.Cmd)
	}
}

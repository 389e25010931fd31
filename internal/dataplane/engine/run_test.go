package engine

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// runEnd is a handler that takes runs as the test says.
type runEnd struct {
	end
	takes func(r *link.Run) bool
	runs  int
	addrs []uint64 // of all TLPs, in order
}

func (h *runEnd) ReceiveRun(_ Entry, r *link.Run) bool {
	if !h.takes(r) {
		return false
	}
	h.runs++
	for i := range r.Count {
		var p tlp.Packet
		r.TLP(i, &p)
		h.addrs = append(h.addrs, p.Addr)
	}
	return true
}

// seer is a Watcher.
type seer struct {
	on    bool
	addrs []uint64 // of the TLPs received
}

func (s *seer) Watching() bool { return s.on }

func (s *seer) TLP(_ *Binding, received bool, p *tlp.Packet) {
	if received {
		s.addrs = append(s.addrs, p.Addr)
	}
}

// A handler that takes runs gets every TLP once and in order: in runs, one by one where
// it refuses a run, where a watcher looks, and behind TLPs that it could not take.
func TestRunsReachTheirHandler(t *testing.T) {
	const total, size = 40, 1024
	for _, tc := range []struct {
		name    string
		takes   bool
		watched bool
		busy    int // refusals of the first TLP
		runs    bool
	}{
		{"runs", true, false, 0, true},
		{"no runs", false, false, 0, false},
		{"watched", true, true, 0, false},
		{"held", false, false, 3, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t, 1)
			groups := n.pairOfGroups()
			watcher := &seer{on: tc.watched}
			groups[1].group.cfg.Watcher = watcher
			var from end
			to := &runEnd{takes: func(*link.Run) bool { return tc.takes }}
			busy := tc.busy
			to.receive = func(_ Entry, p *tlp.Packet) bool {
				if busy > 0 {
					busy--
					to.binding.touch()
					return false
				}
				to.addrs = append(to.addrs, p.Addr)
				return true
			}
			ends := n.configs(1, link.CipherNone)
			n.attach(groups[0], ends[0], &from)
			n.attachHandler(groups[1], ends[1], &to.end, to)
			n.up(&from, &to.end)
			var want []uint64
			from.with(func(e Entry) {
				for i := range total {
					addr := uint64(1<<40 + i*size)
					want = append(want, addr)
					if err := from.binding.Send(e, write(addr, size)); err != nil {
						t.Fatal(err)
					}
				}
			})
			n.run(n.now+time.Second, func() bool { return len(to.addrs) >= total })
			if !slices.Equal(to.addrs, want) {
				t.Errorf("arrived at %x, want %x", to.addrs, want)
			}
			if (to.runs > 0) != tc.runs {
				t.Errorf("%d runs", to.runs)
			}
			if tc.watched && !slices.Equal(watcher.addrs, want) {
				t.Errorf("the watcher saw %x, want %x", watcher.addrs, want)
			}
		})
	}
}

// keepAll makes a handler keep copies of its TLPs, also of those in runs if it takes any.
func (h *runEnd) keepAll() (got *[]tlp.Packet) {
	got = new([]tlp.Packet)
	h.receive = func(_ Entry, p *tlp.Packet) bool {
		q := *p
		q.Data = slices.Clone(p.Data)
		*got = append(*got, q)
		return true
	}
	if takes := h.takes; takes != nil {
		h.takes = func(r *link.Run) bool {
			if !takes(r) {
				return false
			}
			for i := range r.Count {
				var p tlp.Packet
				r.TLP(i, &p)
				h.receive(Entry{}, &p)
			}
			return true
		}
	}
	return got
}

// readsAndCompletions are TLPs that cross the network as two runs.
func readsAndCompletions() (out []tlp.Packet) {
	for i := range pcie.Tag(20) {
		p := tlp.Packet{Type: tlp.MRd, Tag: i}
		p.SetMemory(1<<40+uint64(i)<<12, pcie.MaxPayload)
		if i >= 10 {
			p = tlp.Packet{Type: tlp.CplD, Tag: i, ByteCount: 512, Length: 128, Data: bytes.Repeat([]byte{byte(i)}, 512)}
		}
		out = append(out, p)
	}
	return out
}

// Runs of completions and of reads reach a handler that takes runs, and every other one as
// their TLPs, in order.
func TestOtherRunsReachTheirHandler(t *testing.T) {
	for _, tc := range []struct {
		name        string
		runs, takes bool
		want        int // runs
	}{{"a handler without runs", false, false, 0}, {"a handler that refuses them", true, false, 0}, {"a handler that takes them", true, true, 2}} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t, 1)
			groups := n.pairOfGroups()
			var from end
			to := &runEnd{takes: func(*link.Run) bool { return tc.takes }}
			got := to.keepAll()
			ends := n.configs(1, link.CipherNone)
			n.attach(groups[0], ends[0], &from)
			if tc.runs {
				n.attachHandler(groups[1], ends[1], &to.end, to)
			} else {
				n.attach(groups[1], ends[1], &to.end)
			}
			n.up(&from, &to.end)
			want := readsAndCompletions()
			from.with(func(e Entry) {
				for i := range want {
					if err := from.binding.Send(e, &want[i]); err != nil {
						t.Fatal(err)
					}
				}
			})
			n.run(n.now+time.Second, func() bool { return len(*got) >= len(want) })
			if diff := cmp.Diff(want, *got, cmp.Comparer(bytes.Equal)); diff != "" || to.runs != tc.want {
				t.Errorf("%d runs, want %d; TLPs (-sent +arrived):\n%s", to.runs, tc.want, diff)
			}
		})
	}
}

// SendRun sends what Send sends one by one, watchers see each TLP, and round trips are
// sampled.
func TestSendRun(t *testing.T) {
	n := newNetwork(t, 1)
	groups := n.pairOfGroups()
	watcher := &seer{}
	groups[0].group.cfg.Watcher, groups[1].group.cfg.Watcher = watcher, watcher
	var from end
	to := &runEnd{takes: func(*link.Run) bool { return true }}
	got := to.keepAll()
	ends := n.configs(1, link.CipherNone)
	n.attach(groups[0], ends[0], &from)
	n.attachHandler(groups[1], ends[1], &to.end, to)
	n.up(&from, &to.end)
	tlps := readsAndCompletions()
	reads, completions := link.Run{First: tlps[0], Count: 10}, link.Run{First: tlps[10], Count: 10}
	for _, p := range tlps[10:] {
		completions.Data = append(completions.Data, p.Data...)
	}
	for _, watching := range []bool{false, true} {
		*got, watcher.on, watcher.addrs = nil, watching, nil
		from.with(func(e Entry) {
			if err := errors.Join(from.binding.SendRun(e, &reads), from.binding.SendRun(e, &completions)); err != nil {
				t.Fatal(err)
			}
		})
		n.run(n.now+time.Second, func() bool { return len(*got) >= len(tlps) })
		if diff := cmp.Diff(tlps, *got, cmp.Comparer(bytes.Equal)); diff != "" {
			t.Errorf("watched %v: TLPs (-sent +arrived):\n%s", watching, diff)
		}
		if want := map[bool]int{true: len(tlps)}[watching]; len(watcher.addrs) != want {
			t.Errorf("the watcher saw %d TLPs, want %d", len(watcher.addrs), want)
		}
	}
	answers := link.Run{First: tlps[10], Count: 10, Data: completions.Data}
	answers.First.Tag = 0 // those of the reads
	to.with(func(e Entry) {
		if err := to.binding.SendRun(e, &answers); err != nil {
			t.Fatal(err)
		}
	})
	n.run(n.now+time.Second, func() bool { return from.arrived >= 10 })
	sent, _ := from.binding.RoundTrips(Entry{})
	_, served := to.binding.RoundTrips(Entry{})
	if sent.Samples != 1 || served.Samples != 1 {
		t.Errorf("%d samples of requests sent, %d of those served, want one each", sent.Samples, served.Samples)
	}
}

// While TLPs are held, a run waits behind them.
func TestRunsWaitBehindHeldTLPs(t *testing.T) {
	n := newNetwork(t, 1)
	groups := n.pairOfGroups()
	var from end
	open := false
	to := &runEnd{takes: func(*link.Run) bool { return true }}
	to.receive = func(_ Entry, p *tlp.Packet) bool {
		if open {
			to.addrs = append(to.addrs, p.Addr)
		}
		return open
	}
	ends := n.configs(1, link.CipherNone)
	n.attach(groups[0], ends[0], &from)
	n.attachHandler(groups[1], ends[1], &to.end, to)
	n.up(&from, &to.end)
	var want []uint64
	from.with(func(e Entry) {
		for i := range 20 {
			addr := uint64(1<<40 + i*1024)
			if i == 0 {
				addr = 0x1000 // on its own
			}
			want = append(want, addr)
			if err := from.binding.Send(e, write(addr, 1024)); err != nil {
				t.Fatal(err)
			}
		}
	})
	n.run(n.now+10*time.Millisecond, nil)
	if to.runs > 0 || len(to.addrs) > 0 {
		t.Fatalf("%d runs and %x passed a TLP that was held", to.runs, to.addrs)
	}
	open = true
	to.with(func(e Entry) { to.binding.Touch(e) })
	n.run(n.now+time.Second, func() bool { return len(to.addrs) == len(want) })
	if !slices.Equal(to.addrs, want) {
		t.Errorf("arrived at %x, want %x", to.addrs, want)
	}
}

package engine

import (
	"bytes"
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

// Runs of completions and of reads reach every handler as their TLPs, in order; a handler
// of runs gets those of writes only.
func TestOtherRunsReachTheirHandlerOneByOne(t *testing.T) {
	for _, runs := range []bool{false, true} {
		n := newNetwork(t, 1)
		groups := n.pairOfGroups()
		var from end
		to := &runEnd{takes: func(*link.Run) bool { return true }}
		var got []tlp.Packet
		to.receive = func(_ Entry, p *tlp.Packet) bool {
			q := *p
			q.Data = slices.Clone(p.Data)
			got = append(got, q)
			return true
		}
		ends := n.configs(1, link.CipherNone)
		n.attach(groups[0], ends[0], &from)
		if runs {
			n.attachHandler(groups[1], ends[1], &to.end, to)
		} else {
			n.attach(groups[1], ends[1], &to.end)
		}
		n.up(&from, &to.end)
		var want []tlp.Packet
		from.with(func(e Entry) {
			for i := range pcie.Tag(20) {
				p := tlp.Packet{Type: tlp.MRd, Tag: i}
				p.SetMemory(1<<40+uint64(i)<<12, pcie.MaxPayload)
				if i >= 10 {
					p = tlp.Packet{Type: tlp.CplD, Tag: i, ByteCount: 512, Length: 128, Data: bytes.Repeat([]byte{byte(i)}, 512)}
				}
				want = append(want, p)
				if err := from.binding.Send(e, &p); err != nil {
					t.Fatal(err)
				}
			}
		})
		n.run(n.now+time.Second, func() bool { return len(got) >= len(want) })
		if diff := cmp.Diff(want, got); diff != "" || to.runs > 0 {
			t.Errorf("%d runs; TLPs (-sent +arrived):\n%s", to.runs, diff)
		}
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

package engine

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// watchAll counts the TLPs that it is shown while it is on.
type watchAll struct {
	on             bool
	sent, received int
}

func (w *watchAll) Watching() bool { return w.on }

func (w *watchAll) TLP(_ *Binding, received bool, _ *tlp.Packet) {
	if received {
		w.received++
	} else {
		w.sent++
	}
}

// Both ends of a request see how long it took, and a watcher sees its TLPs.
func TestRoundTrips(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b end
	groups := n.pairOfGroups()
	w := &watchAll{}
	groups[1].group.cfg.Watcher = w
	owed := false
	b.receive = func(Entry, *tlp.Packet) bool { owed = true; return true }
	n.join(groups, n.configs(1, link.CipherAES256GCM), &a, &b)
	n.up(&a, &b)
	read := func() {
		p := &tlp.Packet{Type: tlp.MRd, Tag: 7}
		p.SetMemory(0x1000, 4)
		a.with(func(e Entry) {
			if err := a.binding.Send(e, p); err != nil {
				t.Fatal(err)
			}
		})
		n.run(n.now+time.Millisecond, func() bool { return owed })
		n.now += 3 * time.Microsecond // that the device takes
		owed = false
		b.with(func(e Entry) {
			reply := &tlp.Packet{Type: tlp.CplD, Length: 1, Requester: p.Requester, Tag: p.Tag, ByteCount: 4, Data: make([]byte, 4)}
			if err := b.binding.Send(e, reply); err != nil {
				t.Fatal(err)
			}
		})
		n.run(n.now+2*time.Millisecond, nil)
	}
	read()
	w.on = true
	read()
	var whole, none, nothing, served RoundTrip
	a.with(func(e Entry) { whole, none = a.binding.RoundTrips(e) })
	b.with(func(e Entry) { nothing, served = b.binding.RoundTrips(e) })
	if served.Samples != 2 || served.Last != 3*time.Microsecond || whole.Samples != 2 || whole.Last != 2*delay+served.Last {
		t.Errorf("a request took %+v, of which %+v in the other end", whole, served)
	}
	if none.Samples != 0 || nothing.Samples != 0 {
		t.Errorf("the other way %+v and %+v", none, nothing)
	}
	if w.sent != 1 || w.received != 1 {
		t.Errorf("the watcher saw %d sent and %d received TLPs, want one each", w.sent, w.received)
	}
}

func TestSampler(t *testing.T) {
	request := func(tag pcie.Tag) *tlp.Packet { return &tlp.Packet{Type: tlp.MRd, Length: 32, Tag: tag} }
	data := func(tag pcie.Tag, left uint16) *tlp.Packet {
		return &tlp.Packet{Type: tlp.CplD, Length: 16, ByteCount: left, Tag: tag, Data: make([]byte, 64)}
	}
	type step struct {
		at time.Duration
		p  *tlp.Packet
	}
	for _, tc := range []struct {
		name  string
		steps []step
		want  RoundTrip
	}{
		{"one completion", []step{{10, request(1)}, {30, data(1, 64)}}, RoundTrip{20, 20, 20, 1}},
		{"the last of two", []step{{10, request(1)}, {30, data(1, 128)}, {50, data(1, 64)}}, RoundTrip{40, 40, 40, 1}},
		{"one request at a time", []step{{10, request(1)}, {20, request(2)}, {30, data(2, 64)}, {40, data(1, 64)}}, RoundTrip{30, 30, 30, 1}},
		{"an error ends it", []step{{10, request(1)}, {30, &tlp.Packet{Type: tlp.Cpl, Status: pcie.UnsupportedRequest, ByteCount: 128, Tag: 1}}}, RoundTrip{20, 20, 20, 1}},
		{"of a write", []step{{10, &tlp.Packet{Type: tlp.CfgWr0, Tag: 1}}, {30, &tlp.Packet{Type: tlp.Cpl, ByteCount: 4, Tag: 1}}}, RoundTrip{20, 20, 20, 1}},
		{"another requester", []step{{10, request(1)}, {30, &tlp.Packet{Type: tlp.Cpl, Requester: 8, Tag: 1}}}, RoundTrip{}},
		{"not too often", []step{{10, request(1)}, {20, data(1, 64)}, {30, request(2)}, {90, data(2, 64)}}, RoundTrip{10, 10, 10, 1}},
		{
			"smoothed",
			[]step{{10, request(1)}, {20, data(1, 64)}, {2 * sampleInterval, request(2)}, {2*sampleInterval + 90, data(2, 64)}},
			RoundTrip{20, 10, 90, 2},
		},
		{
			"one that is not answered is given up",
			[]step{{10, request(1)}, {11 + sampleLimit, request(2)}, {31 + sampleLimit, data(2, 64)}},
			RoundTrip{20, 20, 20, 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s sampler
			for _, step := range tc.steps {
				s.see(step.at, step.p, func() time.Duration { return step.at })
			}
			if s.RoundTrip != tc.want {
				t.Errorf("%+v, want %+v", s.RoundTrip, tc.want)
			}
		})
	}
}

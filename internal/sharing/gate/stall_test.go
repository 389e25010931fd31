package gate_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/share"
)

// A process that is stopped with launches in flight keeps no others waiting, and goes on where
// it was.
func TestStoppedProcess(t *testing.T) {
	for _, info := range share.Policies() {
		if gate.Hardware(info.Name) {
			continue // it gives no permits
		}
		for _, class := range []share.Class{share.Online, share.Offline} {
			t.Run(info.Name+"/"+class.String(), func(t *testing.T) {
				w := newWorld(t, info.Name)
				w.join(1, share.ClientSpec{Class: class, Request: share.Percent(30), Limit: share.Percent(50)})
				w.join(2, share.ClientSpec{Class: share.Offline, Request: share.Percent(30), Limit: share.Percent(50)})
				p := &program{id: 1, client: 1, kernel: time.Millisecond, stops: 20}
				other := &program{id: 2, client: 2, kernel: time.Millisecond}
				w.add(p)
				w.run(time.Second) // it is stopped here
				w.add(other)
				w.run(3 * time.Second)
				if late := w.g.Late(w.now, time.Second, nil); len(late) > 0 && late[0] == 1 {
					w.g.Stall(w.now, 1)
				}
				before := other.ran
				w.run(40 * time.Second)
				if got := other.ran - before; got < time.Second {
					t.Errorf("the other program ran for %v of 37 s", got)
				}
				if w.g.InFlight(1) > 0 {
					t.Errorf("%d launches of the stopped process are in flight", w.g.InFlight(1))
				}
				p.stops = 0
				for _, x := range p.untold {
					if !w.g.Done(w.now, 1, x.Launch, time.Millisecond) {
						t.Errorf("the end of launch %d is not known", x.Launch)
					}
					p.out--
				}
				before = p.ran
				w.fill(p)
				w.run(100 * time.Second)
				if got := p.ran - before; got < time.Second {
					t.Errorf("the program ran for %v of 60 s after it went on", got)
				}
				if e := w.g.Evicted(); len(e) > 0 {
					t.Errorf("evicted %v", e)
				}
				if w.g.Violations() > 0 {
					t.Errorf("%d events were wrong", w.g.Violations())
				}
			})
		}
	}
}

// The launches of a stopped process that wait let those of the other processes of its share
// pass.
func TestStoppedProcessInQueue(t *testing.T) {
	w := newWorld(t, "timeslice")
	w.join(1, share.ClientSpec{})
	w.join(2, share.ClientSpec{})
	w.add(&program{id: 1, client: 1, kernel: time.Millisecond, ahead: 64, stops: 1})
	w.add(&program{id: 3, client: 2, kernel: time.Millisecond})
	w.run(time.Second)
	w.g.Stall(w.now, 1)
	p := &program{id: 2, client: 1, kernel: time.Millisecond}
	w.add(p)
	w.run(3 * time.Second)
	if p.ran < 500*time.Millisecond {
		t.Errorf("the other process of the share ran for %v of 2 s", p.ran)
	}
}

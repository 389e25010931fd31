package mps

import (
	"slices"
	"testing"
	"time"
)

// While the daemon is there and cannot be asked, only the clients that are to end do so, by force if
// they must. A client that waits for its limits gets an answer, and may ask again. A service that is
// to stop does not wait for its answer.
func TestUnasked(t *testing.T) {
	w := newWorld(t).active()
	w.join(1, true, 60)
	w.join(2, true, 20)
	before := w.seen
	w.seen = Seen{Daemon: Unasked}
	w.admit(3, false, 10)
	if err := w.m.Resize(w.now, 1, Limits{Share: 400_000}); err != nil {
		t.Fatal(err)
	}
	w.refuse[TerminateClient] = true
	w.pass(2*endGrace + 3*time.Second)
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonShare})
	w.told(Notice{Kind: End, Client: 1, PID: 1001, Reason: ReasonShare, Force: true})
	if slices.ContainsFunc(w.notices, func(n Notice) bool { return n.Client == 3 }) {
		t.Errorf("notices %+v within %v", w.notices, 2*endGrace)
	}
	w.pass(unaskedLimit)
	w.told(Notice{Kind: Refused, Client: 3, PID: 1003, Reason: ReasonUnasked})
	w.admit(3, false, 10)
	w.pass(unaskedLimit - time.Second)
	w.notices = nil
	w.admit(4, false, 10) // each has the whole time
	w.pass(2 * time.Second)
	w.told(Notice{Kind: Refused, Client: 3, PID: 1003, Reason: ReasonUnasked})
	w.state(Active)
	w.admit(3, false, 10)
	if slices.ContainsFunc(w.notices, func(n Notice) bool { return n.Client == 4 || n.Client == 2 && n.Kind == End }) || w.count("kill") != 0 {
		t.Errorf("notices %+v, actions %q", w.notices, w.actions)
	}
	w.seen = before
	w.pass(time.Second)
	w.told(Notice{Kind: Go, Client: 4, PID: 1004})
	w.seen, w.want.Run = Seen{Daemon: Unasked}, false
	w.pass(2 * silentLimit)
	w.state(Stopped)
	w.told(Notice{Kind: End, Client: 2, PID: 1002, Reason: ReasonServer})
}

// A daemon that is gone and cannot be started leaves its clients without an answer no longer than
// one that cannot be asked.
func TestAbsentDaemonDoesNotStart(t *testing.T) {
	w := newWorld(t).active()
	w.seen, w.refuse[StartDaemon] = Seen{}, true
	w.pass(time.Second)
	w.admit(3, false, 10)
	w.pass(2 * unaskedLimit)
	w.told(Notice{Kind: Refused, Client: 3, PID: 1003, Reason: ReasonUnasked})
}

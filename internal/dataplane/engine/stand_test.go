package engine

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// The stands of a group follow from late timers, not from idle times.
func TestStand(t *testing.T) {
	type entry struct{ now, before, due, since, want time.Duration }
	const s = time.Second
	for _, c := range []struct {
		name    string
		entries []entry
	}{
		{"idle", []entry{{100 * s, 1 * s, machine.Never, 0, 0}}},
		{"in time", []entry{{100 * s, 1 * s, 100 * s, 0, 0}}},
		{"busy", []entry{{3*s + longStand - 1, 2 * s, 3 * s, 0, 0}}},
		{"due for long, entered again and again", []entry{{10 * s, 10 * s, 1 * s, 0, 0}}},
		{"stood", []entry{{15 * s, 2 * s, 3 * s, 14 * s, 12 * s}, {16 * s, 15 * s, 16 * s, 15 * s, 0}}},
		{"twice", []entry{{5 * s, 2 * s, 3 * s, 0, 2 * s}, {9 * s, 5 * s, 6 * s, 0, 5 * s}}},
		{"twice, long ago", []entry{{5 * s, 2 * s, 3 * s, 0, 2 * s}, {49 * s, 47 * s, 48 * s, 0, 1 * s}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewGroup(Config{})
			for _, e := range c.entries {
				g.stand.note(e.now, e.before, e.due)
				if got := (Entry{g}).StoodStill(e.since); got != e.want {
					t.Errorf("at %v the group has stood still for %v since %v, want %v", e.now, got, e.since, e.want)
				}
			}
		})
	}
}

// A request is given up at its deadline if the link is quick and the peer was heard. It is
// not while the peer is silent and the link judges that, and not before its answer had its time
// after the process has stood still. After the end of the link nothing is waited for.
func TestSlack(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b end
	n.join([2]*driver{n.side[0].newGroup(), n.side[1].newGroup()}, n.configs(1, link.CipherNone), &a, &b)
	n.up(&a, &b)
	const timeout = 600 * time.Millisecond
	slack := func(deadline time.Duration) (slack time.Duration) {
		a.with(func(e Entry) { slack = a.binding.Slack(e, deadline, timeout) })
		return slack
	}
	n.run(n.now+2*time.Second, nil)
	if got := slack(n.now - time.Second); got != 0 {
		t.Errorf("%v after the peer was heard, want none", got)
	}
	if got := slack(n.now); got < lookAgain {
		t.Errorf("%v before the peer is heard", got)
	}
	deadline := n.now + timeout
	n.now += 12 * time.Second // both ends stand still
	if got := slack(deadline); deadline+got < n.now+lookAgain {
		t.Errorf("%v: the request ends as soon as this end goes on", got)
	}
	n.run(n.now+time.Second/4, nil)
	if heard := a.binding.link.Heard(); heard < n.now-time.Second/4 {
		t.Fatal("the peer is not heard")
	}
	if got := slack(deadline); deadline+got < n.now {
		t.Errorf("%v: the answer gets no time", got)
	}
	n.run(n.now+time.Second, nil)
	if got := slack(n.now); got > mostDelay {
		t.Errorf("%v for a request that began later", got)
	}
	a.with(func(e Entry) { a.binding.Shutdown(e, CloseDetached) })
	if got := slack(deadline); got != 0 {
		t.Errorf("%v after the end of the link", got)
	}
}

// A request is not given up while its answer may lie in a socket that was not read since the
// deadline, although another datagram of the peer was received later.
func TestSlackUntilTheSocketsAreRead(t *testing.T) {
	n := newNetwork(t, 1)
	listened := machine.Never
	var a, b end
	host := n.side[0].newGroup()
	host.group.cfg.Listened = func() time.Duration { return min(listened, n.now) }
	n.join([2]*driver{host, n.side[1].newGroup()}, n.configs(1, link.CipherNone), &a, &b)
	n.up(&a, &b)
	n.run(n.now+2*time.Second, nil)
	const timeout = 600 * time.Millisecond
	deadline := n.now - time.Second
	for _, c := range []struct {
		name     string
		listened time.Duration
		want     time.Duration
	}{
		{"not read since", deadline - 1, time.Second + lookAgain},
		{"read", deadline, 0},
		{"found empty now", machine.Never, 0},
	} {
		listened = c.listened
		a.with(func(e Entry) {
			if heard := a.binding.link.Heard(); heard < deadline {
				t.Fatalf("the peer was heard at %v, the deadline is %v", heard, deadline)
			}
			if got := a.binding.Slack(e, deadline, timeout); got != c.want {
				t.Errorf("%s: %v more, want %v", c.name, got, c.want)
			}
		})
	}
}

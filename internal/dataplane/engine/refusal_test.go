package engine

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// A handler that refuses a TLP of a neighbour, or one that is held, may say when it has room
// again: it is called then, not when its link is active the next time.
func TestARefusalMaySetATime(t *testing.T) {
	for _, held := range []bool{false, true} {
		name := map[bool]string{false: "a neighbour's", true: "held"}[held]
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			groups := n.pairOfGroups()
			asks, takes, far, near := &end{}, &end{}, &end{}, &end{}
			n.join(groups, n.configs(1, link.CipherNone), asks, far)
			n.join(groups, n.configs(2, link.CipherNone), takes, near)
			n.up(asks, takes, far, near)
			n.run(n.now+100*time.Millisecond, nil)

			room, at, mayTell := false, machine.Never, !held
			takes.receive = func(e Entry, _ *tlp.Packet) bool {
				if !room && mayTell && at == machine.Never {
					at = e.Now() + time.Millisecond
				}
				return room
			}
			takes.transmit = func(e Entry) { room = room || e.Now() >= at }
			takes.wake = func() time.Duration {
				if room {
					return machine.Never
				}
				return at
			}
			waits := !held
			asks.transmit = func(e Entry) {
				if waits && asks.binding.HandOver(e, takes.binding, numbered(0)) {
					waits = false
				}
			}
			if held {
				near.with(func(e Entry) {
					if err := near.binding.Send(e, numbered(0)); err != nil {
						t.Fatal(err)
					}
				})
				n.run(n.now+10*time.Millisecond, nil) // it is held, and its link is quiet
				mayTell = true
			}
			asks.with(func(e Entry) { asks.binding.Touch(e) })
			if !n.run(n.now+2*time.Millisecond, func() bool { return takes.arrived == 1 }) {
				t.Error("the TLP waits for longer than the handler says")
			}
		})
	}
}

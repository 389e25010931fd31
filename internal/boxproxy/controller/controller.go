// Package controller decides what a slot of a box does next. It compares the
// state that the manager wants with the state that the box sees, so any message
// may be lost or repeated.
//
//	free ─▶ PREPARING ─▶ READY ─▶ ATTACHED
//	            │            └──────┴─▶ LOST      the link or the device has failed
//	            └─▶ FAILED                        the binding was refused
//	any of them, when no longer wanted ─▶ RESETTING ─▶ free
//
// LOST and FAILED last until the manager no longer wants the binding.
package controller

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
)

const (
	// lookInterval is the time between two checks of a device. A guest learns of
	// a dead GPU within a second, and a box of idle GPUs needs little of the
	// processor.
	lookInterval = 250 * time.Millisecond
	// closeTimeout bounds the wait for the last datagrams of a link, which take
	// some milliseconds.
	closeTimeout = 50 * time.Millisecond
)

// Desired is the state of a slot that the manager wants.
type Desired struct {
	Binding *dxpuv1.DesiredBinding // nil: none
	Reset   uint64                 // number of the last reset asked for; 0: none
	Stop    bool                   // the proxy goes down: no binding is wanted
}

// Seen is the state of a slot as the box sees it.
type Seen struct {
	Empty   bool   // the slot holds no device
	Works   bool   // the device did at the last Look
	Detail  string // why it does not work
	Claimed bool   // between Claim and Release
	Linked  bool   // between Attach and Detach
	Link    link.State
	Why     string // why Link is down
	Jobs    int    // computations of the device that have not ended
	Err     error  // why an action of the last step failed; nil: all were done
}

// Verb is a kind of action.
type Verb uint8

// Verbs. The box carries out the actions of a step in order and skips the rest
// of them when one fails.
const (
	Look      Verb = iota + 1 // check the device
	Begin                     // start to report the wanted binding
	Report                    // report State and Detail
	End                       // stop reporting the binding
	Claim                     // enter the binding into the mapping table, which may refuse it
	Release                   // take it out of the table
	Attach                    // open the link
	Close                     // tell the peer Code and close the link
	Detach                    // remove the link
	Reset                     // reset the device
	Scrub                     // erase the memory of the device
	Confirm                   // report the reset of number Reset
	Readdress                 // send to the present addresses of the wanted peer
)

// String returns the name of the verb.
func (v Verb) String() string {
	return [...]string{
		"", "look", "begin", "report", "end", "claim", "release", "attach", "close", "detach", "reset", "scrub", "confirm", "readdress",
	}[v]
}

// Action is one thing to do.
type Action struct {
	Verb   Verb
	State  dxpuv1.BindingState // of Report
	Detail string              // of Report
	Code   engine.CloseCode    // of Close
	Reset  uint64              // of Confirm
}

// phase says what the controller waits for.
type phase uint8

const (
	free      phase = iota // a binding to make
	preparing              // the check of the device before a binding
	opening                // the outcome of Claim, Reset and Attach
	linked                 // a change of the link: READY, ATTACHED or LOST
	failed                 // the end of a binding that was refused
	closing                // the link to be down
	cleaning               // the end of the device's jobs
)

// Controller is the machine of one slot. The zero value is that of a free slot.
type Controller struct {
	phase   phase
	id      string // of the binding
	epoch   uint64
	peer    *dxpuv1.Peer        // the other end, with its addresses
	state   dxpuv1.BindingState // reported last
	dead    bool                // the peer was told that the device is lost
	reset   uint64              // number of the last reset made
	look    time.Duration       // when the device is checked next
	timeout time.Duration       // when a link that does not close is removed
}

// Step returns the next actions. The caller carries them out and calls Step
// again, until there are none; later calls follow a change of desired or seen,
// and the time that Wake returns.
func (c *Controller) Step(now time.Duration, want Desired, seen Seen) []Action {
	if want.Stop {
		want.Binding = nil
	}
	if now >= c.look && !seen.Empty && c.phase != opening { // whose outcome is in seen.Err
		c.look = now + lookInterval
		return []Action{{Verb: Look}}
	}
	if c.phase < closing && c.phase != free && !c.is(want.Binding) {
		return c.unbind(now, want, seen)
	}
	switch c.phase {
	case free:
		return c.idle(now, want, seen)
	case preparing:
		if seen.Works {
			c.phase, c.peer = opening, want.Binding.GetPeer()
			return []Action{{Verb: Claim}, {Verb: Reset}, {Verb: Attach}}
		}
		c.phase = failed
		return []Action{c.report(dxpuv1.BindingState_BINDING_STATE_FAILED, seen.Detail)}
	case opening:
		return c.opened(seen)
	case linked:
		return c.follow(want.Binding, seen)
	case closing:
		if seen.Linked && seen.Link != link.Down && now < c.timeout {
			return nil
		}
		c.phase = cleaning
		return []Action{{Verb: Detach}, {Verb: Reset}}
	case cleaning:
		if seen.Jobs > 0 { // they work on the memory of the device
			return nil
		}
		*c = Controller{reset: c.reset, look: c.look}
		return []Action{{Verb: Scrub}, {Verb: Release}, {Verb: End}}
	case failed:
	}
	return nil
}

// idle begins a binding or makes a reset.
func (c *Controller) idle(now time.Duration, want Desired, seen Seen) []Action {
	switch {
	case want.Binding != nil:
		c.phase, c.id, c.epoch, c.peer = preparing, want.Binding.BindingId, want.Binding.Epoch, want.Binding.GetPeer()
		actions := []Action{{Verb: Begin}, c.report(dxpuv1.BindingState_BINDING_STATE_PREPARING, "")}
		if !seen.Empty {
			c.look = now + lookInterval
			actions = append(actions, Action{Verb: Look})
		}
		return actions
	case want.Reset != c.reset && want.Reset != 0 && !seen.Empty:
		// A report with the reset shows the device as it is afterwards.
		c.reset = want.Reset
		return []Action{{Verb: Reset}, {Verb: Scrub}, {Verb: Look}, {Verb: Confirm, Reset: want.Reset}}
	}
	return nil
}

// opened reports the outcome of an attempt to open the link.
func (c *Controller) opened(seen Seen) []Action {
	if seen.Err == nil {
		c.phase = linked
		return []Action{c.report(dxpuv1.BindingState_BINDING_STATE_READY, "")}
	}
	c.phase = failed
	var actions []Action
	if seen.Claimed {
		actions = []Action{{Verb: Reset}, {Verb: Scrub}, {Verb: Release}}
	}
	return append(actions, c.report(dxpuv1.BindingState_BINDING_STATE_FAILED, seen.Err.Error()))
}

// follow reports the changes of the link, and closes it when the device has
// failed: the host must know at once. A host that has been restarted before the link
// was up may listen at another address.
func (c *Controller) follow(want *dxpuv1.DesiredBinding, seen Seen) []Action {
	const ready, attached, lost = dxpuv1.BindingState_BINDING_STATE_READY, dxpuv1.BindingState_BINDING_STATE_ATTACHED,
		dxpuv1.BindingState_BINDING_STATE_LOST
	switch {
	case seen.Link == link.Up && c.state == ready:
		return []Action{c.report(attached, "")}
	case c.state == ready && seen.Link != link.Down && !proto.Equal(c.peer, want.GetPeer()):
		c.peer = want.GetPeer()
		return []Action{{Verb: Readdress}}
	case c.state == ready && seen.Err != nil: // of Readdress
		return []Action{c.report(lost, seen.Err.Error())}
	case seen.Link == link.Down && c.state != lost:
		return []Action{c.report(lost, seen.Why)}
	case seen.Link != link.Down && !seen.Works && !c.dead:
		c.dead = true
		return []Action{{Verb: Close, Code: engine.CloseDeviceLost}}
	}
	return nil
}

// unbind takes down a binding that is not wanted.
func (c *Controller) unbind(now time.Duration, want Desired, seen Seen) []Action {
	actions := []Action{c.report(dxpuv1.BindingState_BINDING_STATE_RESETTING, "")}
	switch {
	case seen.Linked:
		c.phase, c.timeout = closing, now+closeTimeout
		code := engine.CloseDetached
		if want.Stop {
			code = engine.CloseShutdown
		}
		return append(actions, Action{Verb: Close, Code: code})
	case seen.Claimed:
		c.phase = cleaning
		return append(actions, Action{Verb: Reset})
	}
	*c = Controller{reset: c.reset, look: c.look}
	return append(actions, Action{Verb: End})
}

func (c *Controller) report(state dxpuv1.BindingState, detail string) Action {
	c.state = state
	return Action{Verb: Report, State: state, Detail: detail}
}

func (c *Controller) is(b *dxpuv1.DesiredBinding) bool {
	return b != nil && b.BindingId == c.id && b.Epoch == c.epoch
}

// Follows reports whether the slot takes account of the wanted state: it has
// begun the wanted binding, or the former one is gone.
func (c *Controller) Follows(want Desired) bool {
	if want.Binding == nil || want.Stop {
		return c.phase == free
	}
	return c.phase < closing && c.phase != free && c.is(want.Binding)
}

// Wake returns when Step is due without a change of its input. An empty slot
// need not wake.
func (c *Controller) Wake() time.Duration {
	if c.phase == closing {
		return min(c.look, c.timeout)
	}
	return c.look
}

// String describes the action, for scenarios and logs.
func (a Action) String() string {
	switch a.Verb {
	case Report:
		return strings.TrimSuffix(fmt.Sprintf("report %s: %s", strings.TrimPrefix(a.State.String(), "BINDING_STATE_"), a.Detail), ": ")
	case Close:
		return fmt.Sprintf("close: %v", a.Code)
	case Confirm:
		return fmt.Sprintf("confirm reset %d", a.Reset)
	}
	return a.Verb.String()
}

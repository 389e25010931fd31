// Package controller decides what a slot of a host does next. It compares the
// binding that the manager wants with the state that the host sees, so any
// message may be lost or repeated.
//
//	empty ─▶ PREPARING: open the link, show the device ─▶ ATTACHED ─▶ LOST      the link is down
//	           │      ▲ the VM answers                        └─▶ ejected ─▶    the guest removed it
//	           ├─▶ waiting: there is no VM, or it does not answer
//	           └─▶ FAILED
//	any of them, when no longer wanted ─▶ DETACHING: take the device away ─▶ empty
//
// FAILED and LOST last until the manager no longer wants the binding. A host that
// refuses the device is asked again a few times, with growing pauses, before FAILED. A
// VM that is absent is waited for without limit, because it may be started later.
package controller

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

const (
	// linkTimeout bounds the time in which the box opens the link of a binding
	// that the manager says is ready.
	linkTimeout = 10 * time.Second
	// lookInterval is the time between two looks at a device that the VM should
	// have and is not connected to.
	lookInterval = 500 * time.Millisecond
	// ejectedInterval is the same for a device that the guest has removed: another VM
	// gets it back.
	ejectedInterval = 2 * time.Second
	// strayLooks is the number of looks that must find the device in the VM
	// without a connection before it is plugged in again: the VM may be about to
	// remove it.
	strayLooks = 3
	// plugAttempts is how often a host that refuses a device is asked. A root port
	// may still be busy with the last device; a wrong configuration stays wrong.
	plugAttempts = 4
	// plugPause is the pause after the first refusal or the first look for a VM.
	// Each further pause is twice as long, up to maxPlugPause for refusals and
	// maxVMPause for a VM, which an operator starts and then watches.
	plugPause    = 500 * time.Millisecond
	maxPlugPause = 30 * time.Second
	maxVMPause   = 2 * time.Second
)

// Desired is the state of a slot that the manager wants.
type Desired struct {
	Binding *dxpuv1.DesiredBinding // nil: none
	Stop    bool                   // the proxy goes down: no binding is wanted
}

// Guest is the outcome of a look at a device that is plugged in.
type Guest uint8

// Outcomes.
const (
	Connected   Guest = iota // the VM is connected, or the host has no VM
	Silent                   // the VM does not answer; Seen.Detail has the error
	Present                  // the VM has the device, but is not connected to it
	Removed                  // the same VM no longer has the device: the guest removed it
	Restarted                // another VM answers, without the device
	EjectedLate              // the guest removed it, by a request to eject the device that was in the slot before
)

// String returns the name.
func (g Guest) String() string {
	return [...]string{"connected", "silent", "present", "removed", "restarted", "ejected-late"}[g]
}

// Fault says on which side an action failed.
type Fault uint8

// Faults.
const (
	DeviceFault Fault = iota // the device or its link: another device may work
	HostFault                // the host: another device would not help
	VMAbsent                 // there is no VM, or it does not answer: it may later
)

// Seen is the state of a slot as the host sees it.
type Seen struct {
	Link      link.State
	Why       string // why Link is down
	Connected bool   // see Guest
	Guest     Guest  // outcome of the last Look
	Detail    string // of Guest
	Err       error  // why an action of the last step failed; nil: all were done
	Fault     Fault  // of Err
}

// Verb is a kind of action.
type Verb uint8

// Verbs. The host carries out the actions of a step in order and skips the rest
// of them when one fails.
const (
	Begin     Verb = iota + 1 // start to report the wanted binding
	Report                    // report State and Detail
	Note                      // add Detail and Waiting to the report of the present state
	End                       // stop reporting the binding
	Open                      // start to open the link
	Readdress                 // send to the present addresses of the wanted peer
	Plug                      // enter the binding into the mapping table and show the device to the host
	Look                      // find out what the VM has
	Replug                    // show the device again
	Eject                     // report that the guest has removed the device
	Return                    // report that the VM has a device again that the guest had removed
	Unplug                    // ask the host to let go of the device, for at most Timeout
	Close                     // tell the peer Code, take the device away and remove the link
)

// String returns the name of the verb.
func (v Verb) String() string {
	return [...]string{"", "begin", "report", "note", "end", "open", "readdress", "plug", "look", "replug", "eject", "return", "unplug", "close"}[v]
}

// Action is one thing to do.
type Action struct {
	Verb    Verb
	State   dxpuv1.BindingState // of Report
	Reason  dxpuv1.Reason       // of Report
	Detail  string              // of Report and Note
	Waiting bool                // of Note: the binding waits for a VM
	Timeout time.Duration       // of Unplug
	Code    engine.CloseCode    // of Close
}

// String describes the action, for scenarios and logs.
func (a Action) String() string {
	switch a.Verb {
	case Report:
		out := fmt.Sprintf("report %v", a.State)
		if a.Reason != 0 {
			out += fmt.Sprintf(" (%v)", a.Reason)
		}
		if a.Detail != "" {
			out += ": " + a.Detail
		}
		return out
	case Note:
		if a.Waiting {
			return "note, waiting: " + a.Detail
		}
		return "note: " + a.Detail
	case Unplug:
		return fmt.Sprintf("unplug within %v", a.Timeout)
	case Close:
		return fmt.Sprintf("close: %v", a.Code)
	}
	return a.Verb.String()
}

// phase says what the controller waits for.
type phase uint8

const (
	empty      phase = iota // a binding to make
	opening                 // the link to be up
	plugging                // the outcome of Plug
	pausing                 // the time of the next Plug
	attached                // a change of the link or of the guest
	looking                 // the outcome of Look
	replugging              // the outcome of Replug
	ended                   // the end of a binding that has failed or was lost
)

// Controller is the machine of one slot.
type Controller struct {
	// UnplugTimeout bounds the wait for the host when the manager does not say.
	UnplugTimeout time.Duration

	phase     phase
	id        string // of the binding
	epoch     uint64
	unplug    time.Duration // of the binding
	peer      *dxpuv1.Peer  // the other end, with its addresses
	deadline  time.Duration // of opening
	refusals  int           // of Plug or Replug, in a row
	absences  int           // of the VM, in a row
	retry     time.Duration // when Plug is due again
	look      time.Duration // when the guest is looked at next
	connected bool          // at the last Step
	strays    int           // looks in a row that found Present
	ejected   bool          // the guest has removed the device
	replugs   uint32        // of the manager's wishes, those carried out
}

// Step returns the next actions. The caller carries them out and calls Step
// again, until there are none; later calls follow a change of want or seen, and
// the time that Wake returns.
func (c *Controller) Step(now time.Duration, want Desired, seen Seen) []Action {
	if want.Stop {
		want.Binding = nil
	}
	if c.phase != empty && !c.is(want.Binding) {
		return c.detach(want.Stop)
	}
	switch c.phase {
	case empty:
		if want.Binding != nil {
			return c.begin(now, want.Binding)
		}
	case opening:
		return c.open(now, want.Binding, seen)
	case plugging:
		return c.plugged(now, seen)
	case pausing:
		return c.pause(now, seen)
	case attached:
		return c.follow(now, want.Binding, seen)
	case looking:
		return c.looked(want.Binding, seen)
	case replugging:
		return c.replugged(now, seen)
	case ended:
	}
	return nil
}

// begin starts to attach.
func (c *Controller) begin(now time.Duration, b *dxpuv1.DesiredBinding) []Action {
	*c = Controller{
		UnplugTimeout: c.UnplugTimeout, phase: opening, id: b.BindingId, epoch: b.Epoch,
		unplug: c.UnplugTimeout, peer: b.GetPeer(), deadline: now + linkTimeout, replugs: b.Replugs,
	}
	if b.UnplugTimeout != nil {
		c.unplug = b.UnplugTimeout.AsDuration()
	}
	return []Action{{Verb: Begin}, report(dxpuv1.BindingState_BINDING_STATE_PREPARING, ""), {Verb: Open}}
}

// open waits for the link. A peer that has been restarted meanwhile may listen at
// another address.
func (c *Controller) open(now time.Duration, want *dxpuv1.DesiredBinding, seen Seen) []Action {
	switch {
	case seen.Err != nil:
		return c.fail(seen.Fault, seen.Err.Error())
	case seen.Link == link.Up:
		return c.plug()
	case seen.Link == link.Down:
		return c.fail(DeviceFault, "link: "+seen.Why)
	case !proto.Equal(c.peer, want.GetPeer()):
		c.peer = want.GetPeer()
		return []Action{{Verb: Readdress}}
	case now >= c.deadline:
		return c.fail(DeviceFault, fmt.Sprintf("the box did not open the link within %v", linkTimeout))
	}
	return nil
}

func (c *Controller) plug() []Action {
	c.phase = plugging
	return []Action{{Verb: Plug}}
}

// plugged acts on the outcome of Plug.
func (c *Controller) plugged(now time.Duration, seen Seen) []Action {
	switch {
	case seen.Err == nil:
		c.phase, c.look, c.strays, c.refusals, c.absences = attached, now, 0, 0, 0
		return []Action{report(dxpuv1.BindingState_BINDING_STATE_ATTACHED, "")}
	case seen.Link == link.Down: // so QEMU had no device to plug in
		return c.fail(DeviceFault, "link: "+seen.Why)
	case seen.Fault == VMAbsent:
		c.absences++
		c.phase, c.retry = pausing, now+pauseAfter(c.absences, maxVMPause)
		return []Action{{Verb: Note, Detail: seen.Err.Error(), Waiting: true}}
	case seen.Fault == HostFault:
		c.absences = 0
		if c.refusals++; c.refusals >= plugAttempts {
			return c.fail(HostFault, seen.Err.Error())
		}
		c.phase, c.retry = pausing, now+pauseAfter(c.refusals, maxPlugPause)
		return []Action{{Verb: Note, Detail: seen.Err.Error() + " (it is tried again)"}}
	}
	return c.fail(seen.Fault, seen.Err.Error())
}

// pause waits for the next attempt to plug the device in, while the link stays up.
func (c *Controller) pause(now time.Duration, seen Seen) []Action {
	switch {
	case seen.Link == link.Down:
		return c.fail(DeviceFault, "link: "+seen.Why)
	case now >= c.retry:
		return c.plug()
	}
	return nil
}

// pauseAfter returns the pause after a number of attempts that failed in a row.
func pauseAfter(attempts int, most time.Duration) time.Duration {
	pause := plugPause
	for i := 1; i < attempts && pause < most; i++ {
		pause *= 2
	}
	return min(pause, most)
}

// fail reports the reason before it closes the link: the box then reports a link that
// its peer has closed, and that must not be the first news.
func (c *Controller) fail(f Fault, why string) []Action {
	c.phase = ended
	reason := dxpuv1.Reason_REASON_ATTACH_FAILED
	if f != DeviceFault {
		reason = dxpuv1.Reason_REASON_HOST_FAILED
	}
	return []Action{
		{Verb: Report, State: dxpuv1.BindingState_BINDING_STATE_FAILED, Reason: reason, Detail: why},
		{Verb: Close, Code: engine.CloseDetached},
	}
}

// follow watches an attached device. A device whose link is down is taken away:
// the proxy has answered the host in its place since, and now removes it.
func (c *Controller) follow(now time.Duration, want *dxpuv1.DesiredBinding, seen Seen) []Action {
	if seen.Link == link.Down {
		c.phase = ended
		return []Action{
			report(dxpuv1.BindingState_BINDING_STATE_LOST, seen.Why),
			{Verb: Unplug, Timeout: c.unplug},
			{Verb: Close, Code: engine.CloseDeviceLost},
		}
	}
	if c.ejected {
		if want.Replugs > c.replugs {
			return c.replug(want)
		}
		return c.lookAgain(now, ejectedInterval)
	}
	c.replugs = want.Replugs // the device is there
	if c.connected = seen.Connected; c.connected {
		c.strays, c.refusals, c.look = 0, 0, now // the end of the connection calls for a look at once
		return nil
	}
	return c.lookAgain(now, lookInterval)
}

// lookAgain looks at the guest if that is due, and sets the time of the next look.
func (c *Controller) lookAgain(now, interval time.Duration) []Action {
	if now < c.look {
		return nil
	}
	c.phase, c.look = looking, now+interval
	return []Action{{Verb: Look}}
}

// looked acts on the outcome of a look.
func (c *Controller) looked(want *dxpuv1.DesiredBinding, seen Seen) []Action {
	c.phase = attached
	switch {
	case c.ejected && seen.Guest == Present && seen.Connected: // an operator has plugged it in by hand
		c.ejected = false
		return []Action{{Verb: Return}}
	case c.ejected && seen.Guest != Restarted: // it is as it was
	case seen.Guest == Silent: // the VM is gone, or will answer later
		return []Action{{Verb: Note, Detail: "the VM does not answer: " + seen.Detail}}
	case seen.Guest == Present: // the connection broke
		if c.strays++; c.strays >= strayLooks {
			return c.replug(want)
		}
	case seen.Guest == Restarted, seen.Guest == EjectedLate:
		return c.replug(want)
	case seen.Guest == Removed:
		c.ejected = true
		return []Action{{Verb: Eject}}
	}
	return nil
}

// replug shows the device again.
func (c *Controller) replug(want *dxpuv1.DesiredBinding) []Action {
	c.phase, c.strays, c.replugs = replugging, 0, want.Replugs
	return []Action{{Verb: Replug}}
}

// replugged reports the outcome of Replug.
func (c *Controller) replugged(now time.Duration, seen Seen) []Action {
	c.phase = attached
	if seen.Err != nil {
		c.refusals++
		c.look = now + pauseAfter(c.refusals, maxPlugPause)
		return []Action{{Verb: Note, Detail: "the device cannot be plugged in again: " + seen.Err.Error()}}
	}
	c.look, c.refusals, c.ejected = now+lookInterval, 0, false
	return nil
}

// detach takes a binding down that is not wanted. A proxy that goes down waits for the host
// as long as for any other detach: a device that stays plugged in does not answer then, its
// socket closes under a guest that may use it, and Linux waits a minute for such a device.
func (c *Controller) detach(stop bool) []Action {
	actions := []Action{
		report(dxpuv1.BindingState_BINDING_STATE_DETACHING, ""),
		{Verb: Unplug, Timeout: c.unplug},
		{Verb: Close, Code: engine.CloseDetached},
		{Verb: End},
	}
	if stop {
		actions[2].Code = engine.CloseShutdown
	}
	*c = Controller{UnplugTimeout: c.UnplugTimeout}
	return actions
}

func report(state dxpuv1.BindingState, detail string) Action {
	return Action{Verb: Report, State: state, Detail: detail}
}

func (c *Controller) is(b *dxpuv1.DesiredBinding) bool {
	return b != nil && b.BindingId == c.id && b.Epoch == c.epoch
}

// Has reports whether the slot has begun a binding.
func (c *Controller) Has(b *dxpuv1.DesiredBinding) bool { return c.phase != empty && c.is(b) }

// Adopt makes the successor of the binding the slot's binding, after a live migration.
func (c *Controller) Adopt(b *dxpuv1.DesiredBinding) {
	c.id, c.epoch, c.peer = b.BindingId, b.Epoch, b.GetPeer()
}

// Follows reports whether the slot takes account of the wanted state: it has
// begun the wanted binding, or the former one is gone.
func (c *Controller) Follows(want Desired) bool {
	if want.Binding == nil || want.Stop {
		return c.phase == empty
	}
	return c.phase != empty && c.is(want.Binding)
}

// Replugs returns the number of the last of the manager's wishes to plug the
// device in again that was carried out.
func (c *Controller) Replugs() uint32 { return c.replugs }

// Wake returns when Step is due without a change of its input, or
// machine.Never.
func (c *Controller) Wake() time.Duration {
	switch c.phase {
	case opening:
		return c.deadline
	case pausing:
		return c.retry
	case attached:
		if c.ejected || !c.connected {
			return c.look
		}
	}
	return machine.Never
}

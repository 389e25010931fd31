// Package device defines the device in a slot of a box: a PCI Express function
// as a pure machine that takes and emits TLPs.
package device

import (
	"time"

	"github.com/dxpu-project/dxpu/tlp"
)

// ResetKind says how far a reset goes (PCI Express Base Specification, section 6.6).
type ResetKind uint8

// Kinds of reset.
const (
	// ConventionalReset clears all state of the function, sticky bits included, as
	// a hot reset does. Counters of the hardware's health may stay.
	ConventionalReset ResetKind = iota
	// FunctionLevelReset keeps the sticky bits and the captured bus number.
	FunctionLevelReset
)

// Device is one endpoint function as a machine: no goroutine, no clock, no
// I/O. The owner calls its methods from one goroutine at a time and passes the
// time since an arbitrary start, which never goes backwards. A device may have
// the abilities of abilities.go as well.
//
// Transmit emits TLPs in the order in which they go on the wire. A device that
// keeps PCI Express ordering emits its posted writes before the completion or
// the interrupt that follows them.
type Device interface {
	// Receive hands the device one TLP from upstream. Its payload has up to
	// pcie.MaxPayload bytes, also if the device itself supports less: neighbours
	// in the pool have limits of their own. p and p.Data are valid
	// only during the call: the device copies the parts that it keeps, and emits
	// the answers later. It returns false if it cannot take the TLP now: the
	// owner offers the TLP again after a later Transmit, before any other. Such a
	// device is a Notifier. A machine without a queue to another process takes
	// every TLP.
	Receive(now time.Duration, p *tlp.Packet) bool

	// Transmit emits TLPs towards the host until the device has none left or
	// emit refuses one by returning false. The device offers a refused TLP again
	// at the next call. The packet given to emit is valid only during that call.
	Transmit(now time.Duration, emit func(p *tlp.Packet) bool)

	// Wake returns when Transmit wants to be called without new input, or
	// machine.Never.
	Wake() time.Duration

	// NextJob hands over a computation that takes long (a kernel, a large copy
	// inside the device). The owner calls Job.Run until that returns false, on
	// another goroutine if it likes, and then gives the job back with FinishJob. ok
	// is false when the device has no job now.
	NextJob() (job Job, ok bool)

	// FinishJob takes a job back after the last Run has returned.
	FinishJob(now time.Duration, job Job)

	// Reset resets the device and drops the TLPs that it has not emitted. The
	// owner still gives back a job that is out, whose Run returns false from now on;
	// the device ignores its result.
	Reset(now time.Duration, kind ResetKind)
}

// Job is a computation on memory that belongs to the device until the job is
// finished.
type Job interface {
	// Run computes for some milliseconds and touches only the job. It returns
	// true if the owner has to call it again. The owner runs the jobs of other
	// devices between two calls. Run returns false at once when the device does not
	// want the result any more.
	Run() (more bool)
	// Cost is the time that the modelled hardware takes: the simulator finishes
	// the job that much later in virtual time.
	Cost() time.Duration
}

// Package device defines what a box slot holds: a PCI Express function as a
// pure machine that takes TLPs and gives TLPs.
package device

import (
	"time"

	"github.com/dxpu-project/dxpu/tlp"
)

// ResetKind says how far a reset goes (PCI Express Base Specification, section 6.6).
type ResetKind uint8

// Kinds of reset.
const (
	// ConventionalReset is what a hot reset or a power cycle does: all state
	// goes, sticky bits too.
	ConventionalReset ResetKind = iota
	// FunctionLevelReset leaves the sticky bits and the captured bus number.
	FunctionLevelReset
)

// Device is one endpoint function as a machine: no goroutine, no clock, no
// I/O. The owner calls its methods from one goroutine at a time and passes the
// time since some start that never goes backwards.
//
// The order of the TLPs that Transmit emits is the order on the wire; a device
// that keeps PCI Express ordering emits its posted writes before the
// completion or the interrupt that follows them.
type Device interface {
	// Receive hands the device one TLP from upstream. p and p.Data are valid
	// only during the call: the device copies what it keeps. A device takes
	// every TLP at once; what it must answer it emits later.
	Receive(now time.Duration, p *tlp.Packet)

	// Transmit emits TLPs towards the host until the device has none or emit
	// refuses one by returning false; a refused TLP is offered again at the
	// next call. The packet given to emit is valid only during that call.
	Transmit(now time.Duration, emit func(p *tlp.Packet) bool)

	// Wake returns when Transmit wants to be called without new input, or
	// machine.Never.
	Wake() time.Duration

	// NextJob hands over work that takes long (a kernel, a large copy inside
	// the device). The owner calls Job.Run, on another goroutine if it likes,
	// and then gives the job back with FinishJob. ok is false when there is
	// nothing to do now.
	NextJob() (job Job, ok bool)

	// FinishJob takes a job back after Run has returned.
	FinishJob(now time.Duration, job Job)

	// Reset resets the device and drops whatever it wanted to emit. A job
	// that is out is still given back, and then ignored.
	Reset(now time.Duration, kind ResetKind)
}

// Job is a piece of computation on memory that belongs to the device until the
// job is finished.
type Job interface {
	// Run computes. It may take long and touches nothing but the job.
	Run()
	// Cost is how long the modelled hardware takes: the simulator finishes
	// the job that much later in virtual time.
	Cost() time.Duration
}

// Notifier is implemented by devices that get something to emit without being
// called: those that stand for another process. notify may be called from any
// goroutine and asks the owner to call Transmit soon.
type Notifier interface {
	SetNotify(notify func())
}

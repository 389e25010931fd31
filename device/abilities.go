package device

import (
	"context"
	"time"

	"github.com/dxpu-project/dxpu/pcie"
)

// A device has an optional ability by implementing one of the interfaces below.
// The owner calls their methods as it calls those of Device, one at a time,
// unless the method says otherwise.

// Info describes a device to the pool and to the mapping table.
type Info struct {
	Model          string
	Serial         string
	Memory         uint64 // bytes
	Vendor, Device uint16
	BARs           [pcie.MaxBARs]pcie.BAR
}

// Describer is a device that describes itself. The description may change while
// the device is unhealthy, because a server in another process that returns may
// serve another device.
type Describer interface{ Info() Info }

// Checker is a device that knows whether it works.
type Checker interface {
	// Check returns false and the reason when the device does not work. It
	// reports a failure at least once, even if the device has recovered since.
	Check() (ok bool, detail string)
}

// ErrorCount is the count of one error code, such as an XID.
type ErrorCount struct {
	Code  uint32
	Count uint64 // since the device was made; it only grows
}

// ErrorCounter is a device that counts its errors.
type ErrorCounter interface {
	// Errors returns the counts in the order of their codes.
	Errors() []ErrorCount
}

// Scrubber is a device with memory that must not pass from one tenant to the next.
type Scrubber interface {
	// Scrub erases the memory. The owner resets the device first and waits for
	// its jobs.
	Scrub()
}

// TagCounter is a device that counts its outstanding requests.
type TagCounter interface {
	// TagsInUse returns the number of outstanding requests and its limit.
	TagsInUse() (n, limit int)
}

// Limits bound the TLPs that a device sends.
type Limits struct {
	MaxPayload     pcie.PayloadSize // bytes of a write or a completion
	MaxReadRequest pcie.PayloadSize // bytes of a read request
	Tags           int              // requests outstanding
}

// NetworkLimits returns the limits of the network between two proxies: a TLP there
// carries up to 4096 bytes, and a tag has ten bits.
func NetworkLimits() Limits {
	return Limits{MaxPayload: pcie.MaxPayload, MaxReadRequest: pcie.MaxPayload, Tags: pcie.MaxTags}
}

// Limited is a device that can work with limits other than those in its Device
// Control registers. These follow the links above the device, of which the
// network is none: a guest finds the 128 bytes of its VMM's root port.
type Limited interface {
	// SetLimits replaces Max_Payload_Size, Max_Read_Request_Size and the tag
	// enables by the given limits, and resets keep these. The registers store the
	// values that software writes, without effect. The device never exceeds its
	// own Device Capabilities. The owner calls SetLimits while no request is
	// outstanding.
	SetLimits(l Limits)
}

// Patient is a device whose requests have Completion Timeouts.
type Patient interface {
	// SetSlack replaces the function that returns by how much a request may exceed its
	// deadline at present, of which the timeout is over: where processors are busy, an answer
	// is late although the host works. The device calls it during Transmit, when a deadline
	// has passed, and again when the time has passed that it returned. Without it requests end at
	// their deadline.
	SetSlack(slack func(deadline, timeout time.Duration) time.Duration)
}

// Notifier is a device that gets TLPs to emit, or room for TLPs that it refused,
// without being called, because it stands for another process. It may call
// notify from any goroutine to ask its owner to call Transmit.
type Notifier interface{ SetNotify(notify func()) }

// Poller is a device that stands for another process and can be polled for its
// messages. A goroutine that reads a network polls it beside the network, so that
// an answer of that process needs no other goroutine. Any goroutine may call the
// methods, without having entered anything.
type Poller interface {
	// Due reports whether an answer is likely to come within microseconds.
	Due() bool
	// Poll takes the messages that have arrived and notifies the owner, see
	// Notifier. It does not wait, and reports whether there was a message.
	Poll() bool
	// Hold returns the descriptor of the socket that brings the answers that are due, for
	// a caller that sleeps until this socket or its own is readable and then calls Poll.
	// The descriptor stays open until the caller calls release, which is nil if no answer
	// is due or another goroutine takes it.
	Hold() (fd uintptr, release func())
}

// Runner is a device with work of its own, such as a connection. The owner calls
// Run beside the other methods, ends ctx after the last of them, and waits for
// Run to return.
type Runner interface{ Run(ctx context.Context) }

package engine

import (
	"context"
	"net/netip"
	"time"
)

// Driver runs the groups and the controllers of one proxy: netio.Fabric with
// sockets, locks and goroutines, a node of the simulator in virtual time. The
// code of a proxy waits only in Signal.Wait and in GroupDriver.Detach, or in the
// calls of its front, so a driver can run other code meanwhile.
type Driver interface {
	// Now returns the time that entries have.
	Now() time.Duration
	// WallTime returns the date and time of day, for reports and timelines.
	WallTime() time.Time
	// Addrs and MTUs return the local address of each path, and the largest
	// datagram that it takes, in bytes.
	Addrs() []netip.AddrPort
	MTUs() []int
	// NewGroup makes an empty group.
	NewGroup() GroupDriver
	// NewSignal makes a signal that is not set.
	NewSignal() Signal
	// AfterFunc calls f once after d. f may enter groups.
	AfterFunc(d time.Duration, f func()) Timer
	// Poll asks the driver to look at a source of messages while it waits for the
	// network and an answer of the source is due. A driver may ignore it.
	Poll(s Source)
	// Compute calls run, a part of a device's computation, until it returns false,
	// and then done. cost is the time of the whole computation. Other code of the
	// proxy goes on meanwhile, and computations take turns. done may enter groups.
	Compute(run func() (more bool), cost time.Duration, done func())
}

// Source brings messages beside the network, see device.Poller.
type Source interface {
	Due() bool
	Poll() bool
	Hold() (fd uintptr, release func())
}

// GroupDriver gives code of a proxy its turn in a group.
type GroupDriver interface {
	// Enter waits for exclusive access and begins an entry.
	Enter() Entry
	// Leave settles the group and ends the entry.
	Leave(e Entry)
	// LeaveSoon is Leave for callers that enter again at once: TLPs may wait a
	// little for the next Leave.
	LeaveSoon(e Entry)
	// Post runs f in an entry: at once if the group is free, otherwise before
	// the present entry ends. It does not wait.
	Post(f func(e Entry))
	// Attach adds a binding to the group, see Group.Attach.
	Attach(e Entry, cfg BindingConfig) (*Binding, error)
	// Readdress gives a binding other addresses of its peer, see Binding.Readdress.
	Readdress(e Entry, b *Binding, peers []netip.AddrPort) error
	// Detach removes a binding. After Shutdown it waits until the link has told
	// the peer. The caller must not have entered the group.
	Detach(b *Binding)
}

// Signal wakes one controller. Signals that are set again before the wait count
// once.
type Signal interface {
	// Set wakes the controller. It does not wait.
	Set()
	// Wait returns true when the signal is set, and clears it. It returns false
	// after the timeout or when ctx ends.
	Wait(ctx context.Context, timeout time.Duration) bool
}

// Timer is what AfterFunc returns, with the methods of time.Timer.
type Timer interface {
	Reset(d time.Duration) bool
	Stop() bool
}

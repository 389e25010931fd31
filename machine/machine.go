// Package machine holds what the state machines of this module share: the value
// for "no wake-up" and a queue of timed events.
//
// A machine is a value without a clock, goroutine, lock, log or I/O. Its owner
// drives it and passes now, the time since some start, which never goes
// backwards. The methods have the same names everywhere:
//
//   - Receive(now, input) hands the machine a message: a TLP, a datagram, a report.
//   - Transmit(now, ...) takes out what the machine has to send at this time.
//   - Wake() returns when Transmit is due without further input, or Never.
//
// A daemon drives a machine with sockets and a timer, the simulator in virtual
// time, and a test by hand.
package machine

import (
	"math"
	"time"
)

// Never is the wake-up time of a machine that waits for input only.
const Never = time.Duration(math.MaxInt64)

// After returns now+d, or Never if the sum overflows.
func After(now, d time.Duration) time.Duration {
	if now > Never-d {
		return Never
	}
	return now + d
}

package reader

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Polling says for how long a reader looks again and again for what it waits
// for before it sleeps in the kernel. Waking a sleeping processor takes some
// microseconds, in a virtual machine most of what a short message takes
// altogether; polling takes the processor meanwhile. The zero value does not poll.
type Polling struct {
	// Window is how long a reader polls that takes part in an exchange of short
	// messages, as long as each comes within the window: an idle reader sleeps,
	// and so does one of bulk traffic. Between two looks others may run, and
	// while others want the processor nobody polls.
	Window time.Duration
	// Spin is how long a reader polls each time, and lets nobody else run
	// meanwhile: for processors that have nothing else to do.
	Spin time.Duration
}

// DefaultWindow is a good Polling.Window: a few round trips of a network within
// one building, and too short to be felt by anybody else.
const DefaultWindow = 50 * time.Microsecond

// Brief is the most that goes each way in an exchange of short messages, in
// bytes: a register's read or write with everything around it.
const Brief = 256

// Poller waits as its Polling says. It belongs to one goroutine at a time.
type Poller struct {
	Polling
	soon  bool      // the last wait of an exchange was over within the window
	rests time.Time // until then others want the processor
}

const (
	// crowded is how long it takes at least to be let run again when it was not a
	// partner of the exchange who ran meanwhile, but somebody who used up his time slice.
	crowded = 200 * time.Microsecond
	// rest is for how long nobody polls then.
	rest = 100 * time.Millisecond
)

// Wait calls receive(false) as often as the Polling says, until it returns
// anything but ErrNothing, and then receive(true). brief says that what is
// waited for is part of an exchange of short messages.
func (p *Poller) Wait(brief bool, receive func(block bool) error) error {
	if p.Spin > 0 {
		return p.spin(receive)
	}
	if !brief || p.Window == 0 {
		return receive(true)
	}
	start := time.Now()
	if p.soon && start.After(p.rests) {
		if err := p.poll(start, receive); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	err := receive(true)
	p.soon = err == nil && time.Since(start) <= p.Window
	return err
}

// poll returns ErrNothing when polling is over and nothing has come.
func (p *Poller) poll(start time.Time, receive func(block bool) error) error {
	for last := start; ; {
		if err := receive(false); !errors.Is(err, ErrNothing) {
			return err
		}
		// Others' time slices may pass: the scheduler of Go is told, too.
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		now := time.Now()
		if now.Sub(last) >= crowded {
			p.rests = now.Add(rest)
			return ErrNothing
		}
		if now.Sub(start) >= p.Window {
			return ErrNothing
		}
		last = now
	}
}

func (p *Poller) spin(receive func(block bool) error) error {
	for start := time.Now(); time.Since(start) < p.Spin; {
		if err := receive(false); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	return receive(true)
}

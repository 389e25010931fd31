package cli

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// readKeys makes single keys readable, without echo, and returns the former state of
// the terminal. Ctrl-C stays a signal, unlike in term.MakeRaw.
func readKeys(f *os.File) (*term.State, error) {
	fd := int(f.Fd())
	old, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	t.Lflag &^= unix.ICANON | unix.ECHO
	return old, unix.IoctlSetTermios(fd, unix.TCSETS, t)
}

// keyPoll bounds the delay with which waitForQuit notices the end of its context.
const keyPoll = 100 * time.Millisecond

// waitForQuit returns when q is pressed or ctx ends, or when the terminal is gone.
func waitForQuit(ctx context.Context, f *os.File) {
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(keyPoll.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if n <= 0 {
			continue
		}
		var key [1]byte
		if _, err := f.Read(key[:]); err != nil || key[0] == 'q' || key[0] == 'Q' {
			return
		}
	}
}

package cli

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// terminalState is how a terminal was before its keys were read.
type terminalState struct{ termios unix.Termios }

// isTTY reports whether f is a terminal, which a character device like /dev/null is not.
func isTTY(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// readKeys lets keys be read one by one, without an echo. Ctrl-C stays a signal.
func readKeys(f *os.File) (*terminalState, error) {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return nil, err
	}
	old := &terminalState{*t}
	t.Lflag &^= unix.ICANON | unix.ECHO
	return old, unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

func (s *terminalState) restore(f *os.File) {
	_ = unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &s.termios) // nothing can be done about it
}

// keyPoll is how late the end of a context is noticed while keys are waited for.
const keyPoll = 100 * time.Millisecond

// waitForQuit waits for d. It returns false when ctx has ended or q was pressed.
func waitForQuit(ctx context.Context, f *os.File, d time.Duration) bool {
	end := time.Now().Add(d)
	for ctx.Err() == nil {
		left := time.Until(end)
		if left <= 0 {
			return true
		}
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(min(left, keyPoll).Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
		if n <= 0 {
			continue
		}
		var key [1]byte
		if _, err := f.Read(key[:]); err != nil || key[0] == 'q' || key[0] == 'Q' {
			return false
		}
	}
	return false
}

//go:build !linux

package cli

import (
	"context"
	"os"
	"time"

	"golang.org/x/term"
)

// readKeys leaves the terminal as it is: on this system Ctrl-C ends the command.
func readKeys(f *os.File) (*term.State, error) { return term.GetState(int(f.Fd())) }

// waitForQuit waits for d. It returns false when ctx ends.
func waitForQuit(ctx context.Context, _ *os.File, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

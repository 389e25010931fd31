//go:build !linux

package cli

import (
	"context"
	"os"

	"golang.org/x/term"
)

// readKeys leaves the terminal as it is: on this system Ctrl-C ends the command.
func readKeys(f *os.File) (*term.State, error) { return term.GetState(int(f.Fd())) }

// waitForQuit returns when ctx ends.
func waitForQuit(ctx context.Context, _ *os.File) { <-ctx.Done() }

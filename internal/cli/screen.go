package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"

	"golang.org/x/term"
)

// screen shows tables: in place on a terminal, one after the other elsewhere. On a terminal
// a notice may stand in a line above the table.
type screen struct {
	out io.Writer
	in  *os.File // a terminal whose keys are read; nil: none
	tty bool
	old *term.State

	mu     sync.Mutex // guards the fields below, and out on a terminal: notices come at any time
	table  []byte     // the last one
	line   string     // the notice; "": none
	closed bool
}

// newScreen prepares the terminal, unless plain is set.
func newScreen(in io.Reader, out io.Writer, plain bool) *screen {
	s := &screen{out: out}
	if plain || !isTerminal(out) {
		return s
	}
	s.tty = true
	_, _ = io.WriteString(out, "\x1b[?25l\x1b[2J") // hide the cursor, clear
	if f, ok := in.(*os.File); ok && isTerminal(in) {
		if old, err := readKeys(f); err == nil {
			s.in, s.old = f, old
		}
	}
	return s
}

// close restores the terminal. Later notices are not shown.
func (s *screen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.tty {
		_, _ = io.WriteString(s.out, "\x1b[?25h")
	}
	if s.in != nil {
		_ = term.Restore(int(s.in.Fd()), s.old) // fails only if the terminal is gone
	}
}

// untilQuit returns a context that ends with ctx, when q is pressed, or by stop. The caller
// calls stop before close.
func (s *screen) untilQuit(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	if s.in == nil {
		return ctx, cancel
	}
	var keys sync.WaitGroup
	keys.Go(func() {
		defer cancel()
		waitForQuit(ctx, s.in)
	})
	return ctx, func() {
		cancel()
		keys.Wait()
	}
}

// show prints a table, on a terminal in the place of the previous one.
func (s *screen) show(table []byte) error {
	if !s.tty {
		_, err := s.out.Write(table)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table = table
	return s.drawLocked()
}

// notice sets the line above the table, "" for none. It is for a terminal.
func (s *screen) notice(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line = line; !s.closed {
		_ = s.drawLocked() // the next table has the same error
	}
}

// drawLocked draws the notice and the table.
func (s *screen) drawLocked() error {
	text := s.table
	if s.line != "" {
		text = append([]byte(s.line+"\n"), text...)
	}
	// Move home, clear the rest of each line and the lines below.
	text = append([]byte("\x1b[H"), bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n"))...)
	_, err := s.out.Write(append(text, "\x1b[J"...))
	return err
}

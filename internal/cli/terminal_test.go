package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// pty opens a pseudo-terminal: the end of the person, and the end of the program.
func pty(t *testing.T) (person, program *os.File) {
	t.Helper()
	open := func(path string) *os.File {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			t.Skipf("pseudo-terminals are not available: %v", err)
		case err != nil:
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	person = open("/dev/ptmx")
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	return person, open(fmt.Sprintf("/dev/pts/%d", n))
}

// On a terminal each table overwrites the previous one, q ends the command, and the
// state of the terminal is restored.
func TestTopOnATerminal(t *testing.T) {
	person, program := pty(t)
	before, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	srv := fakeProxy(t, report(0, 1000), report(time.Second, 2000), report(2*time.Second, 3000))
	done := make(chan int, 1)
	go func() {
		done <- Main([]string{"top", "--interval", "1ms", "--admin", srv.URL}, program, program, io.Discard)
	}()
	var screen bytes.Buffer
	buf := make([]byte, 4096)
	for strings.Count(screen.String(), "\x1b[H") < 3 {
		n, err := person.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		screen.Write(buf[:n])
	}
	if _, err := person.WriteString("xq"); err != nil {
		t.Fatal(err)
	}
	for !strings.HasSuffix(screen.String(), "\x1b[?25h") { // the program blocks when its output is not read
		n, err := person.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		screen.Write(buf[:n])
	}
	if code := <-done; code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"\x1b[?25l", "\x1b[K\r\n", "\x1b[J", "b-1", "\x1b[?25h"} {
		if !strings.Contains(screen.String(), want) {
			t.Errorf("no %q in %q", want, screen.String())
		}
	}
	after, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the state of the terminal is %+v, was %+v: %v", after, before, err)
	}
}

// The context of a screen ends with its parent, by stop and on a terminal with q. The
// other keys have no effect.
func TestScreenUntilQuit(t *testing.T) {
	person, program := pty(t)
	old, err := readKeys(program)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = term.Restore(int(program.Fd()), old) }()
	terminal, plain := &screen{in: program}, &screen{}
	for name, s := range map[string]*screen{"terminal": terminal, "plain": plain} {
		ctx, stop := s.untilQuit(t.Context())
		if !pause(ctx, time.Millisecond) {
			t.Errorf("%s: the context ended early", name)
		}
		stop()
		if pause(ctx, time.Hour) {
			t.Errorf("%s: the context goes on after stop", name)
		}
		parent, cancel := context.WithCancel(t.Context())
		ctx, stop = s.untilQuit(parent)
		cancel()
		if pause(ctx, time.Hour) {
			t.Errorf("%s: the context goes on after its parent", name)
		}
		stop()
	}
	ctx, stop := terminal.untilQuit(t.Context())
	defer stop()
	if _, err := person.WriteString("xQ"); err != nil {
		t.Fatal(err)
	}
	if pause(ctx, time.Hour) {
		t.Error("the context goes on after Q")
	}
}

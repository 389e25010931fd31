package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// guest plays the guest's side: it says hello and then, on each command (decoded), what
// answer gives; %d in it is the command's id.
func guest(t *testing.T, hello string, answer func(verb, command string) string) (*Control, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer theirs.Close()
		if _, err := io.WriteString(theirs, hello); err != nil {
			return
		}
		for in := bufio.NewScanner(theirs); in.Scan(); {
			f := strings.Fields(in.Text())
			command := ""
			if len(f) == 3 {
				b, err := base64.StdEncoding.DecodeString(f[2])
				if err != nil {
					return
				}
				command = string(b)
			}
			out := answer(f[0], command)
			if out == "power off" {
				return
			}
			if _, err := io.WriteString(theirs, strings.ReplaceAll(out, "%d", f[1])); err != nil {
				return
			}
		}
	})
	c, err := NewControl(t.Context(), ours)
	t.Cleanup(func() {
		if c != nil {
			_ = c.Close()
		}
		wg.Wait()
	})
	return c, err
}

const hello = "ready 6.12.107+deb13-cloud-amd64 3.25\n"

func TestControlRun(t *testing.T) {
	c, err := guest(t, hello, func(_, command string) string {
		switch command {
		case "silent":
			return "x %d 0\n"
		case "two lines":
			return "o %d one\no %d  two words \no %d \nx %d 3\n"
		case "echo\nlines":
			return "o %d echo\no %d lines\nx %d 0\n"
		}
		return "power off"
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Kernel() != "6.12.107+deb13-cloud-amd64" || c.Uptime() != 3250*time.Millisecond {
		t.Errorf("kernel %q, uptime %v", c.Kernel(), c.Uptime())
	}
	for _, tc := range []struct {
		command, out string
		exit         int
	}{
		{"silent", "", 0},
		{"two lines", "one\n two words \n\n", 3},
		{"echo\nlines", "echo\nlines\n", 0},
	} {
		if out, exit, err := c.Run(t.Context(), tc.command); out != tc.out || exit != tc.exit || err != nil {
			t.Errorf("%q: %q, exit %d, %v", tc.command, out, exit, err)
		}
	}
	for range 2 {
		if _, _, err := c.Run(t.Context(), "poweroff"); !errors.Is(err, ErrGuestGone) {
			t.Errorf("poweroff: %v", err)
		}
	}
}

func TestControlRunsManyAtOnce(t *testing.T) {
	c, err := guest(t, hello, func(_, command string) string {
		return fmt.Sprintf("o %%d %s\nx %%d 0\n", command)
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			want := fmt.Sprintf("command %d", i)
			if out, _, err := c.Run(t.Context(), want); out != want+"\n" || err != nil {
				t.Errorf("%s: %q, %v", want, out, err)
			}
		})
	}
	wg.Wait()
}

// A command whose caller has given up is killed, and what it still says is dropped.
func TestControlCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		killed := false
		c, err := guest(t, hello, func(verb, command string) string {
			switch {
			case verb == "kill":
				killed = true
				return "o %d late\nx %d 137\n"
			case command == "sleep":
				return "o %d begun\n"
			}
			return "x %d 0\n"
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if out, _, err := c.Run(ctx, "sleep"); out != "begun\n" || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sleep: %q, %v", out, err)
		}
		if _, exit, err := c.Run(t.Context(), "true"); exit != 0 || err != nil {
			t.Errorf("afterwards: exit %d, %v", exit, err)
		}
		if !killed {
			t.Error("not killed")
		}
	})
}

func TestControlHostileGuest(t *testing.T) {
	for _, bad := range []string{"hello\n", "ready\n", "ready k\n", "ready k -1\n", "ready k NaN\n", "ready k 1e99\n", "ready k 1 2\n"} {
		if c, err := guest(t, bad, func(string, string) string { return "" }); err == nil {
			t.Errorf("%q: %v", bad, c.Kernel())
		}
	}
	for _, bad := range []string{"nonsense\n", "o\n", "o x y\n", "q %d 0\n", "o 99 text\n", "x 99 0\n", "x %d\n", "x %d zero\n", "x %d 0\nx 7 0\n", strings.Repeat("a", maxLine+1) + "\n"} {
		c, err := guest(t, hello, func(string, string) string { return bad })
		if err != nil {
			t.Fatal(err)
		}
		_, _, _ = c.Run(t.Context(), "x")
		<-c.done
		if err := c.cause(); !errors.Is(err, errProtocol) {
			t.Errorf("%.30q: %v", bad, err)
		}
	}
}

func TestControlBoundsOutput(t *testing.T) {
	line := "o %d " + strings.Repeat("a", maxLine/2) + "\n"
	c, err := guest(t, hello, func(string, string) string {
		return strings.Repeat(line, 2*MaxOutput/maxLine+1) + "x %d 0\n"
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, _, err := c.Run(t.Context(), "yes"); err == nil || len(out) > MaxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// replay is a guest that says what it says and ends.
type replay struct{ io.Reader }

func (replay) Write(b []byte) (int, error) { return len(b), nil }
func (replay) Close() error                { return nil }

func FuzzControl(f *testing.F) {
	f.Add([]byte(hello + "o 0 text\nx 0 1\n"))
	f.Add([]byte("ready\n"))
	f.Add([]byte(hello + "x 0 \n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		c, err := NewControl(t.Context(), replay{bytes.NewReader(sent)})
		if err != nil {
			return
		}
		_, _, _ = c.Run(t.Context(), "true")
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A guest that boots again ends what ran, and the channel goes on.
func TestControlReboot(t *testing.T) {
	c, err := guest(t, hello, func(_, command string) string {
		if command == "reboot" {
			return "o %d going down\nready 7.0 1.5\n"
		}
		return "o %d up\nx %d 0\n"
	})
	if err != nil {
		t.Fatal(err)
	}
	booted := c.nextBoot()
	if out, _, err := c.Run(t.Context(), "reboot"); !errors.Is(err, ErrGuestReset) || out != "going down\n" {
		t.Errorf("got %q, %v", out, err)
	}
	<-booted
	if c.Kernel() != "7.0" || c.Uptime() != 1500*time.Millisecond {
		t.Errorf("kernel %q, uptime %v", c.Kernel(), c.Uptime())
	}
	if out, exit, err := c.Run(t.Context(), "other"); out != "up\n" || exit != 0 || err != nil {
		t.Errorf("after the boot: %q, %d, %v", out, exit, err)
	}
}

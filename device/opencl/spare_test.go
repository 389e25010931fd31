package opencl

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// bench is an engine whose processes are a script.
type bench struct {
	*engine
	started *bufio.Reader // a line for each process
	notice  chan struct{} // of the engine
	logged  chan string
}

// newBench runs an engine. script follows the message that a process has started.
func newBench(t *testing.T, cold bool, script string) *bench {
	t.Helper()
	dir := t.TempDir()
	program, fifo := filepath.Join(dir, "program"), filepath.Join(dir, "started")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho started >"+fifo+"\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{started: bufio.NewReader(f), notice: make(chan struct{}, 64), logged: make(chan string, 64)}
	b.engine, err = newEngine(program, Found{}, limits{memory: 1 << 20}, 1<<20, cold, slog.New(slog.NewTextHandler(lines(b.logged), nil)))
	if err != nil {
		t.Fatal(err)
	}
	b.setNotify(func() { b.notice <- struct{}{} })
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { b.run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		if p, _ := b.has(); p != nil {
			t.Error("a process is left")
		}
		_ = b.close()
		_ = f.Close()
	})
	return b
}

// lines is a log of a channel.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func (b *bench) next(t *testing.T) {
	t.Helper()
	if s, err := b.started.ReadString('\n'); s != "started\n" {
		t.Fatalf("%q, %v", s, err)
	}
}

// awaitReady waits for a process to start, and for the notice that the channel is ready.
func (b *bench) awaitReady(t *testing.T) {
	t.Helper()
	b.next(t)
	<-b.notice
	if s := b.State(); s != reg.ComputeReady {
		t.Errorf("state %v", s)
	}
}

// has returns the process and the memory.
func (b *bench) has() (*process, *os.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.process, b.file
}

// scrub is what Device.Scrub does.
func (b *bench) scrub(t *testing.T) {
	t.Helper()
	b.waitGone()
	if err := b.renew(); err != nil {
		t.Fatal(err)
	}
}

// serving is a process that has its context, and waits: it counts an event in the ring (package
// ring), and wakes the box.
const serving = "printf '\\001' | dd of=/proc/self/fd/5 bs=1 seek=192 conv=notrunc 2>/dev/null\n" +
	"printf x >&3\nexec cat <&3 >/dev/null\n"

// A tenant gets a process that has its context already, and each tenant another one, with
// other memory, also if the former tenant has made no context.
func TestSpare(t *testing.T) {
	b := newBench(t, false, serving)
	for _, used := range []bool{true, false, true} {
		b.next(t)
		<-b.notice
		p, file := b.has()
		if s := b.State(); s != reg.ComputeOff {
			t.Errorf("state %v without a tenant", s)
		}
		if used {
			b.Start()
			if s := b.State(); s != reg.ComputeReady {
				t.Errorf("state %v after the start", s)
			}
			b.Stop()
		}
		b.scrub(t)
		if q, other := b.has(); q == p || other == file {
			t.Error("the next tenant has the process or the memory of this one")
		}
	}
	b.next(t)
	select {
	case text := <-b.logged:
		t.Errorf("log %q", text)
	default:
	}
}

// A context that a tenant makes again, in the same binding, gets a process of its own.
func TestSpareIsForOneContext(t *testing.T) {
	b := newBench(t, false, serving)
	b.next(t)
	<-b.notice
	b.Start()
	b.Start()
	if s := b.State(); s != reg.ComputeStarting {
		t.Errorf("state %v", s)
	}
	b.awaitReady(t)
}

// A device may have no process before a tenant needs one.
func TestCold(t *testing.T) {
	b := newBench(t, true, serving)
	b.scrub(t)
	b.Start()
	b.awaitReady(t)
}

// A spare that ends is told, is not started again and again, and harms no tenant.
func TestSpareThatEnds(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	b := newBench(t, false, "[ -e "+mark+" ] || { echo no memory >&2; >"+mark+"; exit 1; }\n"+serving)
	b.next(t)
	if text := <-b.logged; !strings.Contains(text, "exit status 1") || !strings.Contains(text, "no memory") {
		t.Errorf("log %q", text)
	}
	b.Start()
	b.awaitReady(t)
}

// The standard error of a process has a bound, and the box waits neither for it
// nor for a child that keeps it.
func TestLastWords(t *testing.T) {
	b := newBench(t, true, "yes 'a long story' | head -c 1000000 >&2\nsetsid sleep 2 &\nexit 3\n")
	b.Start()
	b.next(t)
	text := <-b.logged
	if !strings.Contains(text, "exit status 3") || strings.Count(text, "a long story") < 10 || len(text) > 3*maxSaid {
		t.Errorf("log of %d bytes: %.300q", len(text), text)
	}
	f, err := newSaid()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if s := lastWords(f); s != "" {
		t.Errorf("%q", s)
	}
	if _, err := io.WriteString(f, "first\nlast\x1b[2J\xff"); err != nil {
		t.Fatal(err)
	}
	if s := lastWords(f); s != "first\nlast\x1b[2J\xff" {
		t.Errorf("%q", s)
	}
}

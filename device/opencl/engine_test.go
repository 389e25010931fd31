package opencl

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// A process that a tenant's program leaves behind, outside its process group, keeps the
// shared memory. It must not share that of the next tenant.
func TestScrubExchangesTheMemory(t *testing.T) {
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.close() })
	g, err := gpu.NewWithEngine(gpu.Spec{Aperture: 1 << 20}, e, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &Device{GPU: g, engine: e}
	left, err := unix.Mmap(int(e.file.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(left) })
	e.vram[0] = 1
	if left[0] != 1 {
		t.Fatal("the process does not share the memory")
	}
	d.Scrub()
	if e.vram[0] != 0 {
		t.Error("the byte of the former tenant is there")
	}
	left[1] = 2
	e.vram[2] = 3
	if e.vram[1] != 0 || left[2] != 0 {
		t.Error("the process of the former tenant shares the memory of the next one")
	}
}

// A process that starts while the memory is exchanged gets no other file of the box.
func TestScrubWhileAProcessStarts(t *testing.T) {
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.close() })
	file, own, _, err := e.shared()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	before, err := own.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.renew(); err != nil || e.file == file {
		t.Fatal("the memory is the same", err)
	}
	if after, err := own.Stat(); err != nil || !os.SameFile(before, after) {
		t.Errorf("the process gets another file: %v", err)
	}
	if now, err := e.file.Stat(); err != nil || os.SameFile(before, now) {
		t.Errorf("the process gets the memory of the next tenant: %v", err)
	}
}

// A process that sends more events than packets ends, and the count of packets in flight stays
// true.
func TestMoreEventsThanPackets(t *testing.T) {
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.close() })
	p := &process{engine: e, context: e.context}
	e.inFlight.Store(1)
	two := reg.Event{Cookie: 2}.Append(reg.Event{Cookie: 1}.Append(nil))
	if err := e.take(p, two, false); err == nil {
		t.Error("an event without a packet")
	}
	if n := e.inFlight.Load(); n != 0 {
		t.Errorf("%d packets in flight", n)
	}
	if ev, ok := e.Event(); !ok || ev.Cookie != 1 {
		t.Errorf("%+v %v", ev, ok)
	}
	if _, ok := e.Event(); ok {
		t.Error("a second event")
	}
}

// The process of a tenant gains no rights, and has no better priority than others.
func TestProcessIsConfined(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	script := "#!/bin/sh\ncat /proc/$$/status >" + dir + "/status\ncut -d ' ' -f 19 /proc/$$/stat >" + dir + "/nice\nenv >" + dir + "/env\nls /proc/$$/fd >" + dir + "/fds\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DXPU_JOIN_TOKEN", "secret")
	// A descriptor that the box has inherited: not close-on-exec.
	inherited, err := unix.FcntlInt(0, unix.F_DUPFD, 100)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(inherited) })
	e, err := newEngine(program, Found{}, limits{memory: 1 << 20}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.close() })
	ended := make(chan struct{}, 1)
	e.setNotify(func() { ended <- struct{}{} })
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The nice value of a proxy. Without the right to it, nothing is to be checked.
		lockedNice(-5)
		e.run(t.Context())
	}()
	t.Cleanup(func() { <-done })
	e.Start()
	<-ended
	if s := e.State(); s != reg.ComputeFailed {
		t.Errorf("state %v", s)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if v, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || v != 0 {
		t.Errorf("the process may trace the box: %d, %v", v, err)
	}
	if !strings.Contains(read("status"), "NoNewPrivs:\t1\n") {
		t.Error("the process may gain rights")
	}
	if n := strings.TrimSpace(read("nice")); strings.HasPrefix(n, "-") {
		t.Errorf("the nice value of the process is %s", n)
	}
	if strings.Contains(read("env"), "secret") {
		t.Error("the process has the environment of the box")
	}
	if fds := strings.Fields(read("fds")); slices.Contains(fds, strconv.Itoa(inherited)) {
		t.Errorf("descriptors %v: %d is of the box", fds, inherited)
	}
}

// lockedNice changes the nice value of the goroutine's thread, if it may.
func lockedNice(n int) {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, n)
}

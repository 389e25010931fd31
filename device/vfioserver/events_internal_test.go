package vfioserver

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// newTestEvents returns events whose signals come by the channel.
func newTestEvents(t *testing.T) (*events, <-chan vectorID) {
	got := make(chan vectorID, 4096)
	s := &events{signalled: func(id vectorID) { got <- id }}
	t.Cleanup(s.stop)
	return s, got
}

// signal signals a file as its server does.
func signal(t *testing.T, f *os.File) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { err = eventfd.Signal(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

func next(t *testing.T, got <-chan vectorID) vectorID {
	t.Helper()
	select {
	case id := <-got:
		return id
	case <-time.After(10 * time.Second):
		t.Fatal("a signal is lost")
		return vectorID{}
	}
}

// All vectors of a device cost one goroutine, and each signal of each is told.
func TestEventsOfManyVectors(t *testing.T) {
	const n = 2048
	s, got := newTestEvents(t)
	before := runtime.NumGoroutine()
	files, err := s.create(vfiouser.IRQMSIX, 0, n)
	if err != nil {
		t.Fatal(err)
	}
	s.keep(vfiouser.IRQMSIX, 0, files)
	if more := runtime.NumGoroutine() - before; more > 2 {
		t.Errorf("%d goroutines for %d vectors", more, n)
	}
	for range 3 { // no one takes the signals out of the descriptors
		seen := map[vectorID]bool{}
		for _, f := range files {
			signal(t, f)
		}
		for range n {
			seen[next(t, got)] = true
		}
		if len(seen) != n || !seen[vectorID{vfiouser.IRQMSIX, n - 1}] {
			t.Errorf("%d vectors have told of their signals", len(seen))
		}
	}
}

// A descriptor that the server keeps tells nothing after it was taken back, nor does one that
// another has replaced.
func TestEventsThatAServerKeeps(t *testing.T) {
	s, got := newTestEvents(t)
	var kept []*os.File
	for range 2 {
		files, err := s.create(vfiouser.IRQMSI, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, dup(t, files[0]))
		s.keep(vfiouser.IRQMSI, 1, files)
	}
	files, err := s.create(vfiouser.IRQINTx, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	s.keep(vfiouser.IRQINTx, 0, files)
	signal(t, kept[0])
	signal(t, kept[1])
	if id := next(t, got); id != (vectorID{vfiouser.IRQMSI, 1}) {
		t.Errorf("signal of %v", id)
	}
	s.close(s.take(vfiouser.IRQMSI))
	signal(t, kept[1])
	signal(t, files[0])
	if id := next(t, got); id != (vectorID{vfiouser.IRQINTx, 0}) {
		t.Errorf("signal of %v", id)
	}
}

// dup returns a descriptor of the same file, as the one that a server has.
func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	_ = raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	out := os.NewFile(uintptr(fd), "event")
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// A device with many vectors leaves half of the descriptors of the process to others.
func TestVectorsLeaveDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: 2048, Max: was.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()
	greedy, _ := newTestEvents(t)
	n := 0
	for ; ; n++ {
		files, err := greedy.create(vfiouser.IRQMSIX, n, 1)
		if err != nil {
			if !errors.Is(err, unix.EMFILE) {
				t.Error(err)
			}
			break
		}
		greedy.keep(vfiouser.IRQMSIX, n, files)
	}
	if n < ownVectors || n > 1024 {
		t.Errorf("one device has %d vectors of 2048 descriptors", n)
	}
	for range 2 {
		modest, _ := newTestEvents(t)
		if _, err := modest.create(vfiouser.IRQMSIX, 0, ownVectors); err != nil {
			t.Errorf("a neighbour: %v", err)
		}
	}
}

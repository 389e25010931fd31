package eventfd

import (
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// eventFD returns a blocking event descriptor: the worst that a peer can share.
func eventFD(t *testing.T, start uint) int {
	t.Helper()
	fd, err := unix.Eventfd(start, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestSignalAndRead(t *testing.T) {
	fd := eventFD(t, 0)
	if n, err := Read(fd); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("a descriptor without signals: %d, %v", n, err)
	}
	const times, callers = 3 * queue, 4 // more than the queue holds
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range times {
				if err := Signal(fd); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n, err := Read(fd); err != nil || n != times*callers {
		t.Errorf("%d signals, %v, want %d", n, err, times*callers)
	}
	if n, err := Read(fd); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read again: %d, %v", n, err)
	}
}

// A write to a full counter of a blocking descriptor would wait for ever.
func TestSignalOfAFullCounter(t *testing.T) {
	fd := eventFD(t, 0)
	full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if _, err := unix.Write(fd, full[:]); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Signal(fd); err != nil {
			t.Error(err)
		}
	}
	if n, err := Read(fd); err != nil || n < 1<<64-2 {
		t.Errorf("counter %#x, %v", n, err)
	}
}

func TestOtherDescriptors(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for range 2 * queue { // a refusal leaves nothing in the queue
		if err := Signal(int(w.Fd())); !errors.Is(err, unix.EINVAL) {
			t.Fatalf("signal of a pipe: %v", err)
		}
	}
	if Is(int(w.Fd())) || !Is(eventFD(t, 0)) {
		t.Error("a pipe is taken for an event descriptor, or the reverse")
	}
	if err := Signal(eventFD(t, 0)); err != nil {
		t.Error(err)
	}
}

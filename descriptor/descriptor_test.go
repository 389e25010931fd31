package descriptor

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// pipe returns a descriptor, and what tells when it has been closed.
func pipe(t *testing.T) (*FD, func() bool) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	r := os.NewFile(uintptr(p[0]), "pipe")
	t.Cleanup(func() { _ = r.Close() })
	return New(p[1]), func() bool {
		n, err := unix.Read(p[0], make([]byte, 1))
		return n == 0 && err == nil // the end: no descriptor of the other side is left
	}
}

func TestClosedWhenNobodyUsesIt(t *testing.T) {
	d, gone := pipe(t)
	for range 2 {
		if _, ok := d.Use(); !ok {
			t.Fatal("an open descriptor cannot be used")
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := d.Use(); ok {
		t.Error("a closed descriptor can be used")
	}
	if err := d.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed again: %v", err)
	}
	if d.Done(); gone() {
		t.Error("closed while it is used")
	}
	if d.Done(); !gone() {
		t.Error("open though nobody uses it")
	}
	if _, ok := d.Use(); ok {
		t.Error("it can be used again")
	}
}

func TestClosedWhereNobodyUsedIt(t *testing.T) {
	d, gone := pipe(t)
	if err := d.Close(); err != nil || !gone() {
		t.Errorf("closed: %v, error %v", gone(), err)
	}
}

// Whoever got it may use it, whatever the others do; it is closed once.
func TestManyUseAndClose(t *testing.T) {
	for range 200 {
		d, gone := pipe(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					fd, ok := d.Use()
					if !ok {
						return
					}
					if _, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil {
						t.Error(err)
					}
					d.Done()
				}
			})
		}
		wg.Go(func() { _ = d.Close() })
		wg.Wait()
		if !gone() {
			t.Fatal("open though nobody uses it")
		}
	}
}

func TestUseAllocatesNothing(t *testing.T) {
	d, _ := pipe(t)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := d.Use(); ok {
			d.Done()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	_ = d.Close()
}

package fd

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pipe returns a descriptor, and a function that reports whether it is closed.
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

func TestClosedAfterTheLastUse(t *testing.T) {
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
		t.Error("open after the last use")
	}
	if _, ok := d.Use(); ok {
		t.Error("a closed descriptor can be used")
	}
}

func TestClosedWithoutUse(t *testing.T) {
	d, gone := pipe(t)
	if err := d.Close(); err != nil || !gone() {
		t.Errorf("closed: %v, error %v", gone(), err)
	}
}

// A use stays valid whatever other goroutines do, and the descriptor is closed once.
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
			t.Fatal("open after the last use")
		}
	}
}

// A receive on an adopted socket ends with Shutdown, and after its time limit.
func TestAdoptAndShutdown(t *testing.T) {
	for _, network := range []string{"udp", "unixgram"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unixgram" {
				address = filepath.Join(t.TempDir(), "socket")
			}
			c, err := net.ListenPacket(network, address)
			if err != nil {
				t.Fatal(err)
			}
			adopt := func(wait time.Duration) *FD {
				d, err := Adopt(c.(syscall.Conn), wait, nil)
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			receive := func(d *FD) error {
				fd, ok := d.Use()
				if !ok {
					return net.ErrClosed
				}
				defer d.Done()
				for {
					if _, _, err := unix.Recvfrom(int(fd), make([]byte, 1), 0); err != unix.EINTR {
						return err
					}
				}
			}
			brief := adopt(time.Millisecond)
			if err := receive(brief); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("a receive with a time limit: %v", err)
			}
			if err := brief.Close(); err != nil {
				t.Error(err)
			}
			d := adopt(time.Hour)
			ended := make(chan error)
			go func() { ended <- receive(d) }()
			if err := d.Shutdown(); err != nil {
				t.Error(err)
			}
			if err := <-ended; errors.Is(err, unix.EBADF) {
				t.Error("closed while it is used")
			}
			if err := d.Shutdown(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("shut down again: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if d, err := Adopt(c.(syscall.Conn), 0, nil); err == nil {
				t.Error("a closed socket is adopted", d.Close())
			}
		})
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

package hostproxy

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/pcie"
)

// removals is a Keeper that records the names that are removed.
type removals []string

func (r *removals) Put(string, ...*os.File) error { return nil }

func (r *removals) Remove(name string) error {
	*r = append(*r, name)
	return nil
}

// memory returns a memfd.
func memory(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// sockets returns the two ends of a connection.
func sockets(t *testing.T) (vmm, proxy *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	vmm, proxy = os.NewFile(uintptr(fds[0]), "VMM"), os.NewFile(uintptr(fds[1]), "proxy")
	t.Cleanup(func() { _ = vmm.Close() })
	return vmm, proxy
}

// Stored descriptors that are damaged, incomplete or of another program are closed and
// forgotten: a VMM sees the end of its connection, and the proxy starts.
func TestForeignEstates(t *testing.T) {
	for _, c := range []struct {
		name, key string
		memories  []int64 // lengths
		sockets   int
	}{
		{"memory too short", "slot0-b", []int64{pcie.ConfigSize}, 1},
		{"memory too long", "slot0-b", []int64{2 * estateSize}, 1},
		{"empty memory", "slot0-b", []int64{0}, 1},
		{"no memory", "slot0-b", nil, 1},
		{"two memories", "slot0-b", []int64{estateSize, estateSize}, 1},
		{"two connections", "slot0-b", []int64{estateSize}, 2},
		{"no connection", "slot0-b", []int64{estateSize}, 0},
		{"another name", "unknown", []int64{estateSize}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var files, peers []*os.File
			for _, n := range c.memories {
				files = append(files, memory(t, n))
			}
			for range c.sockets {
				vmm, proxy := sockets(t)
				files, peers = append(files, proxy), append(peers, vmm)
			}
			var removed removals
			f := &VM{Keeper: &removed, Logger: slog.New(slog.DiscardHandler)}
			defer f.stop()
			if err := f.resume(c.key, files); err == nil {
				t.Error("it is taken over")
			}
			if !slices.Equal(removed, removals{c.key}) {
				t.Errorf("removed from the store: %q", removed)
			}
			for _, peer := range peers {
				_ = peer.SetReadDeadline(time.Now().Add(time.Minute))
				if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
					t.Errorf("the VMM reads %v, want the end", err)
				}
			}
			for _, f := range files {
				if err := f.Close(); !errors.Is(err, os.ErrClosed) {
					t.Errorf("%s was left open: %v", f.Name(), err)
				}
			}
		})
	}
}

// Two plugs of a binding have different names: the end of the first connection does
// not take the second one out of the store.
func TestEstateNames(t *testing.T) {
	var names []string
	for range 2 {
		x, err := newEstate(new(removals), 3, "b", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer x.close()
		names = append(names, x.name)
	}
	if names[0] == names[1] {
		t.Errorf("both are %q", names[0])
	}
}

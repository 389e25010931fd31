package vfio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// fileRegion maps a file of n bytes.
func fileRegion(t *testing.T, n int64) (*mapped, *os.File) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "resource0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	r, err := mapRegion(int(f.Fd()), 0, uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	return r, f
}

func TestRegion(t *testing.T) {
	r, f := fileRegion(t, 8192)
	r.Write32(4, 0x01020304)
	r.Write64(8, 0x1112131415161718)
	if r.Read32(4) != 0x01020304 || r.Read64(8) != 0x1112131415161718 {
		t.Error("registers do not read back")
	}
	data := []byte("bytes at an odd place, longer than a word")
	if _, err := r.WriteAt(data, 4093); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if _, err := r.ReadAt(got, 4093); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%q, %v", got, err)
	}
	inFile := make([]byte, len(data))
	if _, err := f.ReadAt(inFile, 4093); err != nil || !bytes.Equal(inFile, data) {
		t.Errorf("in the file: %q, %v", inFile, err)
	}
}

func TestRegionBounds(t *testing.T) {
	r, _ := fileRegion(t, 4096)
	for _, off := range []uint64{4096, 4094, 2, 1 << 63, ^uint64(0)} {
		r.Write32(off, 0)
		if v := r.Read32(off); v != allOnes32 {
			t.Errorf("read at %#x: %#x", off, v)
		}
	}
	if v := r.Read64(4092); v != allOnes64 {
		t.Errorf("read across the end: %#x", v)
	}
	for _, off := range []int64{-1, 4095, 1 << 62} {
		if _, err := r.WriteAt(make([]byte, 2), off); err == nil {
			t.Errorf("write at %#x: no error", off)
		}
	}
}

// A lost device reads all ones, and the process survives the access.
func TestRegionOfLostDevice(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(t *testing.T, r *mapped, f *os.File)
	}{
		{"given back", func(t *testing.T, r *mapped, _ *os.File) {
			if err := r.revoke(); err != nil {
				t.Fatal(err)
			}
		}},
		{"pages gone", func(t *testing.T, _ *mapped, f *os.File) {
			if err := f.Truncate(0); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, f := fileRegion(t, 8192)
			c.lose(t, r, f)
			r.Write32(0, 1)
			r.Write64(8, 1)
			if r.Read32(0) != allOnes32 || r.Read64(8) != allOnes64 {
				t.Error("read is not all ones")
			}
			if _, err := r.ReadAt(make([]byte, 16), 4090); !errors.Is(err, driver.ErrDeviceLost) {
				t.Errorf("bulk read: %v", err)
			}
			if _, err := r.WriteAt(make([]byte, 16), 4090); !errors.Is(err, driver.ErrDeviceLost) {
				t.Errorf("bulk write: %v", err)
			}
		})
	}
}

func TestParsePagemap(t *testing.T) {
	entries := func(es ...uint64) (b []byte) {
		for _, e := range es {
			b = binary.LittleEndian.AppendUint64(b, e)
		}
		return b
	}
	got, err := parsePagemap(entries(pagePresent|5, pagePresent|6, pagePresent|9, pagePresent|1<<62|8))
	want := []driver.Segment{{Addr: 0x5000, Len: 8192}, {Addr: 0x9000, Len: 4096}, {Addr: 0x8000, Len: 4096}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []uint64{5, pagePresent} {
		if _, err := parsePagemap(entries(bad)); err == nil {
			t.Errorf("entry %#x was taken", bad)
		}
	}
}

func TestEvents(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	signal := func(n uint64) {
		if _, err := f.Write(binary.NativeEndian.AppendUint64(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	signal(2)
	signal(1)
	if n, err := readEvent(t.Context(), f, time.Minute); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, why)
	defer cancel()
	if _, err := readEvent(ctx, f, time.Minute); !errors.Is(err, why) {
		t.Errorf("nothing comes: %v", err)
	}
	signal(1)
	if n, err := readEvent(t.Context(), f, time.Minute); n != 1 || err != nil {
		t.Errorf("after a wait that was given up: %d, %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := readEvent(t.Context(), f, time.Minute); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// fakeAccess is a device without hardware.
type fakeAccess struct {
	req, vector *os.File
	bar         *mapped
	closes      int
}

func (a *fakeAccess) config(int, []byte, bool) error     { return nil }
func (a *fakeAccess) region(int) (*mapped, error)        { return a.bar, nil }
func (a *fakeAccess) enableMSIX(int) ([]*os.File, error) { return []*os.File{a.vector}, nil }

func (a *fakeAccess) mapDMA(m []byte) ([]driver.Segment, error) {
	return []driver.Segment{{Len: len(m)}}, nil
}
func (a *fakeAccess) unmapDMA([]byte, []driver.Segment) error { return nil }
func (a *fakeAccess) reset() error                            { return nil }
func (a *fakeAccess) request() *os.File                       { return a.req }
func (a *fakeAccess) close() error                            { a.closes++; return nil }

func newFakeBus(t *testing.T) (*Bus, *fakeAccess) {
	t.Helper()
	event := func() *os.File {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "eventfd")
	}
	bar, _ := fileRegion(t, 4096)
	a := &fakeAccess{req: event(), vector: event(), bar: bar}
	return newBus(Function{Address: "0000:01:00.0"}, IOMMU, a), a
}

// When the kernel asks for the device, everything is released at once, and
// waits end: the removal in the kernel waits for that.
func TestUnplugReleasesTheDevice(t *testing.T) {
	b, a := newFakeBus(t)
	r, err := b.BAR(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.EnableMSIX(1); err != nil {
		t.Fatal(err)
	}
	m, err := b.AllocDMA(5000)
	if err != nil || len(m.Bytes()) != 8192 {
		t.Fatalf("%v", err)
	}
	waited := make(chan error)
	go func() {
		_, err := b.WaitInterrupt(context.Background(), 0, time.Minute)
		waited <- err
	}()
	if _, err := a.req.Write(binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, driver.ErrDeviceLost) {
		t.Errorf("wait ends with %v", err)
	}
	<-b.Lost()
	if r.Read32(0) != allOnes32 {
		t.Error("the BAR is still mapped")
	}
	m.Store32(0, 7)
	if m.Load32(0) != 7 {
		t.Error("DMA memory is gone before it was freed")
	}
	if err := m.Free(); err != nil {
		t.Error(err)
	}
	if _, err := b.AllocDMA(1); !errors.Is(err, driver.ErrDeviceLost) {
		t.Errorf("allocation after the loss: %v", err)
	}
	if err := b.Close(); err != nil || a.closes != 1 {
		t.Errorf("close: %v, device closed %d times", err, a.closes)
	}
}

func TestCloseEndsWaits(t *testing.T) {
	b, a := newFakeBus(t)
	if err := b.EnableMSIX(1); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error)
	go func() {
		_, err := b.WaitInterrupt(context.Background(), 0, time.Minute)
		waited <- err
	}()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, driver.ErrClosed) {
		t.Errorf("wait ends with %v", err)
	}
	if err := b.Close(); err != nil || a.closes != 1 {
		t.Errorf("second close: %v, device closed %d times", err, a.closes)
	}
}

func TestOpenWithoutDevice(t *testing.T) {
	root := fakeSysfs(t)
	for _, mode := range []Mode{Auto, IOMMU, NoIOMMU, Sysfs} {
		if b, err := Open("01:00.0", Options{Mode: mode, SysFS: root, DevFS: t.TempDir()}); err == nil {
			t.Errorf("%s: opened %v", mode, b)
		}
	}
}

// Memory of a device without an IOMMU is pinned as long as the device may use it.
func TestPin(t *testing.T) {
	const size = 64 * pageSize
	mem, err := pages(size, true)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := pin(mem)
	if errors.Is(err, errNoRing) {
		t.Skipf("%v: test/vm pins memory in its guests", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if kib := pinned(t); kib != size>>10 {
		t.Errorf("%d KiB are pinned, want %d", kib, size>>10)
	}
	p := physical{pins: map[*byte]int{&mem[0]: ring}}
	if err := errors.Join(p.unmapDMA(mem), p.unmapDMA(mem)); err != nil {
		t.Error(err)
	}
	if kib := pinned(t); kib != 0 {
		t.Errorf("%d KiB are pinned at the end", kib)
	}
	if err := unix.Munmap(mem); err != nil {
		t.Error(err)
	}
}

// pinned returns the memory of this process that is pinned, in KiB.
func pinned(t *testing.T) (kib int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmPin:")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

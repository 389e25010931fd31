package hostproxy_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// A VM whose memory is not shared gets no GPU, and the host says what to do.
func TestPrivateMemoryIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, backend string
		message       bool
		refused       bool
	}{
		{"messages only", "memory-backend-ram", false, true},
		{"messages only, allowed", "memory-backend-ram", true, false},
		{"a private descriptor", "memory-backend-memfd", false, true},
		{"a private descriptor where messages are allowed", "memory-backend-memfd", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newFakeQEMU(t)
			q.private = c.backend
			r := newCluster(t, options{qmp: q.path, message: c.message})
			if !c.refused {
				r.detach(r.attach(0, 0, 0, 0))
				return
			}
			b := r.bind(0, 0, 0, 0)
			r.await(b, failed)
			if why := r.atHost(b).GetDetail(); !strings.Contains(why, `"m2" is private`) || !strings.Contains(why, "share=on") {
				t.Errorf("the host says %q", why)
			}
			q.set(func() { q.private = "" })
			r.detach(b)
			r.detach(r.attach(0, 0, 0, 0))
		})
	}
}

// A VMM that shares no memory is told so, and so is the lease. Read-only memory, such
// as a firmware, may come without a descriptor.
func TestMapWithoutDescriptorIsRefused(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	c, err := vfiouser.Dial(t.Context(), r.hosts[0].vm.Socket(0), vfiouser.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := vfiouser.DMAMap{Flags: vfiouser.DMAFlagRead, Addr: 0xfffc0000, Size: 0x40000}
	check(t, c.DMAMap(t.Context(), m, nil))
	m = vfiouser.DMAMap{Flags: vfiouser.DMAFlagRead | vfiouser.DMAFlagWrite, Addr: 0xfd00_0000, Size: 16 << 20}
	if err := c.DMAMap(t.Context(), m, nil); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("the memory of a display: %v", err)
	}
	if why := r.atHost(b).GetDetail(); why != "" {
		t.Errorf("the host says %q", why)
	}
	m.Addr = 0
	if err := c.DMAMap(t.Context(), m, nil); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("memory: %v", err)
	}
	r.until("the host says why", func() bool {
		return strings.Contains(r.atHost(b).GetDetail(), "the VM does not share its memory at 0x0 (16 MiB)")
	})
	m.Addr = 1 << 40
	if err := c.DMAMap(t.Context(), m, nil); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("more memory: %v", err)
	}
	if why := r.atHost(b).GetDetail(); !strings.Contains(why, "at 0x0 ") {
		t.Errorf("the host says %q, want the first refusal only: a guest can cause any number", why)
	}
	file, err := os.CreateTemp("/dev/shm", "memory")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	check(t, errors.Join(os.Remove(file.Name()), file.Truncate(16<<20)))
	check(t, c.DMAMap(t.Context(), m, file))
}

// privateMemory returns memory that this process maps privately.
func privateMemory(t *testing.T, size int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("private", 0)
	check(t, err)
	file := os.NewFile(uintptr(fd), "private")
	t.Cleanup(func() { _ = file.Close() })
	check(t, file.Truncate(int64(size)))
	mapped, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	check(t, err)
	t.Cleanup(func() { check(t, unix.Munmap(mapped)) })
	return file
}

// Memory with a descriptor may be of no use, too. QMP does not tell, or has not: it may have
// been added to the VM later.
func TestUselessMemoryIsReported(t *testing.T) {
	const size = 1 << 20
	memory := privateMemory(t, size)
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	check(t, err)
	defer disk.Close()
	check(t, disk.Truncate(size))
	files := map[string]*os.File{"the VMM maps its memory privately: give it share=on": memory}
	if !rights.IsMemory(int(disk.Fd())) {
		files["not a file of tmpfs or hugetlbfs: give the VMM a memory-backend-memfd"] = disk
	}
	for want, file := range files {
		t.Run(want, func(t *testing.T) {
			r := newCluster(t, options{})
			b := r.attach(0, 0, 0, 0)
			c, err := vfiouser.Dial(t.Context(), r.hosts[0].vm.Socket(0), vfiouser.ClientConfig{})
			check(t, err)
			defer c.Close()
			m := vfiouser.DMAMap{Flags: vfiouser.DMAFlagRead | vfiouser.DMAFlagWrite, Addr: 0xffe0_0000, Size: size}
			if err := c.DMAMap(t.Context(), m, file); err == nil {
				t.Fatal("it is mapped")
			}
			r.until("the host says why", func() bool {
				why := r.atHost(b).GetDetail()
				return strings.Contains(why, "cannot use the VM's memory at 0xffe00000 (1 MiB)") && strings.Contains(why, want)
			})
		})
	}
}

// QEMU maps the memory of the VM while it plugs the device in. The words about it stay.
func TestUselessMemoryAtHotPlug(t *testing.T) {
	const size = 780 << 10
	memory := privateMemory(t, size)
	q := newFakeQEMU(t)
	q.onAdd = func(socket string) {
		c, err := vfiouser.Dial(t.Context(), socket, vfiouser.ClientConfig{})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = c.Close() })
		m := vfiouser.DMAMap{Flags: vfiouser.DMAFlagRead | vfiouser.DMAFlagWrite, Addr: 1 << 32, Size: size}
		if err := c.DMAMap(t.Context(), m, memory); err == nil {
			t.Error("it is mapped")
		}
	}
	r := newCluster(t, options{qmp: q.path})
	b := r.attach(0, 0, 0, 0)
	r.until("the host says why", func() bool {
		o := r.atHost(b)
		return o.GetState() == attached && strings.Contains(o.GetDetail(), "cannot use the VM's memory at 0x100000000 (780 KiB)")
	})
}

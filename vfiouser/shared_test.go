package vfiouser

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/rawio/rights/rightstest"
)

// blockingEvent is an event descriptor that the VMM keeps blocking: fill fills its
// counter, whatever it holds, so that a write to it would wait for ever.
func blockingEvent(t *testing.T) (fd int, fill func()) {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd, func() {
		must(t, unix.SetNonblock(fd, true))
		_, _ = unix.Read(fd, make([]byte, 8)) // EAGAIN if it is empty
		_, err := unix.Write(fd, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		must(t, err)
		must(t, unix.SetNonblock(fd, false))
	}
}

// A VMM that makes its event descriptors blocking, after it has armed an interrupt
// with them, stops neither interrupts, nor their removal, nor the server.
func TestBlockingEvents(t *testing.T) {
	f := serve(t)
	p, c := f.connect()
	irq, fillIRQ := blockingEvent(t)
	end, fillEnd := blockingEvent(t)
	p.ok(8, setIRQs(arm, 0, 0, 1), irq)
	p.ok(8, setIRQs(unmaskFD, 0, 0, 1), end)
	must(t, c.SetINTx(true))
	fillEnd()
	must(t, unix.SetNonblock(irq, false))
	var b [8]byte
	for range 3 { // the listener unmasks INTx, which fires again: this read waits for it
		_, err := unix.Read(irq, b[:])
		must(t, err)
		_, err = unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // waits for the listener's read
		must(t, err)
	}
	_, _ = unix.Read(irq, b[:])
	p.ok(8, setIRQs(disable, 0, 0, 0))
	p.ok(8, setIRQs(arm, 2, 0, 1), irq)
	fillIRQ()
	fire(t, c, IRQMSIX, 0, nil)

	p.ok(8, setIRQs(unmaskFD, 0, 0, 1), end)
	must(t, unix.SetNonblock(end, false))
	_ = p.Close()
	if err := waitErr(t, f.dev.disconnected); err != nil {
		t.Error(err)
	}
}

// A VMM chooses what it sends in the place of an event or of memory. None of these
// makes the server wait when it refuses and closes them.
func TestStrangeDescriptors(t *testing.T) {
	f := serve(t)
	p, c := f.connect()
	before := leaktest.Descriptors(t)
	for name, open := range map[string]func(t *testing.T) int{
		"a full pipe": func(t *testing.T) int {
			var ends [2]int
			must(t, unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
			t.Cleanup(func() { _ = unix.Close(ends[0]) })
			for {
				if _, err := unix.Write(ends[1], make([]byte, 4096)); err != nil {
					must(t, unix.SetNonblock(ends[1], false))
					return ends[1]
				}
			}
		},
		"a directory": func(t *testing.T) int {
			fd, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			must(t, err)
			return fd
		},
		"a path": func(t *testing.T) int {
			fd, err := unix.Open("/dev/shm", unix.O_PATH|unix.O_CLOEXEC, 0)
			must(t, err)
			return fd
		},
		"a file of a disk": func(t *testing.T) int {
			name := t.TempDir() + "/memory"
			must(t, os.WriteFile(name, make([]byte, 4096), 0o600))
			var fs unix.Statfs_t
			must(t, unix.Statfs(name, &fs))
			if fs.Type == unix.TMPFS_MAGIC {
				t.Skip("the directory of temporary files is a tmpfs")
			}
			fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			return fd
		},
		"a device": func(t *testing.T) int {
			fd, err := unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			return fd
		},
	} {
		t.Run(name, func(t *testing.T) {
			fd := open(t)
			p.wantErr(unix.EINVAL, 8, setIRQs(arm, 2, 0, 1), fd)
			p.wantErr(unix.EINVAL, 8, setIRQs(unmaskFD, 0, 0, 1), fd)
			p.wantErr(unix.ENODEV, 2, dmaMap(1, 0, 0, 4096), fd)
			must(t, unix.Close(fd))
		})
	}
	if n := len(c.Memory().Mappings()); n != 0 {
		t.Errorf("%d mappings", n)
	}
	for limit := time.Now().Add(patience); leaktest.Descriptors(t) > before; { // closed by goroutines
		if time.Now().After(limit) {
			t.Fatalf("%d descriptors, %d before", leaktest.Descriptors(t), before)
		}
	}
}

// The server goes on while descriptors of the VMM cannot be closed, and ends; a VMM
// with too many of them loses its connection.
func TestDescriptorsThatDoNotClose(t *testing.T) {
	f := serve(t)
	p, _ := f.connect()
	send := func(fd int) error {
		m := p.message(8, 0, setIRQs(arm, 2, 0, 1))
		p.send(m[:1], fd)
		must(t, unix.Close(fd)) // the server's is the last, which it closes after the message
		p.send(m[1:])
		r, err := p.tryRecv()
		if err == nil && r.errno != unix.EINVAL {
			err = fmt.Errorf("%w", r.errno)
		}
		return err
	}
	for range rights.MaxClosing {
		must(t, send(rightstest.Lingering(t)))
	}
	p.ok(4, le(16, 0, 0, 0))
	other, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(other)
	p.send(p.message(8, 0, setIRQs(arm, 2, 0, 1)), other)
	if _, err := p.tryRecv(); err == nil {
		t.Error("a further descriptor is accepted")
	}
	_ = waitErr(t, f.dev.disconnected)
	f.dial().wantErr(unix.EBUSY, 1, []byte(qemuVersion))
}

// control calls f with the descriptor of a connection.
func control(t *testing.T, c *net.UnixConn, f func(fd int)) {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, errors.Join(err, raw.Control(func(fd uintptr) { f(int(fd)) })))
}

// The kernel would close the descriptors beyond those that a message may carry while it
// hands the message over.
func TestTooManyDescriptors(t *testing.T) {
	t.Run("of a VMM", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		control(t, p.UnixConn, func(fd int) { rightstest.Send(t, fd, p.message(8, 0, setIRQs(arm, 2, 0, 1)), MaxFDs+1) })
		rightstest.AtOnce(t, "the server", func() {
			if err := waitErr(t, f.dev.disconnected); err == nil {
				t.Error("the connection ended without an error")
			}
			must(t, f.Close())
		})
	})
	t.Run("of a server", func(t *testing.T) {
		c, err := fakeServer(t, ClientConfig{}, `{}`, nil, func(p *rawPeer) {
			control(t, p.UnixConn, func(fd int) { rightstest.Send(t, fd, make([]byte, HeaderSize), MaxFDs+1) })
		})
		must(t, err)
		rightstest.AtOnce(t, "the client", func() {
			<-c.Done()
			must(t, c.Close())
		})
	})
	t.Run("a region that lingers", func(t *testing.T) {
		c, err := fakeServer(t, ClientConfig{}, `{}`, nil, func(p *rawPeer) {
			p.id = p.recv().id - 1
			control(t, p.UnixConn, func(fd int) { rightstest.Send(t, fd, p.message(5, 1, le(32, 7, 0, 0, uint64(4096), uint64(0))), 1) })
		})
		must(t, err)
		rightstest.AtOnce(t, "the client", func() {
			if n, err := c.RegionSize(bg, 0); n != 4096 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
			must(t, c.Close())
		})
	})
	t.Run("a twin socket that lingers", func(t *testing.T) {
		const twin = `{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}`
		fd := rightstest.Lingering(t)
		rightstest.AtOnce(t, "the client", func() {
			_, err := fakeServer(t, ClientConfig{}, twin, []int{fd}, func(*rawPeer) {})
			if protocol := new(ProtocolError); !errors.As(err, &protocol) {
				t.Errorf("connected: %v", err)
			}
		})
		go unix.Close(fd)
	})
}

// A client does not connect while an earlier connection to the server has left
// descriptors that do not close.
func TestDisposerOfSeveralClients(t *testing.T) {
	f := serve(t)
	all := new(Disposer)
	first, _ := f.client(ClientConfig{Disposer: all})
	must(t, first.Close())
	for range rights.MaxClosing {
		all.Close([]int{rightstest.Lingering(t)})
	}
	if c, err := Dial(t.Context(), f.path, ClientConfig{Disposer: all}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("connected: %v, %v", c, err)
	}
}

// maps returns the number of mappings of memfds in this process.
func maps(t *testing.T) int {
	t.Helper()
	leaktest.NeedProc(t)
	text, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return strings.Count(string(text), "/memfd:")
}

// A guest behind a virtual IOMMU maps single pages. All of them share one mapping
// of the file, and each is as long as it says.
func TestPagesShareAView(t *testing.T) {
	f := serve(t)
	p, c := f.connect()
	const page, n = 4096, 5000
	file, b := memfd(t, 2*n*page)
	before := maps(t)
	for i := range uint64(n) {
		b[2*i*page] = byte(i)
		p.ok(2, dmaMap(3, 2*i*page, 2*i*page, page), mustFD(t, file))
	}
	if now := maps(t); now != before+1 {
		t.Errorf("%d mappings of memory, %d before", now, before)
	}
	one := make([]byte, 1)
	for i := range uint64(n) {
		if err := c.Memory().Read(2*i*page, one); err != nil || one[0] != byte(i) {
			t.Fatalf("page %d: %d, %v", i, one[0], err)
		}
		if err := c.Memory().Read(2*i*page+page-1, make([]byte, 2)); !errors.Is(err, ErrUnmapped) {
			t.Fatalf("beyond page %d: %v", i, err)
		}
	}
	for i := range uint64(n) {
		p.ok(3, dmaUnmap(2*i*page, page))
		if now := maps(t); i < n-1 && now != before+1 || i == n-1 && now != before {
			t.Fatalf("%d mappings of memory after %d unmaps, %d before", now, i+1, before)
		}
	}
}

// A read-only descriptor of a file gives no right to write through a view of it.
func TestViewKeepsRights(t *testing.T) {
	p, c := serve(t).connect()
	file, _ := memfd(t, 8192)
	leaktest.NeedProc(t)
	readOnly, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", mustFD(t, file)), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(readOnly)
	p.ok(2, dmaMap(3, 0, 0, 4096), mustFD(t, file))
	p.wantErr(unix.EACCES, 2, dmaMap(3, 4096, 4096, 4096), readOnly)
	p.ok(2, dmaMap(1, 4096, 4096, 4096), readOnly)
	if err := c.Memory().Write(4096, []byte{1}); !errors.Is(err, ErrPermission) {
		t.Errorf("write to a read-only mapping: %v", err)
	}
}

// Sparse files of any length, files that grow and many files are bounded.
func TestViewsAreBounded(t *testing.T) {
	f := serve(t, func(c *Config) { c.MaxMemory = 1 << 30 })
	p, c := f.connect()
	before := maps(t)
	hole := func(size int64) *os.File {
		t.Helper()
		fd, err := unix.MemfdCreate("hole", unix.MFD_CLOEXEC)
		must(t, err)
		file := os.NewFile(uintptr(fd), "hole")
		t.Cleanup(func() { _ = file.Close() })
		must(t, file.Truncate(size))
		return file
	}
	huge := mustFD(t, hole(1<<50))
	p.ok(2, dmaMap(3, 1<<49+512, 0, 512), huge)
	must(t, c.Memory().Write(0, make([]byte, 512)))
	p.wantErr(unix.ENOMEM, 2, dmaMap(3, 0, 1<<40, 1<<31), huge)
	grows := hole(4096)
	for i := range int64(3) {
		must(t, grows.Truncate((i+1)<<20))
		p.ok(2, dmaMap(3, uint64(i)<<20, uint64(i+1)<<20, 1<<20), mustFD(t, grows))
	}
	p.wantErr(unix.EINVAL, 2, dmaMap(3, 2<<20, 8<<20, 2<<20), mustFD(t, grows))
	for i := uint64(1); ; i++ {
		r := p.ask(2, dmaMap(3, i<<20, 1<<45+i<<20, 4096), huge)
		if r.errno == unix.ENOSPC {
			if i < maxViews-10 || i > maxViews {
				t.Errorf("refused at %d", i)
			}
			break
		} else if r.errno != 0 {
			t.Fatal(r.errno)
		}
	}
	_ = p.Close()
	_ = waitErr(t, f.dev.disconnected)
	<-c.Done()
	if now := maps(t); now != before {
		t.Errorf("%d mappings of memory, %d before", now, before)
	}
}

// Memory that the VMM maps privately does not hold what its guest sees.
func TestPrivateMappingIsRefused(t *testing.T) {
	leaktest.NeedProc(t)
	p, _ := serve(t).connect()
	fd, err := unix.MemfdCreate("private", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Ftruncate(fd, 8192))
	b, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must(t, err)
	p.wantErr(unix.EINVAL, 2, dmaMap(3, 0, 0, 4096), fd)
	p.wantErr(unix.EINVAL, 2, dmaMap(1, 0, 0, 4096), fd)
	shared, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	p.ok(2, dmaMap(3, 0, 0, 4096), fd)
	must(t, errors.Join(unix.Munmap(b), unix.Munmap(shared)))
}

func FuzzFindMappings(f *testing.F) {
	f.Add("7f1c80000000-7f1cc0000000 rw-s 00000000 00:01 2049  /memfd:mem (deleted)\n1-2 rw-p 00000000 00:01 2049")
	f.Fuzz(func(_ *testing.T, text string) {
		findMappings(strings.NewReader(text), fileID{device: unix.Mkdev(0, 1), inode: 2049})
	})
}

// Guest memory of huge pages is mapped in the sections of a PC, which are not
// multiples of a huge page.
func TestHugePages(t *testing.T) {
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_HUGETLB)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV) {
		t.Skipf("the kernel has no huge pages: %v", err)
	}
	must(t, err)
	file := os.NewFile(uintptr(fd), "guest")
	defer file.Close()
	must(t, file.Truncate(16<<20))
	p, c := serve(t).connect()
	before := maps(t)
	for _, m := range [][3]uint64{{0, 0, 0xa0000}, {0xc0000, 0xc0000, 0x20000}, {0x100000, 0x100000, 15 << 20}, {2 << 20, 1 << 32, 4 << 20}} {
		p.ok(2, dmaMap(3, m[0], m[1], m[2]), fd)
	}
	err = c.Memory().Write(0xc0000, []byte("huge"))
	if errors.Is(err, ErrFault) {
		t.Log("no huge page is free (sysctl vm.nr_hugepages): only the mapping was tested")
	} else if err != nil {
		t.Error(err)
	}
	p.ok(3, dmaUnmap(0, 1<<40))
	if now := maps(t); now != before {
		t.Errorf("%d mappings, %d before", now, before)
	}
}

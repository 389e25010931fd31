package vfiouser

import (
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRegionRead reads 4 bytes over a UNIX socket, beside a bare
// ping-pong of as many bytes: the cost of a wake-up drifts from minute to
// minute, so only the two together mean something.
func BenchmarkRegionRead(b *testing.B) {
	b.Run("vfio-user", func(b *testing.B) {
		f := serve(b)
		c, err := Dial(bg, f.path, ClientConfig{})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		p := make([]byte, 4)
		b.ReportAllocs()
		for b.Loop() {
			if err := c.RegionRead(bg, 0, 0, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("raw-client", func(b *testing.B) {
		f := serve(b)
		p, _ := f.connect()
		req := p.message(9, 0, access(0, 0, 4))
		buf := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			pingPong(b, p, req, buf[:36])
		}
	})
	b.Run("socketpair", func(b *testing.B) {
		x, y := socketPair(b)
		go func() {
			buf := make([]byte, 36)
			for {
				if _, err := io.ReadFull(y, buf[:32]); err != nil {
					return
				}
				if _, err := y.Write(buf); err != nil {
					return
				}
			}
		}()
		req, buf := make([]byte, 32), make([]byte, 36)
		b.ReportAllocs()
		for b.Loop() {
			pingPong(b, x, req, buf)
		}
	})
}

func pingPong(tb testing.TB, c io.ReadWriter, req, buf []byte) {
	if _, err := c.Write(req); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.ReadFull(c, buf); err != nil {
		tb.Fatal(err)
	}
}

func socketPair(tb testing.TB) (a, b *net.UnixConn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		f := os.NewFile(uintptr(fd), "socket")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = c.Close() })
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

func BenchmarkMemoryWrite(b *testing.B) {
	m := newMemory(8, DefaultMaxMemory)
	f, _ := memfd(b, 1<<20)
	if _, err := m.add(DMAMap{Flags: 3, Addr: 0x1000, Size: 1 << 20}, mustFD(b, f)); err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = m.remove(DMAUnmap{Flags: DMAUnmapAll}) }()
	p := make([]byte, 256)
	b.SetBytes(256)
	b.ReportAllocs()
	for b.Loop() {
		if err := m.Write(0x2000, p); err != nil {
			b.Fatal(err)
		}
	}
}

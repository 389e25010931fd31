package rights_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/rawio/rights/rightstest"
)

var kinds = map[string]int{"stream": unix.SOCK_STREAM, "packets": unix.SOCK_SEQPACKET}

// disposer returns a Disposer that has closed everything at the end of the test.
func disposer(t *testing.T) *rights.Disposer {
	d := new(rights.Disposer)
	t.Cleanup(func() { // the other ends of the sockets have ended the waits
		for limit := time.Now().Add(rightstest.Patience); d.Unclosed() > 0; runtime.Gosched() {
			if time.Now().After(limit) {
				t.Fatalf("%d descriptors are not closed", d.Unclosed())
			}
		}
	})
	return d
}

// pair returns a socket and its peer.
func pair(t *testing.T, kind int) (own, peer int) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(p[1]) })
	return p[0], p[1]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The kernel closes descriptors for which a receiver has no room, and the receiver waits.
func TestReceiveDoesNotWait(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			d := disposer(t)
			own, peer := pair(t, kind)
			rightstest.Send(t, peer, []byte("hello"), 3)
			rightstest.AtOnce(t, "Receive", func() {
				var p [8]byte
				n, carried, err := d.Receive(own, p[:], 0)
				if string(p[:n]) != "hello" || !carried || err != nil {
					t.Errorf("received %q, with descriptors: %v, %v", p[:n], carried, err)
				}
			})
			rightstest.AtOnce(t, "CloseSocket", func() { d.CloseSocket(own) })
		})
	}
}

// A receiver skips an urgent byte, with the descriptors that came with it.
func TestUrgentBytesAreNotSkipped(t *testing.T) {
	d := disposer(t)
	own, peer := pair(t, unix.SOCK_STREAM)
	c := rights.NewConn(unixConn(t, own), d)
	for range 2 {
		rightstest.SendFlags(t, peer, []byte{'u'}, 1, unix.MSG_OOB)
		must(t, unix.Send(peer, []byte{'o'}, 0))
	}
	rightstest.AtOnce(t, "Read", func() {
		var p [2]byte
		if _, err := io.ReadFull(c, p[:]); string(p[:]) != "uo" || err != nil {
			t.Errorf("read %q, %v", p, err)
		}
	})
	rightstest.AtOnce(t, "Close", func() { must(t, c.Close()) })
}

// The kernel closes the descriptors of messages that were not received with the socket.
func TestCloseDoesNotWait(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			d := disposer(t)
			own, peer := pair(t, kind)
			if kind == unix.SOCK_SEQPACKET {
				must(t, unix.Send(peer, nil, 0)) // is not the end
			}
			for range 2 {
				rightstest.Send(t, peer, []byte{1}, 1)
			}
			rightstest.AtOnce(t, "CloseSocket", func() { d.CloseSocket(own) })
			// The close of a socket that was not emptied tells its peer so, once.
			err := unix.Sendto(peer, []byte{1}, unix.MSG_NOSIGNAL, nil)
			if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the peer of a closed socket sends: %v", err)
			}
			if d.Unclosed() == 0 {
				t.Error("the descriptors are closed, and did not linger")
			}
		})
	}
}

// A socket without descriptors in it is closed before CloseSocket returns.
func TestCloseOfACleanSocket(t *testing.T) {
	d := disposer(t)
	own, peer := pair(t, unix.SOCK_STREAM)
	must(t, unix.Send(peer, make([]byte, 100<<10), 0))
	d.CloseSocket(own)
	if _, err := unix.FcntlInt(uintptr(own), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the socket is open: %v", err)
	}
}

func unixConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "socket")
	c, err := net.FileConn(f)
	must(t, errors.Join(err, f.Close()))
	return c.(*net.UnixConn)
}

func TestConnDoesNotWait(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			own, peer := pair(t, kind)
			c := rights.NewConn(unixConn(t, own), disposer(t))
			rightstest.Send(t, peer, []byte("one"), 1)
			rightstest.Send(t, peer, []byte("two"), 1)
			var p [3]byte
			rightstest.AtOnce(t, "Read", func() {
				if _, err := io.ReadFull(c, p[:]); string(p[:]) != "one" || err != nil {
					t.Errorf("read %q, %v", p, err)
				}
			})
			rightstest.AtOnce(t, "Close", func() { must(t, c.Close()) })
			if err := c.Close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("closed again: %v", err)
			}
		})
	}
}

// Readers such as bufio's take the counts and the end as those of every io.Reader.
func TestEndsOfAConn(t *testing.T) {
	own, peer := pair(t, unix.SOCK_STREAM)
	c := rights.NewConn(unixConn(t, own), disposer(t))
	must(t, c.SetReadDeadline(time.Unix(1, 0)))
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %d, %v", n, err)
	}
	must(t, errors.Join(c.SetReadDeadline(time.Time{}), unix.Shutdown(peer, unix.SHUT_WR)))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF { //nolint:errorlint // io.Reader returns it itself
		t.Errorf("at the end: %d, %v", n, err)
	}
	must(t, c.Close())
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %d, %v", n, err)
	}
}

// A peer whose descriptors are not closed has nothing received any more: they would
// fill the table of this process.
func TestConnOfAFullPeer(t *testing.T) {
	d := disposer(t)
	own, peer := pair(t, unix.SOCK_SEQPACKET)
	c := rights.NewConn(unixConn(t, own), d)
	rightstest.Send(t, peer, []byte{1}, rights.MaxClosing)
	rightstest.Send(t, peer, []byte{2}, 1)
	rightstest.AtOnce(t, "Read", func() {
		_, err := c.Read(make([]byte, 1))
		must(t, err)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, rights.ErrFull) {
			t.Errorf("read: %v", err)
		}
		must(t, c.Close())
	})
	if n := d.Unclosed(); n != rights.MaxClosing+1 {
		t.Errorf("%d descriptors are not closed, want those of the first message and the socket", n)
	}
}

// Connections that were not accepted end with their listener, and the descriptors in them too.
func TestListenerDoesNotWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l := rights.NewListener(ln, disposer(t))
	for range 3 {
		peer, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(peer)
		must(t, unix.Connect(peer, &unix.SockaddrUnix{Name: path}))
		rightstest.Send(t, peer, []byte{1}, 1)
	}
	accepted, err := l.Accept()
	must(t, err)
	rightstest.AtOnce(t, "Close of a connection", func() { must(t, accepted.Close()) })
	rightstest.AtOnce(t, "Close of the listener", func() { must(t, l.Close()) })
}

// Memory is freed with its last descriptor, which takes long if there is much of it.
func TestMuchMemoryIsClosedLater(t *testing.T) {
	d := disposer(t)
	for _, c := range []struct {
		bytes int64
		later bool
	}{{1 << 20, false}, {64 << 20, true}} {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		must(t, err)
		must(t, unix.Fallocate(fd, 0, 0, c.bytes))
		// Lingering sockets keep the turns of the peer.
		for range rights.MaxClosers - d.Unclosed() {
			d.Close([]int{rightstest.Lingering(t)})
		}
		before := d.Unclosed()
		d.Close([]int{fd})
		if later := d.Unclosed() > before; later != c.later {
			t.Errorf("%d bytes closed later: %v, want %v", c.bytes, later, c.later)
		}
	}
}

// The closes of a peer that wait are bounded: its others follow when those have ended. The
// closes of another peer do not wait.
func TestClosesTakeTurns(t *testing.T) {
	stuck, other := disposer(t), disposer(t)
	null := func() int {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		return fd
	}
	for range rights.MaxClosers {
		stuck.Close([]int{rightstest.Lingering(t)})
	}
	for range rights.MaxClosing - rights.MaxClosers {
		if stuck.Full() {
			t.Fatalf("%d descriptors are too many", stuck.Unclosed())
		}
		stuck.Close([]int{null()})
	}
	if !stuck.Full() {
		t.Errorf("the peer may send more than %d descriptors", stuck.Unclosed())
	}
	other.Close([]int{null()})
	for limit := time.Now().Add(rightstest.Patience); other.Unclosed() > 0; runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatal("a close of another peer waits")
		}
	}
	for range 1000 { // time for closes that do not wait for their turn
		runtime.Gosched()
	}
	if n := stuck.Unclosed(); n != rights.MaxClosing {
		t.Errorf("%d descriptors wait for their turn, want %d", n, rights.MaxClosing)
	}
}

func TestSpace(t *testing.T) {
	if want := unix.CmsgSpace(rights.Most*4) + unix.CmsgSpace(unix.SizeofUcred); rights.Space < want {
		t.Errorf("%d bytes, and the kernel may write %d", rights.Space, want)
	}
}

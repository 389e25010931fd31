package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Kinds of far ends of an echo.
const (
	echoUDP       = "udp"           // sockets of Go
	echoUDPBlock  = "udp, blocking" // blocking system calls in a separate thread
	echoUDPPoll   = "udp, polled"   // the same, but polls like the proxies before it blocks
	echoUDPSpin   = "udp, spinning" // the same, but always polls: no wake-ups
	echoUnix      = "unix"
	echoUnixBlock = "unix, blocking"
	echoUnixPoll  = "unix, polled"
)

// alwaysPolling is longer than any round trip here.
var alwaysPolling = reader.Polling{Spin: time.Millisecond}

// A request begins with the size of the answer. Every message ends with a number,
// which the answer repeats.
const minMessage = 2 + 8

// maxMessage is the largest size of an answer.
const maxMessage = 64 << 10

// echo is the far end of the bare ping-pongs.
type echo struct {
	polling   reader.Polling // of the polling kinds
	addresses map[string]string
	stops     []func()
}

func newEcho(dir string, polling reader.Polling) (*echo, error) {
	e := &echo{polling: polling, addresses: map[string]string{}}
	adders := []func(dir string) error{
		e.addUDP, e.addUnix,
		func(string) error { return e.addBlockingUDP(echoUDPBlock, reader.Polling{}) },
		func(string) error { return e.addBlockingUDP(echoUDPSpin, alwaysPolling) },
		func(dir string) error {
			return e.addBlockingUnix(echoUnixBlock, filepath.Join(dir, "block"), reader.Polling{})
		},
	}
	if polling != (reader.Polling{}) {
		adders = append(adders,
			func(string) error { return e.addBlockingUDP(echoUDPPoll, polling) },
			func(dir string) error { return e.addBlockingUnix(echoUnixPoll, filepath.Join(dir, "poll"), polling) })
	}
	for _, add := range adders {
		if err := add(dir); err != nil {
			e.close()
			return nil, err
		}
	}
	return e, nil
}

func (e *echo) close() {
	for _, stop := range e.stops {
		stop()
	}
}

// serve runs f until stop makes it return.
func (e *echo) serve(f func(), stop func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	e.stops = append(e.stops, func() {
		stop()
		wg.Wait()
	})
}

// answer makes the answer to a request in out; nil: the request has none.
func answer(out, q []byte) []byte {
	if len(q) < minMessage {
		return nil
	}
	n := int(binary.LittleEndian.Uint16(q))
	if n < minMessage || n > len(out) {
		return nil
	}
	copy(out[n-8:n], q[len(q)-8:])
	return out[:n]
}

func (e *echo) addUDP(string) error {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	e.addresses[echoUDP] = c.LocalAddr().String()
	e.serve(func() {
		q, out := make([]byte, maxMessage), make([]byte, maxMessage)
		for {
			n, from, err := c.ReadFromUDPAddrPort(q)
			if err != nil {
				return
			}
			if a := answer(out, q[:n]); a != nil {
				_, _ = c.WriteToUDPAddrPort(a, from)
			}
		}
	}, func() { _ = c.Close() })
	return nil
}

func (e *echo) addBlockingUDP(kind string, polling reader.Polling) error {
	fd, addr, err := blockingUDP()
	if err != nil {
		return err
	}
	e.addresses[kind] = addr.String()
	e.serve(func() {
		runtime.LockOSThread()
		q, out := make([]byte, maxMessage), make([]byte, maxMessage)
		poller := reader.Poller{Polling: polling}
		var n int
		var from unix.Sockaddr
		receive := receiver(func(flags int) (err error) {
			n, from, err = unix.Recvfrom(fd, q, flags)
			return err
		})
		for {
			err := poller.Wait(true, receive)
			if err != nil || n == 0 {
				return
			}
			if a := answer(out, q[:n]); a != nil {
				_ = unix.Sendto(fd, a, 0, from)
			}
		}
	}, func() { closeBlocking(fd, addr) })
	return nil
}

// blockingUDP opens a socket whose calls block their thread.
func blockingUDP() (int, netip.AddrPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, netip.AddrPort{}, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, netip.AddrPort{}, errors.Join(err, unix.Close(fd))
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return -1, netip.AddrPort{}, errors.Join(err, unix.Close(fd))
	}
	in4 := sa.(*unix.SockaddrInet4)
	return fd, netip.AddrPortFrom(netip.AddrFrom4(in4.Addr), uint16(in4.Port)), nil
}

// closeBlocking ends a thread that blocks in Recvfrom. An empty datagram wakes it;
// closing the socket would not.
func closeBlocking(fd int, addr netip.AddrPort) {
	if c, err := net.Dial("udp", addr.String()); err == nil {
		_, _ = c.Write(nil)
		_ = c.Close()
	}
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
}

func (e *echo) addUnix(dir string) error {
	path := filepath.Join(dir, "echo")
	ln, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return err
	}
	e.addresses[echoUnix] = path
	e.serve(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		_ = ln.Close()
		echoStream(c)
		_ = c.Close()
	}, func() { _ = ln.Close() })
	return nil
}

// echoStream answers requests of unixRequest bytes until the stream ends.
func echoStream(c io.ReadWriter) {
	q, out := make([]byte, unixRequest), make([]byte, maxMessage)
	for {
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		if _, err := c.Write(answer(out, q)); err != nil {
			return
		}
	}
}

func (e *echo) addBlockingUnix(kind, path string, polling reader.Polling) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		return err
	}
	e.addresses[kind] = path
	e.serve(func() {
		runtime.LockOSThread()
		defer unix.Close(fd)
		c, _, err := unix.Accept(fd)
		if err != nil {
			return
		}
		defer unix.Close(c)
		echoStream(newBlockingSocket(c, polling))
	}, func() {
		if c, err := net.Dial("unix", path); err == nil { // wakes Accept
			_ = c.Close()
		}
	})
	return nil
}

// blockingSocket receives and sends in blocking calls. Like a proxy it polls before
// it blocks.
type blockingSocket struct {
	fd      int
	poller  reader.Poller
	into    []byte
	n       int
	receive func(block bool) error // allocated once
}

func newBlockingSocket(fd int, polling reader.Polling) *blockingSocket {
	s := &blockingSocket{fd: fd, poller: reader.Poller{Polling: polling}}
	s.receive = receiver(func(flags int) (err error) {
		s.n, _, err = unix.Recvfrom(s.fd, s.into, flags)
		return err
	})
	return s
}

func (s *blockingSocket) Read(p []byte) (int, error) {
	s.into = p
	err := s.poller.Wait(true, s.receive)
	if err == nil && s.n == 0 {
		err = io.EOF
	}
	return max(s.n, 0), err
}

func (s *blockingSocket) Write(p []byte) (int, error) {
	n, err := unix.Write(s.fd, p)
	return max(n, 0), err
}

// receiver makes the function that a reader.Poller calls from a system call.
func receiver(receive func(flags int) error) func(block bool) error {
	return func(block bool) error {
		flags := unix.MSG_DONTWAIT
		if block {
			flags = 0
		}
		for {
			switch err := receive(flags); {
			case errors.Is(err, unix.EINTR):
			case errors.Is(err, unix.EAGAIN):
				return reader.ErrNothing
			default:
				return err
			}
		}
	}
}

// caller is the near end of a ping-pong. call makes a round trip.
type caller struct {
	call  func() error
	close func()
}

// Sizes of the messages of a register read in vfio-user: a header of 16 bytes, 16
// bytes of region, offset and count, and the four bytes of the answer.
const (
	unixRequest = 32
	unixAnswer  = 36
)

// newCaller connects to one far end of an echo.
func newCaller(kind, addr string, request, answer int, polling reader.Polling) (*caller, error) {
	switch kind {
	case echoUDPPoll, echoUnixPoll:
	case echoUDPSpin:
		polling = alwaysPolling
	default:
		polling = reader.Polling{}
	}
	q, a := make([]byte, max(request, minMessage)), make([]byte, max(answer, minMessage)+1)
	binary.LittleEndian.PutUint16(q, uint16(max(answer, minMessage)))
	var count uint64
	pingPong := func(exchange func(q, a []byte) (int, error)) func() error {
		return func() error {
			count++
			binary.LittleEndian.PutUint64(q[len(q)-8:], count)
			n, err := exchange(q, a)
			if err != nil {
				return err
			}
			if n != len(a)-1 || binary.LittleEndian.Uint64(a[n-8:]) != count {
				return fmt.Errorf("ping-pong: an answer of %d bytes does not belong to message %d", n, count)
			}
			return nil
		}
	}
	switch kind {
	case echoUDP:
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		if err != nil {
			return nil, err
		}
		return &caller{pingPong(func(q, a []byte) (int, error) {
			if _, err := c.Write(q); err != nil {
				return 0, err
			}
			return c.Read(a)
		}), func() { _ = c.Close() }}, nil
	case echoUDPBlock, echoUDPPoll, echoUDPSpin:
		fd, _, err := blockingUDP()
		if err != nil {
			return nil, err
		}
		peer := netip.MustParseAddrPort(addr)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: peer.Addr().As4(), Port: int(peer.Port())}); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
		f := newBlockingSocket(fd, polling)
		return &caller{pingPong(func(q, a []byte) (int, error) {
			if _, err := f.Write(q); err != nil {
				return 0, err
			}
			return f.Read(a)
		}), func() { _ = unix.Close(fd) }}, nil
	}
	stream := func(c io.ReadWriter) func() error {
		return pingPong(func(q, a []byte) (int, error) {
			if _, err := c.Write(q); err != nil {
				return 0, err
			}
			return io.ReadFull(c, a[:len(a)-1])
		})
	}
	if kind == echoUnix {
		c, err := net.Dial("unix", addr)
		if err != nil {
			return nil, err
		}
		return &caller{stream(c), func() { _ = c.Close() }}, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: addr}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &caller{stream(newBlockingSocket(fd, polling)), func() { _ = unix.Close(fd) }}, nil
}

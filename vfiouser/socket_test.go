package vfiouser

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newPair returns a socket and its peer.
func newPair(t *testing.T) (*socket, *net.UnixConn) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[i] = c.(*net.UnixConn)
	}
	s, err := newSocket(ends[0], new(Disposer))
	if err != nil {
		t.Fatal(err)
	}
	return s, ends[1]
}

// A peer that reads a little now and then cannot keep a send, and the lock of its
// connection, for longer than one that does not read at all.
func TestSendIsBoundedForASlowPeer(t *testing.T) {
	s, peerEnd := newPair(t)
	const stall = 100 * time.Millisecond
	s.stall = stall
	var peer sync.WaitGroup
	peer.Go(func() {
		// Each read makes room for a part of the message within the limit.
		tick := time.NewTicker(stall / 4)
		defer tick.Stop()
		buf := make([]byte, 256<<10)
		for range tick.C {
			if _, err := peerEnd.Read(buf); err != nil {
				return
			}
		}
	})
	if err := s.send(make([]byte, 1<<30)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("sending to a slow peer: %v", err)
	}
	s.close()
	peer.Wait()
	_ = peerEnd.Close()
}

// A message that lies in two places arrives as one, in order, also where the socket takes
// it in many parts that end in either of them.
func TestSendParts(t *testing.T) {
	for _, n := range [][2]int{{0, 5}, {5, 0}, {40, 28 << 10}, {600 << 10, 700 << 10}} {
		s, peer := newPair(t)
		want := make([]byte, n[0]+n[1])
		for i := range want {
			want[i] = byte(i * 7 >> 3)
		}
		got := make(chan []byte)
		go func() {
			b := make([]byte, len(want))
			m, _ := io.ReadFull(peer, b)
			got <- b[:m]
		}()
		if err := s.sendParts(want[:n[0]], want[n[0]:]); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(<-got, want) {
			t.Errorf("%d and %d bytes: other bytes arrived", n[0], n[1])
		}
		if s.sent.Load() != uint64(len(want)) {
			t.Errorf("%d bytes counted of %d", s.sent.Load(), len(want))
		}
		s.close()
		_ = peer.Close()
	}
}

package vfiouser

import (
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A peer that reads a little now and then cannot keep a send, and the lock of its
// connection, for longer than one that does not read at all.
func TestSendIsBoundedForASlowPeer(t *testing.T) {
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
	const stall = 100 * time.Millisecond
	s.stall = stall
	var peer sync.WaitGroup
	peer.Go(func() {
		// Each read makes room for a part of the message within the limit.
		tick := time.NewTicker(stall / 4)
		defer tick.Stop()
		buf := make([]byte, 256<<10)
		for range tick.C {
			if _, err := ends[1].Read(buf); err != nil {
				return
			}
		}
	})
	if err := s.send(make([]byte, 1<<30)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("sending to a slow peer: %v", err)
	}
	s.close()
	peer.Wait()
	_ = ends[1].Close()
}

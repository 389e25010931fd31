package vfiouser

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// limitFiles lets the process have n descriptors more than it has, until the end of the test. It
// returns the limit.
func limitFiles(t *testing.T, n int) uint64 {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // the lowest that is free
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(next)
	limit := unix.Rlimit{Cur: uint64(next + n), Max: was.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	return limit.Cur
}

// Event descriptors leave room below the limit of the process, and the error names the limit.
func TestEventsLeaveRoom(t *testing.T) {
	limit := limitFiles(t, rights.Spare+3)
	var files []*os.File
	var at *rights.LimitError
	for {
		f, err := NewEvent()
		if err != nil {
			if !errors.As(err, &at) || at.Limit != limit {
				t.Errorf("at the limit of %d: %v", limit, err)
			}
			break
		}
		files = append(files, f)
	}
	if len(files) == 0 || len(files) > 3 {
		t.Errorf("%d descriptors", len(files))
	}
	if f, err := os.Open("/dev/null"); err != nil {
		t.Errorf("no file can be opened: %v", err)
	} else {
		files = append(files, f)
	}
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A message whose descriptors do not fit below the limit ends the connection with the limit as
// the reason. It looked like one without descriptors: memory that a VM does not share.
func TestDescriptorsBeyondTheLimit(t *testing.T) {
	s, peer := newPair(t)
	event, err := NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	fd := mustFD(t, event)
	if _, _, err := peer.WriteMsgUnix([]byte("x"), unix.UnixRights(fd, fd, fd), nil); err != nil {
		t.Fatal(err)
	}
	before := leaktest.Descriptors(t)
	limitFiles(t, 2)
	var at *rights.LimitError
	_, fds, err := s.recv(make([]byte, 8), waitNot)
	if !errors.As(err, &at) || !errors.Is(err, unix.EMFILE) || len(fds) > 0 {
		t.Errorf("%v with %d descriptors", err, len(fds))
	}
	if got := leaktest.Descriptors(t); got != before {
		t.Errorf("%d descriptors, %d before", got, before)
	}
	s.close()
	_ = peer.Close()
	_ = event.Close()
}

// The limit is not the reason where there is room below it.
func TestDescriptorsThatAreForbidden(t *testing.T) {
	s, peer := newPair(t)
	event, err := NewEvent()
	must(t, err)
	_, _, err = peer.WriteMsgUnix([]byte("x"), unix.UnixRights(mustFD(t, event)), nil)
	must(t, err)
	s.rx.oob = s.rx.oob[:unix.CmsgLen(0)] // as if a security module had intervened
	var limit *rights.LimitError
	if _, _, err := s.recv(make([]byte, 8), waitNot); err == nil || errors.As(err, &limit) || !strings.Contains(err.Error(), "security module") {
		t.Errorf("the reason is %v", err)
	}
	s.close()
	_ = peer.Close()
	_ = event.Close()
}

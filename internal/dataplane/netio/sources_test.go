package netio

import (
	"errors"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// source has one message, for whose arrival stands an eventfd.
type source struct {
	t        *testing.T
	due, has bool
	event    int // 0: none
	holds    int
	released int
}

func (s *source) Due() bool { return s.due }
func (s *source) Poll() bool {
	had := s.has
	s.due, s.has = false, false
	return had
}

func (s *source) Hold() (fd uintptr, release func()) {
	if s.event == 0 {
		return 0, nil
	}
	s.holds++
	return uintptr(s.event), func() { s.released++ }
}

// arrive gives the source a message.
func (s *source) arrive() {
	s.has = true
	if _, err := unix.Write(s.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		s.t.Error(err)
	}
}

func newInputWith(t *testing.T, sources ...*source) *input {
	f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0"}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.closeSockets() })
	for _, s := range sources {
		f.Poll(s)
	}
	return newInput(f, f.paths[0], 0)
}

// A reader that finds no datagram looks at the sources whose answers are due.
func TestReaderPollsSources(t *testing.T) {
	idle, busy := &source{has: true}, &source{due: true, has: true}
	in := newInputWith(t, idle, busy)
	if !in.Expects() {
		t.Error("an answer is due, and the reader does not expect it")
	}
	if err := in.Receive(false); err != nil || busy.has {
		t.Errorf("the message of the source is left: %v", err)
	}
	if !idle.has {
		t.Error("a source without a due answer was polled")
	}
	if in.Expects() {
		t.Error("no answer is due, and the reader expects one")
	}
	if err := in.Receive(false); !errors.Is(err, reader.ErrNothing) {
		t.Errorf("nothing came: %v", err)
	}
}

// newPeer opens a socket that sends datagrams until the test ends.
func newPeer(t *testing.T) *udp.Conn {
	t.Helper()
	peer, err := udp.Listen("127.0.0.1:0", udp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	return peer
}

// A reader that polls takes the message of a source whose answer is due before a
// datagram: the answer is the older one, and a look at the network in vain would delay it.
func TestReaderPollsSourcesFirst(t *testing.T) {
	busy := &source{due: true, has: true}
	in := newInputWith(t, busy)
	peer := newPeer(t)
	if err := peer.NewWriter().Write(make([]byte, 64), 64, in.conn.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if err := in.Receive(false); err != nil || busy.has {
		t.Errorf("the message of the source waits behind a datagram: %v", err)
	}
	if err := in.Receive(true); err != nil {
		t.Errorf("the datagram behind it: %v", err)
	}
}

// A reader that sleeps while an answer of a source is due wakes up for it, and for a
// datagram: no other goroutine has to.
func TestReaderSleepsInSources(t *testing.T) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	held, idle := &source{t: t, event: event}, &source{has: true}
	in := newInputWith(t, idle, held)
	peer := newPeer(t)
	if err := peer.NewWriter().Write(make([]byte, 64), 64, in.conn.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	if err := in.Receive(true); err != nil {
		t.Errorf("a datagram: %v", err)
	}
	before := in.path.heard.asked
	if err := in.Receive(true); !errors.Is(err, reader.ErrNothing) {
		t.Errorf("nothing came: %v", err)
	}
	if in.path.heard.asked == before {
		t.Error("a sleep in which nothing came proves that the network was listened to")
	}
	held.arrive()
	if err := in.Receive(true); err != nil || held.has {
		t.Errorf("the message of the source is left: %v", err)
	}
	if held.holds != 3 || held.released != 3 {
		t.Errorf("held %d times and released %d times, want 3", held.holds, held.released)
	}
	if !idle.has {
		t.Error("a source without a due answer was polled")
	}
}

// A server that never runs out of messages keeps the reader from no datagram: the network is
// that of all tenants.
func TestABusySourceLeavesTheNetworkItsTurn(t *testing.T) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	busy := &source{t: t, event: event}
	in := newInputWith(t, busy)
	peer := newPeer(t)
	for n := range uint64(3) {
		busy.arrive()
		if err := peer.NewWriter().Write(make([]byte, 64), 64, in.conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		in.path.heard.asked = in.fabric.Now() // the socket has just been found empty
		if err := in.Receive(true); err != nil || busy.has {
			t.Fatalf("the message of the source is left: %v", err)
		}
		if got := in.conn.Stats().RxDatagrams; got != n+1 {
			t.Fatalf("%d datagrams were read, want %d", got, n+1)
		}
	}
}

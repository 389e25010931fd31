package link

import (
	"errors"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

// A peer that starts a key phase with each datagram makes this end derive no key before this
// end has acknowledged a datagram of the present phase: a key costs as much as sixty small
// datagrams, in the reader that all bindings of a proxy share.
func TestPeerWaitsBeforeItChangesKeys(t *testing.T) {
	host, box := pair(t)
	buf := make([]byte, frame.MaxDatagram)
	send := func() error {
		t.Helper()
		host.keys.unacked = false // the peer does not wait
		if !host.Rekey(0) {
			t.Fatal("no next phase")
		}
		if err := host.Send(0, &tlp.Packet{Type: tlp.MWr, Addr: 0x1000, Length: 1, FirstBE: 15, Data: make([]byte, 4)}); err != nil {
			t.Fatal(err)
		}
		n, path := host.Transmit(0, buf)
		return box.Receive(0, path, buf[:n], func(*tlp.Packet) {})
	}
	phase := box.keys.receive.number
	if err := send(); err != nil {
		t.Fatalf("a key phase after an acknowledgement: %v", err)
	}
	for range 100 {
		if err := send(); !errors.Is(err, ErrSeal) {
			t.Fatalf("a key phase before an acknowledgement: %v", err)
		}
	}
	if n := box.keys.receive.number - phase; n != 1 {
		t.Errorf("%d keys were derived", n)
	}

	// The last phase that was accepted goes on, also by the other path.
	host, box = pair(t)
	for i := range 300 { // the number of the phase begins again
		if !host.Rekey(0) {
			t.Fatalf("no key phase %d", i)
		}
		for range 3 {
			if err := host.Send(0, &tlp.Packet{Type: tlp.MWr, Addr: 0x1000, Length: 64, FirstBE: 15, LastBE: 15, Data: make([]byte, 256)}); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			pass(host, box, 0)
			box.Hold(0, 0)
			for _, p := range box.paths {
				p.ackAt = min(p.ackAt, 0)
			}
			pass(box, host, 0)
		}
	}
	if drops := box.stats.Drops; drops.Total() > 0 {
		t.Errorf("%+v", drops)
	}
}

// A peer that sends confirms with wrong proofs makes the responder derive the keys of a
// session once in a while only. The right one is taken afterwards.
func TestWrongProofsAreCheap(t *testing.T) {
	cfg := Config{
		Binding: 1, Epoch: 1, Session: 1, Ephemeral: [32]byte{1}, Initiator: true, Paths: []PathConfig{{MTU: 9000}},
		Local: frame.Endpoint{Node: 1}, Remote: frame.Endpoint{Node: 2},
	}
	host, err := New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Initiator, cfg.Session, cfg.Local, cfg.Remote = false, 2, cfg.Remote, cfg.Local
	box, err := New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	pass(host, box, 0)
	pass(box, host, 0)
	buf := make([]byte, frame.MaxDatagram)
	confirm := func(now time.Duration) error {
		host.hs.nextAt = now
		n, path := host.Transmit(now, buf)
		return box.Receive(now, path, buf[:n], nil)
	}
	host.hs.proof[0] ^= 1
	if err := confirm(0); !errors.Is(err, ErrSeal) {
		t.Fatalf("a wrong proof: %v", err)
	}
	for range 100 {
		if err := confirm(provenWait - 1); !errors.Is(err, ErrFlood) {
			t.Fatalf("a further confirm: %v", err)
		}
	}
	host.hs.proof[0] ^= 1
	if err := confirm(provenWait); err != nil || box.State() != Up {
		t.Errorf("the right proof: %v, %v", err, box.State())
	}
}

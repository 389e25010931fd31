package link

import (
	"errors"
	"testing"

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

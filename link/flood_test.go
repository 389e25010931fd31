package link_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
)

// A flood of forged handshakes costs a link a bounded number of key derivations,
// for any claimed sender. Traffic continues, and between floods a peer can
// connect.
func TestHandshakeFlood(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, ethernet)}, "delay=20us", ethernet)
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	looked, flood := 0, 0
	const forged = 1000
	for i := range uint64(forged) {
		h := frame.Header{Type: frame.TypeHello, Binding: ends[0].Binding, Epoch: ends[0].Epoch, Number: i, Initiator: i + 1}
		datagram := append(h.Append(nil), make([]byte, frame.HelloSize+frame.TagSize)...)
		switch err := n.Inject(linktest.Box, 0, datagram); {
		case errors.Is(err, link.ErrSeal):
			looked++
		case errors.Is(err, link.ErrFlood):
			flood++
		default:
			t.Fatal(err)
		}
	}
	if looked > 40 || looked+flood != forged {
		t.Errorf("%d of %d forged hellos were processed", looked, forged)
	}
	if s := n.Link[linktest.Box].Stats(); s.Drops.Flood != uint64(flood) {
		t.Errorf("%d hellos counted as flood, want %d", s.Drops.Flood, flood)
	}
	transfer(t, n, 200, n.Now+time.Second, nil)

	// The peer restarts during the flood.
	if err := n.Restart(linktest.Host, 0x3333); err != nil {
		t.Fatal(err)
	}
	if !n.RunUntil(n.Now+time.Second, func() bool { return n.Link[linktest.Box].State() == link.Down }) {
		t.Error("the peer's restart was not noticed after a flood")
	}
}

// Sessions with the same secret have different keys: no sealed block repeats.
func TestSessionsHaveNothingInCommon(t *testing.T) {
	record := func(session uint64) (sealed [][]byte) {
		ends := linktest.Ends(link.CipherAES256GCM, ethernet)
		ends[0].Session = session
		cfg := linktest.Config{Ends: ends}
		n := network(t, cfg, "delay=20us", ethernet)
		n.OnDatagram = func(from linktest.Side, _ uint8, datagram []byte) {
			if h, size, err := frame.ParseHeader(datagram); err == nil && h.Type == frame.TypeTraffic && from == linktest.Host {
				sealed = append(sealed, bytes.Clone(datagram[size:]))
			}
		}
		transfer(t, n, 20, time.Second, nil)
		return sealed
	}
	seen := map[string]bool{}
	for session := uint64(1); session <= 4; session++ {
		for _, s := range record(session) {
			for at := 0; at+16 <= len(s); at += 16 {
				block := string(s[at : at+16])
				if seen[block] {
					t.Fatalf("session %d: a sealed block was seen before", session)
				}
				seen[block] = true
			}
		}
	}
}

package link

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// runOf returns the run that TLPs make.
func runOf(tlps []tlp.Packet) *Run {
	r := &Run{First: tlps[0], Count: len(tlps)}
	for _, p := range tlps {
		r.Data = append(r.Data, p.Data...)
	}
	return r
}

// A run that is sent at once leaves the datagrams that its TLPs leave one by one, with and
// without a cipher, for every kind, and also to a peer that has no runs. Payloads that lie
// in the send buffer are the same.
func TestSendRunIsSend(t *testing.T) {
	kinds := map[string]func(i int) tlp.Packet{
		"writes":      func(i int) tlp.Packet { return pageWrite(uint64(i)<<12, 4096) },
		"reads":       func(i int) tlp.Packet { return pageRead(uint64(i)<<12, pcie.Tag(i), 4096) },
		"completions": func(i int) tlp.Packet { return completion(pcie.Tag(i), 4096) },
	}
	for name, make := range kinds {
		for _, c := range []Cipher{CipherNone, CipherAES256GCM} {
			for _, peer := range []uint8{frame.Version2, frame.Version4} {
				var tlps []tlp.Packet
				for i := range 40 {
					tlps = append(tlps, make(i))
				}
				var sent [3][][]byte
				for way := range sent {
					host, box := wide(t, [2]uint8{frame.Version4, peer}, c)
					for _, part := range [][]tlp.Packet{tlps[:16], tlps[16:39], tlps[39:]} {
						var err error
						switch r := runOf(part); way {
						case 0:
							for i := range part {
								err = errors.Join(err, host.Send(ready, &part[i]))
							}
						case 1:
							err = host.SendRun(ready, r)
						case 2:
							if n := len(r.Data); n > 0 {
								place := host.Payload(n)
								copy(place, r.Data)
								r.Data = place
							}
							err = host.SendRun(ready, r)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					var got arrivals
					buf := [frame.MaxDatagram]byte{}
					for {
						n, path := host.Transmit(ready, buf[:])
						if n == 0 {
							break
						}
						sent[way] = append(sent[way], bytes.Clone(buf[:n]))
						if err := box.ReceiveRuns(ready, path, buf[:n], got.keep, got.run); err != nil {
							t.Fatal(err)
						}
					}
					if diff := cmp.Diff(tlps, got.tlps, cmp.Comparer(bytes.Equal)); diff != "" {
						t.Errorf("%s, %v, version %d, way %d (-sent +arrived):\n%s", name, c, peer, way, diff)
					}
					if st := host.Stats(); st.TLPsSent != uint64(len(tlps)) {
						t.Errorf("%d TLPs are counted", st.TLPsSent)
					}
				}
				for way := 1; way < len(sent); way++ {
					if !slices.EqualFunc(sent[0], sent[way], bytes.Equal) && c == CipherNone {
						t.Errorf("%s, version %d: way %d sends other datagrams", name, peer, way)
					}
				}
			}
		}
	}
}

// SendRun refuses what is no run, and a run for which there is no room, and then queues
// nothing.
func TestSendRunRefuses(t *testing.T) {
	host, _ := wide(t, [2]uint8{frame.Version4, frame.Version4}, CipherNone)
	completions := func(tag pcie.Tag, n int) *Run {
		return &Run{First: completion(tag, 4096), Count: n, Data: make([]byte, n*4096)}
	}
	for name, r := range map[string]*Run{
		"tags that overflow":      completions(250, 7),
		"addresses that overflow": {First: pageRead(1<<32-8192, 0, 4096), Count: 3},
		"too few bytes":           {First: completion(0, 4096), Count: 3, Data: make([]byte, 2*4096)},
		"no TLP":                  {First: completion(0, 4096)},
		"a payload of a kind":     {First: pageRead(4096, 0, 4096), Count: 2, Data: make([]byte, 8192)},
		"too small":               {First: completion(0, 32), Count: 2, Data: make([]byte, 64)},
		"a poisoned TLP":          {First: changed(completion(0, 4096), func(p *tlp.Packet) { p.EP = true }), Count: 2, Data: make([]byte, 8192)},
		"an invalid TLP":          {First: changed(completion(0, 4096), func(p *tlp.Packet) { p.Length = 1 }), Count: 2, Data: make([]byte, 8192)},
		"more than fits":          completions(0, host.Fit(4096)+1),
	} {
		if err := host.SendRun(ready, r); err == nil || !host.Idle() {
			t.Errorf("%s: error %v, idle %v", name, err, host.Idle())
		}
	}
	if n := host.Fit(4096); n < 16 {
		t.Fatalf("room for %d TLPs", n)
	}
	for host.Fit(4096) > 0 {
		if err := host.SendRun(ready, completions(0, min(16, host.Fit(4096)))); err != nil {
			t.Fatal(err)
		}
	}
	if host.Room() >= 4096 {
		t.Errorf("Fit says 0, but a TLP has room for %d bytes", host.Room())
	}
	host.Close(ready, 0)
	if err := host.SendRun(ready, completions(0, 2)); !errors.Is(err, ErrDown) {
		t.Errorf("error %v of a closed link", err)
	}
}

// The pieces of TransmitLent are the datagrams of Transmit; only without a cipher are there
// any in the send buffer.
func TestTransmitLentIsTransmit(t *testing.T) {
	for _, c := range []Cipher{CipherNone, CipherAES256GCM} {
		lent := 0
		var sent [2][][]byte
		for way := range sent {
			host, box := wide(t, [2]uint8{frame.Version4, frame.Version4}, c)
			for round := range 60 { // the ring of payloads wraps around
				for i := range 32 {
					p := completion(pcie.Tag(i), 4096-128*(round%3))
					if i == 20 {
						p = pageWrite(1<<20, 4)
					}
					if err := host.Send(ready, &p); err != nil {
						t.Fatal(err)
					}
				}
				for {
					var buf [frame.MaxDatagram]byte
					var pieces []Lent
					var n int
					var path uint8
					if way == 0 {
						n, path = host.Transmit(ready, buf[:])
					} else {
						n, path, pieces = host.TransmitLent(ready, buf[:], nil)
					}
					if n == 0 {
						break
					}
					lent += len(pieces)
					d := join(buf[:], n, pieces)
					sent[way] = append(sent[way], bytes.Clone(d))
					if err := box.Receive(ready, path, d, func(*tlp.Packet) {}); err != nil {
						t.Fatal(err)
					}
				}
				pass(box, host, ready)
			}
			if !host.Idle() {
				t.Fatal("not everything was acknowledged")
			}
		}
		if c == CipherNone && !slices.EqualFunc(sent[0], sent[1], bytes.Equal) {
			t.Error("TransmitLent sends other datagrams")
		}
		if (lent > 0) != (c == CipherNone) {
			t.Errorf("%v: %d pieces in the send buffer", c, lent)
		}
	}
}

// join returns a datagram of n bytes in one piece.
func join(buf []byte, n int, pieces []Lent) (d []byte) {
	at := 0
	for _, x := range pieces {
		d = append(append(d, buf[at:x.At]...), x.Bytes...)
		at = x.At
	}
	return append(d, buf[at:at+n-len(d)]...)
}

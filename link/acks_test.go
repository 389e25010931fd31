package link

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

// unacknowledged returns a link with n datagrams in flight, each with one small TLP, and
// the key phase of its peer.
func unacknowledged(t testing.TB, n int) (box *Link, peer *phase) {
	t.Helper()
	host, box := pairOf(t, Config{Paths: []PathConfig{{MTU: 9000}}})
	buf := make([]byte, frame.MaxDatagram)
	for range n {
		if err := box.Send(0, &tlp.Packet{Type: tlp.MWr, Addr: 0x1000, Length: 1, FirstBE: 15, Data: make([]byte, 4)}); err != nil {
			t.Fatal(err)
		}
		if size, _ := box.Transmit(0, buf); size == 0 {
			t.Fatal("the window is full")
		}
	}
	return box, host.keys.send.cur
}

// acks returns the largest datagram of acknowledgements. They leave the oldest datagram out,
// so that its record and all behind it stay.
func acks(box *Link, peer *phase, number uint64) []byte {
	h := frame.Header{Version: box.version, Type: frame.TypeTraffic, Binding: 1, Epoch: 1, Number: number}
	sent := &box.paths[0].sent
	a := frame.Ack{Limit: box.send.limit, Count: 1}
	d := h.Append(make([]byte, 0, frame.MaxDatagram))
	for i := uint64(0); len(d)+frame.AckSize(1, box.form)+peer.overhead() <= frame.MaxDatagram; i++ {
		// A different start each time, so that the link cannot know the range.
		a.Ranges[0] = frame.Range{First: sent.oldest + 1 + i*7%((sent.next-sent.oldest)/2), Last: sent.next - 1}
		d = a.Append(d, box.form)
	}
	return peer.close(d, frame.HeaderSize, 0, 0, number)
}

// A peer with the keys repeats acknowledgements of many datagrams, which takes few bytes of
// its own. They cost no more than those of few datagrams: the socket's reader works for all
// bindings of the proxy.
func TestRepeatedAcksAreCheap(t *testing.T) {
	cost := func(n int) (least time.Duration) {
		least = time.Hour
		for range 3 {
			box, peer := unacknowledged(t, n)
			for number := range uint64(3) {
				d := acks(box, peer, 1000+number)
				began := time.Now()
				if err := box.Receive(0, 0, d, nil); err != nil {
					t.Fatal(err)
				}
				if number > 0 { // the first one ends thousands of datagrams
					least = min(least, time.Since(began))
				}
			}
			if s := &box.paths[0].sent; int(s.next-s.oldest) < n || s.at(s.oldest).done || !s.at(s.oldest+1).done {
				t.Fatalf("%d records, want %d or more", s.next-s.oldest, n)
			}
		}
		return least
	}
	few, many := cost(64), cost(8192)
	t.Logf("64 datagrams in flight: %v; 8192: %v", few, many)
	if many > 20*few {
		t.Errorf("acknowledgements take %v with 64 datagrams in flight, and %v with 8192", few, many)
	}
}

// A peer with the keys acknowledges nothing, and asks for an acknowledgement with each
// datagram: one that does not follow the one before is answered at once. The records of the
// answers stand behind that of the oldest datagram in flight, and are bounded. That datagram
// is sent again.
func TestRecordsAreBounded(t *testing.T) {
	box, peer := unacknowledged(t, 1)
	buf := make([]byte, frame.MaxDatagram)
	for i := range uint64(maxRecords) {
		number := 1000 + 2*i
		h := frame.Header{Version: box.version, Type: frame.TypeTraffic, Binding: 1, Epoch: 1, Number: number}
		d := frame.AppendPing(h.Append(buf[:0]), box.form)
		if err := box.Receive(0, 0, peer.close(d, frame.HeaderSize, 0, 0, number), nil); err != nil {
			t.Fatal(err)
		}
		if n, _ := box.Transmit(0, buf); n == 0 {
			t.Fatalf("ping %d is not acknowledged", number)
		}
	}
	s := &box.paths[0].sent
	if n := s.next - s.oldest; n > maxRecords || len(s.ring) > maxRecords {
		t.Errorf("%d records in a ring of %d, want at most %d", n, len(s.ring), maxRecords)
	}
	if box.stats.Retransmissions == 0 || box.Idle() {
		t.Errorf("%d retransmissions of the datagram whose record is gone", box.stats.Retransmissions)
	}
}

// A search for a record that is not done finds the same as a look at each.
func TestUndone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sentRing
		for range rapid.IntRange(0, 50).Draw(t, "sent") {
			s.push()
		}
		for range rapid.IntRange(0, 100).Draw(t, "steps") {
			if s.next > 0 && rapid.Bool().Draw(t, "settle") {
				if r := s.at(rapid.Uint64Range(0, s.next-1).Draw(t, "number")); !r.done {
					r.settle()
				}
			}
			from := rapid.Uint64Range(0, s.next+1).Draw(t, "from")
			want := from
			for want < s.next && s.at(want).done {
				want++
			}
			if got := s.undone(from); got != min(want, s.next) {
				t.Fatalf("from %d: %d, want %d", from, got, want)
			}
		}
	})
}

// A path that uses its window leaves out numbers, which an honest peer does not notice. The
// acknowledgement of one ends the session: its sender hides losses.
func TestOmissions(t *testing.T) {
	for _, lies := range []bool{false, true} {
		host, box := pairOf(t, Config{Paths: []PathConfig{{MTU: 9000}}})
		p, r := host.paths[0], &box.paths[0].received
		p.congestion.cwnd = 20_000
		now := time.Duration(0)
		for round := 0; round < 4 || p.omission.count == 0; round++ {
			for range 5 {
				if err := host.Send(now, &tlp.Packet{Type: tlp.MWr, Addr: 0x1000, Length: 1024, FirstBE: 15, LastBE: 15, Data: make([]byte, 4096)}); err != nil {
					t.Fatal(err)
				}
			}
			for !host.Idle() && host.State() == Up {
				now += time.Millisecond
				pass(host, box, now)
				if lies && r.count > 1 {
					r.ranges[0].First, r.count = r.ranges[r.count-1].First, 1
				}
				box.paths[0].ackAt = now
				pass(box, host, now)
			}
			if lies && host.State() != Up {
				break
			}
			now += firstOmission / 2
		}
		want := NotDown
		if lies {
			want = Broken
		}
		if reason, _ := host.Reason(); reason != want || p.omission.count == 0 {
			t.Errorf("lies %v: %v, %d numbers left out, %+v", lies, reason, p.omission.count, host.stats.Drops)
		}
	}
}

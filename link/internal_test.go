package link

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// pair returns two ends of an open session.
func pair(t testing.TB) (host, box *Link) {
	t.Helper()
	return pairOf(t, Config{Window: minWindow, Paths: []PathConfig{{MTU: 9000}, {MTU: 1500}}})
}

// pairOf is pair with the window and the paths of a configuration.
func pairOf(t testing.TB, cfg Config) (host, box *Link) {
	t.Helper()
	cfg.Binding, cfg.Epoch, cfg.Session, cfg.Ephemeral, cfg.Initiator = 1, 1, 1, [32]byte{1}, true
	cfg.Local, cfg.Remote = frame.Endpoint{Node: 1}, frame.Endpoint{Node: 2}
	host, err := New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Initiator, cfg.Session, cfg.Local, cfg.Remote = false, 2, cfg.Remote, cfg.Local
	if box, err = New(0, cfg); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		pass(host, box, 0)
		pass(box, host, 0)
	}
	if host.state != Up || box.state != Up {
		t.Fatalf("states %v %v", host.state, box.state)
	}
	return host, box
}

// An open link cannot derive its session again.
func TestEphemeralKeysAreDropped(t *testing.T) {
	host, box := pair(t)
	for _, l := range []*Link{host, box} {
		if l.auth.private != nil || l.cfg.Ephemeral != [32]byte{} {
			t.Error("the ephemeral key is still there")
		}
	}
	first := host.keys.send.cur
	if !host.Rekey(0) || !bytes.Equal(first.secret, make([]byte, len(first.secret))) {
		t.Error("the secret of the first key phase is still there")
	}
}

// A link that is down has no keys, however it ended.
func TestLinkThatIsDownHasNoKeys(t *testing.T) {
	host, box := pair(t)
	secrets := [][]byte{host.keys.send.cur.secret, host.keys.receive.cur.secret, host.keys.receive.next.secret}
	host.Close(0, 1)
	now := time.Duration(0)
	for ; host.state != Down || box.state != Down; now += time.Millisecond {
		if now > time.Second {
			t.Fatalf("states %v %v", host.state, box.state)
		}
		pass(host, box, now)
		pass(box, host, now)
	}
	for i, s := range secrets {
		if !bytes.Equal(s, make([]byte, len(s))) {
			t.Errorf("secret %d is still there", i)
		}
	}
	connecting, err := New(0, Config{
		Binding: 1, Epoch: 1, Session: 3, Ephemeral: [32]byte{3}, Initiator: true, Paths: []PathConfig{{MTU: 9000}},
	})
	if err != nil {
		t.Fatal(err)
	}
	connecting.Close(0, 1)
	for _, l := range []*Link{host, box, connecting} {
		if l.state != Down || l.keys.ready || l.keys.send.cur != nil || l.keys.receive.next != nil {
			t.Errorf("%v with keys", l.state)
		}
		if l.auth.private != nil || l.cfg.Ephemeral != [32]byte{} {
			t.Error("the ephemeral key is still there")
		}
	}
}

func pass(from, to *Link, now time.Duration) {
	buf := make([]byte, frame.MaxDatagram)
	for {
		n, path := from.Transmit(now, buf)
		if n == 0 {
			return
		}
		_ = to.Receive(now, path, buf[:n], func(*tlp.Packet) {})
	}
}

// forge builds packets with valid CRCs from arbitrary bytes, as a broken or
// malicious peer with the keys can send them.
func forge(b []byte, form frame.Form) (body []byte) {
	take := func(n int) []byte {
		v := make([]byte, n)
		copy(v, b)
		b = b[min(n, len(b)):]
		return v
	}
	small := func() uint64 { // usually near 0, like the link's state
		v := take(2)
		if v[0]&0x80 != 0 {
			return binary.BigEndian.Uint64(append(take(6), v...))
		}
		return uint64(v[1] % 64)
	}
	for len(b) > 0 && len(body) < 8000 {
		kind := take(1)[0]
		if kind >= 0xf8 { // newer than the corpus
			first := pageWrite(small()<<6, 64<<(kind&7%5))
			switch kind & 7 {
			case 5:
				first = pageRead(small()<<12, pcie.Tag(small()), 4096)
			case 6:
				first = completion(pcie.Tag(small()), 64+4*int(small()%64))
			}
			p := frame.RunPacket{
				Source: frame.Endpoint{Node: 1}, Destination: frame.Endpoint{Node: 2},
				Seq: small(), Count: 2 + int(take(1)[0]%8), PayloadLen: len(first.Data), TLP: first.AppendHeader(nil),
			}
			if change := take(1)[0]; change >= 0xf0 {
				p.TLP[int(change&15)%len(p.TLP)] ^= take(1)[0]
			}
			p.HeaderCRC = frame.CRC(0, p.TLP)
			zeros := make([]byte, p.Count*p.PayloadLen)
			for range len(zeros) / max(p.PayloadLen, 1) {
				p.CRCs = binary.BigEndian.AppendUint32(p.CRCs, frame.CRC(0, zeros[:p.PayloadLen]))
			}
			body = append(p.Append(body, form), zeros...)
			continue
		}
		switch kind % 7 {
		case 0:
			header := take(12 + 4*int(take(1)[0]%3))
			p := frame.HeaderPacket{
				Source: frame.Endpoint{Node: 1}, Destination: frame.Endpoint{Node: 2},
				Seq: small(), PayloadLen: 4 * int(take(1)[0]), TLP: header, HeaderCRC: frame.CRC(0, header),
			}
			p.TLPCRC = frame.TLPCRC(p.HeaderCRC, frame.CRC(0, make([]byte, p.PayloadLen)), p.PayloadLen)
			body = p.Append(body, form)
		case 1:
			p := frame.DataPacket{Seq: small(), Offset: 64 * int(take(1)[0]%8), PayloadLen: 4 * int(take(1)[0])}
			p.Chunk = make([]byte, max(0, min(64*int(1+take(1)[0]%8), p.PayloadLen-p.Offset)))
			p.ChunkCRC = frame.CRC(0, p.Chunk)
			body = p.Append(body, form)
		case 2:
			a := frame.Ack{Path: take(1)[0] % 3, Limit: small(), Delay: time.Duration(small()), Count: 1}
			first := small()
			a.Ranges[0] = frame.Range{First: first, Last: first + small()%16}
			if r := &a.Ranges[0]; r.Last < r.First {
				r.Last = r.First
			}
			body = a.Append(body, form)
		case 3:
			body = frame.AppendPing(body, form)
		case 4:
			body = append(body, take(8)...)
		case 5:
			body = append(body, make([]byte, take(1)[0])...)
		case 6:
			if take(1)[0] == 0 {
				body = frame.AppendClose(body, 1, form)
			}
		}
	}
	return body
}

// A peer with the keys can end the session. It cannot crash this end or make it
// hold more than its window.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 4, 1, 0, 0, 0, 4, 0})
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 1, 0, 9, 0, 255, 7, 1, 0, 8, 1, 255, 7})
	f.Add([]byte("000000001100000000000000\xe3\xe3\xe300000201000BY00010000800000000\xf700000000000B200000100001000000000000\xff00000000200000000000\x000000000000000")) // goes on after the session ended
	f.Add([]byte{0xf8, 0, 0, 0, 8, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0xfa, 0, 1, 0, 2, 6, 0, 0xf9, 0, 64, 0, 0, 6, 0xf0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		host, box := pair(t)
		phase := host.keys.send.cur // an end that is down forgets its own
		for i := range 40 {
			p := tlp.Packet{Type: tlp.MWr, Length: 16, FirstBE: 15, LastBE: 15, Data: make([]byte, 64)}
			if i == 20 {
				pass(box, host, time.Millisecond)
			}
			if err := box.Send(0, &p); err != nil {
				t.Fatal(err)
			}
		}
		for number := uint64(1000); len(b) > 0; number++ {
			n := min(len(b), 64)
			h := frame.Header{Version: host.version, Type: frame.TypeTraffic, Path: uint8(number % 2), Binding: 1, Epoch: 1, Number: number}
			d := append(h.Append(nil), forge(b[:n], host.form)...)
			d = phase.close(append(make([]byte, 0, len(d)+64), d...), frame.HeaderSize, 0, h.Path, h.Number)
			now := time.Duration(number) * 100 * time.Microsecond
			var run func(*Run)
			if number%2 == 0 {
				run = func(r *Run) {
					if len(r.Data) != r.Count*len(r.First.Data) || r.Count < 2 || len(r.Data) > frame.MaxDatagram {
						t.Fatalf("a run of %d TLPs with %d bytes", r.Count, len(r.Data))
					}
				}
			}
			_ = box.ReceiveRuns(now, h.Path, d, func(*tlp.Packet) {}, run)
			if box.recv.held > minWindow || len(box.recv.ring) > 2*minWindow/frame.TLPCost {
				t.Fatalf("holds %d bytes in a ring of %d", box.recv.held, len(box.recv.ring))
			}
			pass(box, host, now)
			for _, p := range box.paths {
				if p.congestion.inFlight < 0 || p.eliciting < 0 {
					t.Fatalf("path %d: %d bytes, %d datagrams in flight", p.id, p.congestion.inFlight, p.eliciting)
				}
			}
			b = b[n:]
		}
	})
}

func TestReceivedNumbers(t *testing.T) {
	type step struct {
		n       uint64
		fresh   bool
		inOrder bool
		ranges  []frame.Range
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"in order", []step{
			{0, true, true, []frame.Range{{First: 0, Last: 0}}},
			{1, true, true, []frame.Range{{First: 0, Last: 1}}},
			{1, false, false, []frame.Range{{First: 0, Last: 1}}},
		}},
		{"a gap that closes", []step{
			{0, true, true, []frame.Range{{First: 0, Last: 0}}},
			{3, true, false, []frame.Range{{First: 3, Last: 3}, {First: 0, Last: 0}}},
			{1, true, false, []frame.Range{{First: 3, Last: 3}, {First: 0, Last: 1}}},
			{2, true, false, []frame.Range{{First: 0, Last: 3}}},
		}},
		{"downwards", []step{
			{5, true, false, []frame.Range{{First: 5, Last: 5}}},
			{4, true, false, []frame.Range{{First: 4, Last: 5}}},
			{2, true, false, []frame.Range{{First: 4, Last: 5}, {First: 2, Last: 2}}},
		}},
		{"beyond the window", []step{
			{0, true, true, []frame.Range{{First: 0, Last: 0}}},
			{replayWindow, true, false, []frame.Range{{First: replayWindow, Last: replayWindow}, {First: 0, Last: 0}}},
			{0, false, false, nil},
			{1, true, false, []frame.Range{{First: replayWindow, Last: replayWindow}, {First: 0, Last: 1}}},
			{3 * replayWindow, true, false, []frame.Range{{First: 3 * replayWindow, Last: 3 * replayWindow}}},
			{replayWindow + 5, false, false, nil},
			{2*replayWindow + 1, true, false, nil},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var r received
			for _, s := range tc.steps {
				if got := r.fresh(s.n); got != s.fresh {
					t.Fatalf("%d: fresh %v", s.n, got)
				}
				if !s.fresh {
					continue
				}
				if got := r.add(s.n); got != s.inOrder {
					t.Errorf("%d: in order %v", s.n, got)
				}
				if r.fresh(s.n) {
					t.Errorf("%d is fresh after add", s.n)
				}
				if s.ranges == nil {
					continue
				}
				if got := r.ranges[:r.count]; len(got) != len(s.ranges) || got[0] != s.ranges[0] || got[len(got)-1] != s.ranges[len(got)-1] {
					t.Errorf("after %d: %v, want %v", s.n, got, s.ranges)
				}
			}
		})
	}
}

// A path that fails before its probe with a new limit has left leaves that to another one.
func TestTheLimitOfAFailedPathIsTold(t *testing.T) {
	_, box := pair(t)
	for _, p := range box.paths {
		p.usable, p.received.any, p.probes = true, true, 0
	}
	box.tellLimit(0)
	box.failPath(0, box.paths[0])
	if p := box.paths[1]; !p.telling || p.probes == 0 || p.ackAt > 0 {
		t.Errorf("the other path tells the limit: %v, with %d probes, at %v", p.telling, p.probes, p.ackAt)
	}
}

// An answer to an earlier datagram, which comes before the probe with a new limit has left, takes
// nothing from it: the peer still learns the limit from a datagram that is watched.
func TestAnAnswerLeavesTheLimitToTell(t *testing.T) {
	host, box := pair(t)
	p := box.paths[0]
	now := time.Millisecond
	host.paths[0].probes = 1
	pass(host, box, now)
	p.probes = 1
	pass(box, host, now)
	if p.eliciting == 0 {
		t.Fatal("the box has asked for no answer")
	}
	now += host.cfg.AckDelay // the host answers now
	box.recv.delivered += uint64(box.cfg.Window)
	box.tellLimit(now)
	pass(host, box, now)
	if p.eliciting > 0 {
		t.Fatal("the host has not answered")
	}
	pass(box, host, now)
	if host.send.limit != box.recv.limit() {
		t.Errorf("the peer's limit is %d, want %d", host.send.limit, box.recv.limit())
	}
	if rec := p.sent.at(p.sent.next - 1); !rec.limit || !rec.eliciting {
		t.Errorf("the last datagram tells a limit: %v, asks for an answer: %v", rec.limit, rec.eliciting)
	}
	if p.telling || p.probes > 0 {
		t.Errorf("the path tells again: %v, with %d probes", p.telling, p.probes)
	}
}

// A path that answers tells the limit, not a silent one that may fail. It tells the limit also if
// a probe of the silent one has taken the acknowledgement along.
func TestASilentPathTellsNoLimit(t *testing.T) {
	host, box := pair(t)
	now := time.Millisecond
	for _, l := range []*Link{host, box} { // both paths have one to acknowledge
		for _, p := range l.paths {
			p.probes = 1
		}
	}
	pass(host, box, now)
	pass(box, host, now)
	for _, p := range box.paths {
		p.usable = true
	}
	silent := box.paths[0]
	silent.probeTimeouts, silent.probes = 1, 1
	box.recv.delivered += uint64(box.cfg.Window)
	box.tellLimit(now)
	buf := make([]byte, frame.MaxDatagram)
	for {
		n, path := box.Transmit(now, buf)
		if n == 0 {
			break
		}
		if path == silent.id {
			continue
		}
		if err := host.Receive(now, path, buf[:n], nil); err != nil {
			t.Fatal(err)
		}
	}
	if host.send.limit != box.recv.limit() {
		t.Errorf("the peer's limit is %d, want %d", host.send.limit, box.recv.limit())
	}
	if silent.telling || silent.sent.at(silent.sent.next-1).limit {
		t.Error("the silent path tells the limit")
	}
}

// A set is the reference: any number in the window is fresh once, and the ranges hold what was
// added, the largest first.
func TestReceivedNumbersAreASet(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		var got received
		seen, largest := map[uint64]bool{}, uint64(0)
		first := []uint64{0, 1 << 32, 1<<63 - 1000, math.MaxUint64 - 1<<20}[r.IntN(4)]
		for range 4000 {
			n := largest + uint64(r.IntN(3))
			switch {
			case len(seen) == 0:
				n = first
			case r.IntN(60) == 0:
				n = largest + uint64(r.IntN(2*64*replayWords))
			case r.IntN(3) == 0:
				n = largest - min(uint64(r.IntN(200)), largest)
			case r.IntN(3) == 0:
				n = largest - min(uint64(replayWindow-100+r.IntN(300)), largest)
			}
			want := len(seen) == 0 || n > largest || largest-n < replayWindow && !seen[n]
			if fresh := got.fresh(n); fresh != want {
				t.Fatalf("seed %d: %d, %d behind the largest, seen %v: fresh %v", seed, n, largest-n, seen[n], fresh)
			}
			if !want {
				continue
			}
			got.add(n)
			seen[n], largest = true, max(largest, n)
			for i, g := range got.ranges[:got.count] {
				if i == 0 && g.Last != largest || i > 0 && g.Last+1 >= got.ranges[i-1].First || g.First > g.Last {
					t.Fatalf("seed %d: after %d: %v", seed, n, got.ranges[:got.count])
				}
				if !seen[g.First] || !seen[g.Last] {
					t.Fatalf("seed %d: after %d: range %v", seed, n, g)
				}
			}
		}
	}
}

// The buffers that wait for the next TLPs are no more than the window, also after TLPs of all
// sizes.
func TestFreeBuffersAreBounded(t *testing.T) {
	r := reassembly{window: minWindow}
	for size := frame.Unit; size <= frame.MaxPayload; size *= 2 {
		first := r.next
		for n := uint64(0); ; n++ {
			if _, err := r.take(first+n, size); err != nil {
				break
			}
		}
		for r.count > 0 {
			r.advance(size)
		}
	}
	bytes := 0
	for _, class := range r.free {
		for _, b := range class {
			bytes += cap(b)
		}
	}
	if bytes != r.pooled || bytes == 0 || bytes > r.window {
		t.Errorf("%d bytes are free, %d counted, of a window of %d", bytes, r.pooled, r.window)
	}
}

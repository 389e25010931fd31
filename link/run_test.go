package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// pageWrite is a memory write of n bytes at an address, which only its content tells
// from others.
func pageWrite(addr uint64, n int) tlp.Packet {
	p := tlp.Packet{Type: tlp.MWr, Requester: 0x100, Data: make([]byte, n)}
	p.SetMemory(addr, n)
	for i := 0; i < n; i += 4 {
		binary.LittleEndian.PutUint32(p.Data[i:], uint32(addr)+uint32(i))
	}
	return p
}

// pageRead is a memory read of n bytes.
func pageRead(addr uint64, tag pcie.Tag, n int) tlp.Packet {
	p := tlp.Packet{Type: tlp.MRd, Requester: 0x100, Tag: tag}
	p.SetMemory(addr, n)
	return p
}

// completion is the completion of a read of n bytes, which its content tells from others.
func completion(tag pcie.Tag, n int) tlp.Packet {
	data := pageWrite(uint64(tag)<<20, n)
	return tlp.Packet{
		Type: tlp.CplD, Requester: 0x100, Tag: tag, ByteCount: uint16(n), Length: data.Length, Data: data.Data,
	}
}

// ready is when the tests go on, after the handshake.
const ready = 100 * time.Millisecond

func changed(p tlp.Packet, f func(*tlp.Packet)) tlp.Packet {
	f(&p)
	return p
}

// wide returns two ends of an open session with one path of the loopback interface.
func wide(t testing.TB, versions [2]uint8, c Cipher) (host, box *Link) {
	t.Helper()
	cfg := Config{
		Binding: 1, Epoch: 1, Session: 1, Ephemeral: [32]byte{1}, Initiator: true, Cipher: c, MaxVersion: versions[0],
		Local: frame.Endpoint{Node: 1}, Remote: frame.Endpoint{Node: 2}, Paths: []PathConfig{{MTU: frame.MaxDatagram}},
	}
	host, err := New(0, cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Initiator, cfg.Session, cfg.Local, cfg.Remote, cfg.MaxVersion = false, 2, cfg.Remote, cfg.Local, versions[1]
	if box, err = New(0, cfg); err != nil {
		t.Fatal(err)
	}
	for now := range 50 * time.Millisecond / time.Millisecond { // the hello of version 1 comes later
		pass(host, box, now*time.Millisecond)
		pass(box, host, now*time.Millisecond)
	}
	if host.state != Up || box.state != Up {
		t.Fatalf("states %v %v", host.state, box.state)
	}
	return host, box
}

// arrivals is an owner that keeps copies of what arrives.
type arrivals struct {
	tlps []tlp.Packet
	runs []int // the number of TLPs of each run
}

func (a *arrivals) keep(p *tlp.Packet) {
	q := *p
	q.Data, q.Prefix = slices.Clone(p.Data), slices.Clone(p.Prefix)
	a.tlps = append(a.tlps, q)
}

func (a *arrivals) run(r *Run) {
	a.runs = append(a.runs, r.Count)
	for i := range r.Count {
		var p tlp.Packet
		r.TLP(i, &p)
		a.keep(&p)
	}
}

// Consecutive writes of pages, or of their parts, reads and completions arrive as runs.
// Every TLP arrives as it was sent, whatever its neighbours are.
func TestRuns(t *testing.T) {
	const big = 1 << 40
	row := func(addr uint64, size, n int) (out []tlp.Packet) {
		for i := range n {
			out = append(out, pageWrite(addr+uint64(i*size), size))
		}
		return out
	}
	reads := func(addr uint64, tag pcie.Tag, size, n int) (out []tlp.Packet) {
		for i := range n {
			out = append(out, pageRead(addr+uint64(i*size), tag+pcie.Tag(i), size))
		}
		return out
	}
	completions := func(tag pcie.Tag, size, n int) (out []tlp.Packet) {
		for i := range n {
			out = append(out, completion(tag+pcie.Tag(i), size))
		}
		return out
	}
	read := tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 15, Requester: 0x100}
	for _, tc := range []struct {
		name string
		send []tlp.Packet
		runs []int
	}{
		{"pages", row(big, 4096, 10), []int{10}},
		{"below 4 GiB", row(0x1000, 4096, 10), []int{10}},
		{"more than a datagram", row(big, 4096, 20), []int{15, 5}},
		{"parts of pages", row(big+512, 512, 24), []int{24}},
		{"small writes", row(big, 64, 300), []int{300}},
		{"smaller writes", row(big, 32, 20), nil},
		{"no power of two", row(0, 192, 20), nil},
		{"not aligned", row(64, 128, 20), nil},
		{"one page", row(big, 4096, 1), nil},
		{"two pages", row(big, 4096, 2), []int{2}},
		{"one address", slices.Concat(row(big, 4096, 1), row(big, 4096, 1)), nil},
		{"a gap", slices.Concat(row(big, 4096, 2), row(big+3<<12, 4096, 2)), []int{2, 2}},
		{"backwards", slices.Concat(row(big+4096, 4096, 1), row(big, 4096, 1)), nil},
		{"over 4 GiB", row(1<<32-2*4096, 4096, 4), []int{2, 2}},
		{"to the end", row(1<<64-2*4096, 4096, 2), []int{2}},
		{"around the end", slices.Concat(row(1<<64-2*4096, 4096, 2), row(0, 4096, 2)), []int{2, 2}},
		{"a short one at the end", slices.Concat(row(big, 4096, 3), row(big+3*4096, 2048, 1)), []int{3}},
		{"a fence between", slices.Concat(row(big, 4096, 2), []tlp.Packet{read}, row(big+2*4096, 4096, 2)), []int{2, 2}},
		{"another device", slices.Concat(row(big, 4096, 2), []tlp.Packet{
			changed(pageWrite(big+2*4096, 4096), func(p *tlp.Packet) { p.Requester = 0x200 }),
			changed(pageWrite(big+3*4096, 4096), func(p *tlp.Packet) { p.Requester = 0x200 }),
		}), []int{2, 2}},
		{"another order", slices.Concat(row(big, 4096, 2), []tlp.Packet{
			changed(pageWrite(big+2*4096, 4096), func(p *tlp.Packet) { p.Attr = tlp.RelaxedOrdering }),
		}), []int{2}},
		{"poisoned", slices.Concat(row(big, 4096, 2), []tlp.Packet{
			changed(pageWrite(big+2*4096, 4096), func(p *tlp.Packet) { p.EP = true }),
		}, row(big+3*4096, 4096, 2)), []int{2, 2}},
		{"digest", slices.Concat(row(big, 4096, 2), []tlp.Packet{
			changed(pageWrite(big+2*4096, 4096), func(p *tlp.Packet) { p.HasDigest, p.Digest = true, 7 }),
		}), []int{2}},
		{"prefix", slices.Concat(row(big, 4096, 2), []tlp.Packet{
			changed(pageWrite(big+2*4096, 4096), func(p *tlp.Packet) { p.Prefix = []byte{0x91, 0, 0, 1} }),
		}), []int{2}},
		{"disabled bytes", slices.Concat(row(big, 4096, 2), []tlp.Packet{
			changed(pageWrite(big+2*4096, 4096), func(p *tlp.Packet) { p.LastBE = 3 }),
		}), []int{2}},
		{"translated", []tlp.Packet{
			changed(pageWrite(big, 4096), func(p *tlp.Packet) { p.AT = tlp.ATTranslated }),
			changed(pageWrite(big+4096, 4096), func(p *tlp.Packet) { p.AT = tlp.ATTranslated }),
			pageWrite(big+2*4096, 4096),
		}, []int{2}},
		{"reads", reads(big, 0, 4096, 100), []int{100}},
		{"reads below 4 GiB", reads(0x1000, 7, 512, 10), []int{10}},
		{"reads over 4 GiB", reads(1<<32-2*4096, 7, 4096, 4), []int{2, 2}},
		{"reads over 256 tags", reads(big, 0xfe, 4096, 4), []int{2, 2}},
		{"reads of the last tags", reads(big, 0x3fe, 4096, 2), []int{2}},
		{"reads with a gap of tags", slices.Concat(reads(big, 0, 4096, 2), reads(big+2*4096, 3, 4096, 2)), []int{2, 2}},
		{"reads with a gap", slices.Concat(reads(big, 0, 4096, 2), reads(big+3*4096, 2, 4096, 2)), []int{2, 2}},
		{"reads not aligned", reads(big+64, 0, 128, 4), nil},
		{"small reads", reads(big, 0, 32, 4), nil},
		{"reads of some bytes", []tlp.Packet{
			pageRead(big, 0, 4096), changed(pageRead(big+4096, 1, 4096), func(p *tlp.Packet) { p.FirstBE = 8 }), pageRead(big+2*4096, 2, 4096),
		}, nil},
		{"completions", completions(0, 4096, 10), []int{10}},
		{"more than a datagram of them", completions(0, 4096, 20), []int{15, 5}},
		{"completions of 192 bytes", completions(3, 192, 20), []int{20}},
		{"small completions", completions(3, 60, 20), nil},
		{"completions over 256 tags", completions(0xfe, 4096, 4), []int{2, 2}},
		{"completions in another order", slices.Concat(completions(4, 4096, 2), completions(0, 4096, 2)), []int{2, 2}},
		{"a completion twice", slices.Concat(completions(4, 4096, 2), completions(5, 4096, 1)), []int{2}},
		{"completions of parts", []tlp.Packet{
			completion(4, 4096), changed(completion(5, 512), func(p *tlp.Packet) { p.ByteCount = 1024 }),
			changed(completion(5, 512), func(p *tlp.Packet) { p.LowerAddr = 64 }), completion(6, 512),
		}, nil},
		{"a failed one between", slices.Concat(completions(0, 4096, 2), []tlp.Packet{
			{Type: tlp.Cpl, Requester: 0x100, Tag: 2, ByteCount: 4096, Status: pcie.UnsupportedRequest},
		}, completions(3, 4096, 2)), []int{2, 2}},
		{"a poisoned one between", slices.Concat(completions(0, 4096, 2), []tlp.Packet{
			changed(completion(2, 4096), func(p *tlp.Packet) { p.EP = true }),
		}, completions(3, 4096, 2)), []int{2, 2}},
		{"all kinds", slices.Concat(row(big, 4096, 2), reads(big+2*4096, 0, 4096, 2), completions(2, 4096, 2), row(big, 4096, 2)), []int{2, 2, 2, 2}},
	} {
		for _, c := range []Cipher{CipherNone, CipherAES256GCM} {
			for _, whole := range []bool{false, true} {
				t.Run(tc.name+" "+c.String(), func(t *testing.T) {
					host, box := wide(t, [2]uint8{}, c)
					for i := range tc.send {
						if err := host.Send(ready, &tc.send[i]); err != nil {
							t.Fatal(err)
						}
					}
					var got arrivals
					run := got.run
					if !whole {
						run = nil
					}
					buf := make([]byte, frame.MaxDatagram)
					for n, path := host.Transmit(ready, buf); n > 0; n, path = host.Transmit(ready, buf) {
						if err := box.ReceiveRuns(ready, path, buf[:n], got.keep, run); err != nil {
							t.Fatal(err)
						}
					}
					if diff := cmp.Diff(tc.send, got.tlps, cmp.Comparer(bytes.Equal)); diff != "" {
						t.Errorf("TLPs (-sent +arrived):\n%s", diff)
					}
					if whole && !slices.Equal(got.runs, tc.runs) {
						t.Errorf("runs of %v TLPs, want %v", got.runs, tc.runs)
					}
					pass(box, host, ready+time.Millisecond)
					if !host.Idle() || box.recv.next != uint64(len(tc.send)) || box.recv.delivered != host.send.cost || box.stats.TLPsReceived != uint64(len(tc.send)) {
						t.Errorf("%d and %d TLPs, cost %d and %d", box.recv.next, box.stats.TLPsReceived, box.recv.delivered, host.send.cost)
					}
				})
			}
		}
	}
}

// An end gets only the runs that its version has, and may send no other.
func TestRunsNeedBothEnds(t *testing.T) {
	for _, versions := range [][2]uint8{{1, 4}, {4, 1}, {2, 3}, {3, 2}, {3, 3}, {3, 4}, {4, 3}, {4, 4}} {
		host, box := wide(t, versions, CipherNone)
		want := min(versions[0], versions[1])
		if host.Version() != want || box.Version() != want {
			t.Errorf("%v: versions %d and %d", versions, host.Version(), box.Version())
		}
		for i := range pcie.Tag(12) {
			p := pageWrite(uint64(i)<<12, 4096)
			switch i / 4 {
			case 1:
				p = pageRead(uint64(i)<<12, i, 4096)
			case 2:
				p = completion(i, 512)
			}
			if err := host.Send(ready, &p); err != nil {
				t.Fatal(err)
			}
		}
		var got arrivals
		buf := make([]byte, frame.MaxDatagram)
		n, _ := host.Transmit(ready, buf)
		if err := box.ReceiveRuns(ready, 0, buf[:n], got.keep, got.run); err != nil || len(got.tlps) != 12 || len(got.runs) != [5]int{3: 1, 4: 3}[want] {
			t.Errorf("%v: %d TLPs, runs %v, %v", versions, len(got.tlps), got.runs, err)
		}
		if want == 3 {
			reads := runBody(host, func(p *frame.RunPacket) {
				first := pageRead(1<<40, 0, 4096)
				p.PayloadLen, p.TLP = 0, first.AppendHeader(nil)
			}, 2, 4096)
			if err := box.ReceiveRuns(ready, 0, sealed(host, 9, reads), got.keep, got.run); !errors.Is(err, ErrProtocol) || box.state == Up {
				t.Errorf("%v: a run of reads: %v, %v", versions, err, box.state)
			}
		}
		if want >= 3 {
			continue
		}
		if err := box.Receive(ready, 0, sealed(host, 9, runBody(host, func(*frame.RunPacket) {}, 2, 4096)), got.keep); !errors.Is(err, ErrMalformed) || box.state != Up {
			t.Errorf("%v: a run packet: %v, %v", versions, err, box.state)
		}
	}
}

// TLPs of a run that have arrived before, or whose predecessors have not, are not lost
// or delivered twice.
func TestRunsThatOverlapOtherPackets(t *testing.T) {
	const total, size = 12, 512
	for _, c := range []Cipher{CipherNone, CipherAES256GCM} {
		for first := range total - 1 {
			host, box := wide(t, [2]uint8{}, c)
			for i := range total {
				p := pageWrite(1<<40+uint64(i*size), size)
				if err := host.Send(ready, &p); err != nil {
					t.Fatal(err)
				}
			}
			var got arrivals
			number := uint64(100)
			send := func(from, count int) {
				host.send.cursor = uint64(from)
				d := datagram{b: make([]byte, 0, frame.MaxDatagram), limit: frame.MaxDatagram - 100, rec: new(record)}
				if count == 1 {
					o := host.send.slot(uint64(from))
					host.writeHeader(host.paths[0], &d, uint64(from), o)
					host.writeChunk(&d, uint64(from), o, 0, unitCount(size), frame.Unit)
				} else if !host.writeRun(host.paths[0], &d, count) {
					t.Fatal("no run")
				}
				number++
				if err := box.ReceiveRuns(ready, 0, sealed(host, number, d.b), got.keep, got.run); err != nil {
					t.Fatal(err)
				}
			}
			send(total-2, 2)           // before all others
			send(first, 1)             // perhaps the first
			send(0, max(2, first))     // ends before it, or contains it
			send(0, total)             // all
			send(first, total-first-0) // again
			if len(got.tlps) != total {
				t.Fatalf("%v, %d first: %d TLPs arrived, want %d", c, first, len(got.tlps), total)
			}
			for i := range got.tlps {
				if diff := cmp.Diff(pageWrite(1<<40+uint64(i*size), size), got.tlps[i], cmp.Comparer(bytes.Equal)); diff != "" {
					t.Fatalf("%v, %d first, TLP %d:\n%s", c, first, i, diff)
				}
			}
			if box.recv.held != 0 || box.recv.count != 0 || box.recv.delivered != host.send.cost {
				t.Errorf("%v: holds %d bytes of %d TLPs; cost %d, want %d", c, box.recv.held, box.recv.count, box.recv.delivered, host.send.cost)
			}
		}
	}
}

// A payload that its owner puts into the send buffer is sent from there, and nothing
// else of the buffer changes.
func TestPayloadInPlace(t *testing.T) {
	host, box := wide(t, [2]uint8{}, CipherNone)
	var got arrivals
	var want []tlp.Packet
	for round := range 200 {
		size := 4 << (round % 11)
		p := pageWrite(uint64(round)<<20, size)
		want = append(want, p)
		q := p
		if round%3 > 0 { // sometimes as before
			q.Data = host.Payload(size)
			if len(q.Data) != size || cap(q.Data) != size {
				t.Fatalf("%d bytes of memory for %d", len(q.Data), size)
			}
			copy(q.Data, p.Data)
		}
		if round%5 == 0 {
			host.Payload(4096) // that is not used
			copy(q.Data, p.Data)
		}
		if err := host.Send(ready, &q); err != nil {
			t.Fatal(err)
		}
		if round%7 == 0 {
			buf := make([]byte, frame.MaxDatagram)
			for n, path := host.Transmit(ready, buf); n > 0; n, path = host.Transmit(ready, buf) {
				if err := box.Receive(ready, path, buf[:n], got.keep); err != nil {
					t.Fatal(err)
				}
			}
			pass(box, host, ready)
		}
	}
	if diff := cmp.Diff(want[:len(got.tlps)], got.tlps, cmp.Comparer(bytes.Equal)); diff != "" || len(got.tlps) < 190 {
		t.Errorf("%d TLPs (-sent +arrived):\n%s", len(got.tlps), diff)
	}
	if host.Payload(0) != nil || host.Payload(host.Room()+1) != nil {
		t.Error("memory for a payload of another size")
	}
	for p := pageWrite(0, 4096); host.Send(ready, &p) == nil; {
	}
	if host.Room() >= 4096 || host.Payload(4096) != nil {
		t.Error("memory in a full buffer")
	}
	host.Close(ready, 1)
	if host.Payload(4) != nil {
		t.Error("memory of a link that is closing")
	}
}

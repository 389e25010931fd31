package link

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// sealed returns a datagram of an end with a body of its owner's making.
func sealed(from *Link, number uint64, body []byte) []byte {
	h := frame.Header{Version: from.version, Type: frame.TypeTraffic, Binding: 1, Epoch: 1, Number: number}
	d := append(h.Append(make([]byte, 0, frame.MaxDatagram+64)), body...)
	return from.keys.send.cur.close(d, frame.HeaderSize, 0, 0, number)
}

// runBody returns a run packet with valid CRCs after a change.
func runBody(from *Link, change func(*frame.RunPacket), count, size int) []byte {
	first := pageWrite(1<<40, size)
	p := frame.RunPacket{
		Source: from.cfg.Local, Destination: from.cfg.Remote, Seq: from.send.cursor, Count: count, PayloadLen: size, TLP: first.AppendHeader(nil),
	}
	change(&p)
	payloads := make([]byte, p.Count*p.PayloadLen)
	for i := range len(payloads) / max(p.PayloadLen, 1) {
		p.CRCs = binary.BigEndian.AppendUint32(p.CRCs, frame.CRC(0, payloads[i*p.PayloadLen:(i+1)*p.PayloadLen]))
	}
	p.HeaderCRC = frame.CRC(0, p.TLP)
	return append(p.Append(nil, from.form), payloads...)
}

// setRun makes the packet one of a run that begins with a TLP.
func setRun(p *frame.RunPacket, first tlp.Packet, payload int) {
	p.PayloadLen, p.TLP = payload, first.AppendHeader(nil)
}

// A peer that sends a run whose TLPs no device could send ends the session.
func TestHostileRuns(t *testing.T) {
	header := func(f func(*tlp.Packet)) func(*frame.RunPacket) {
		return func(p *frame.RunPacket) {
			first := changed(pageWrite(1<<40, 4096), f)
			p.TLP = first.AppendHeader(nil)
		}
	}
	at := func(addr uint64) func(*frame.RunPacket) {
		return header(func(p *tlp.Packet) { p.SetAddr(addr) })
	}
	for _, tc := range []struct {
		name   string
		change func(*frame.RunPacket)
		want   error
	}{
		{"good", func(*frame.RunPacket) {}, nil},
		{"crosses pages", at(1<<40 + 64), ErrProtocol},
		{"passes the end", at(1<<64 - 4096), ErrProtocol},
		{"passes 4 GiB", at(1<<32 - 4096), ErrProtocol},
		{"another length", func(p *frame.RunPacket) { p.PayloadLen = 2048 }, ErrProtocol},
		{"no power of two", func(p *frame.RunPacket) {
			first := pageWrite(0, 192)
			p.PayloadLen, p.TLP = 192, first.AppendHeader(nil)
		}, ErrProtocol},
		{"read", header(func(p *tlp.Packet) { p.Type, p.Data = tlp.MRd, nil }), ErrProtocol},
		{"atomic", header(func(p *tlp.Packet) { p.Type = tlp.FetchAdd }), ErrProtocol},
		{"no TLP", func(p *frame.RunPacket) { p.TLP = make([]byte, 16); p.TLP[0] = 0xff }, ErrProtocol},
		{"a prefix", func(p *frame.RunPacket) { p.TLP = append([]byte{0x91, 0, 0, 1}, p.TLP[:12]...) }, ErrProtocol},
		{"poisoned", header(func(p *tlp.Packet) { p.EP = true }), ErrProtocol},
		{"digest", header(func(p *tlp.Packet) { p.HasDigest = true }), ErrProtocol},
		{"processing hints", header(func(p *tlp.Packet) { p.TH = true }), ErrProtocol},
		{"disabled bytes", header(func(p *tlp.Packet) { p.LastBE = 1 }), ErrProtocol},
		{"a completion", func(p *frame.RunPacket) { setRun(p, completion(0, 4096), 4096) }, nil},
		{"the last tags", func(p *frame.RunPacket) { setRun(p, completion(0x3fe, 4096), 4096) }, nil},
		{"more tags than there are", func(p *frame.RunPacket) { setRun(p, completion(0x3ff, 4096), 4096) }, ErrProtocol},
		{"over 256 tags", func(p *frame.RunPacket) { setRun(p, completion(0xff, 4096), 4096) }, ErrProtocol},
		{"a failed completion", func(p *frame.RunPacket) {
			setRun(p, changed(completion(0, 4096), func(p *tlp.Packet) { p.Status = pcie.CompleterAbort }), 4096)
		}, ErrProtocol},
		{"a poisoned completion", func(p *frame.RunPacket) {
			setRun(p, changed(completion(0, 4096), func(p *tlp.Packet) { p.EP = true }), 4096)
		}, ErrProtocol},
		{"a completion of a bridge", func(p *frame.RunPacket) {
			setRun(p, changed(completion(0, 4096), func(p *tlp.Packet) { p.BCM = true }), 4096)
		}, ErrProtocol},
		{"a completion of another length", func(p *frame.RunPacket) { setRun(p, completion(0, 4096), 2048) }, ErrProtocol},
		{"a completion without data", func(p *frame.RunPacket) {
			setRun(p, tlp.Packet{Type: tlp.Cpl, ByteCount: 4}, 0)
		}, ErrProtocol},
		{"reads", func(p *frame.RunPacket) { setRun(p, pageRead(1<<40, 0, 4096), 0) }, nil},
		{"reads that cross pages", func(p *frame.RunPacket) { setRun(p, pageRead(1<<40+64, 0, 4096), 0) }, ErrProtocol},
		{"reads that pass the end", func(p *frame.RunPacket) { setRun(p, pageRead(1<<64-4096, 0, 4096), 0) }, ErrProtocol},
		{"reads over 256 tags", func(p *frame.RunPacket) { setRun(p, pageRead(1<<40, 0xff, 4096), 0) }, ErrProtocol},
		{"reads of no byte", func(p *frame.RunPacket) {
			setRun(p, changed(pageRead(1<<40, 0, 64), func(p *tlp.Packet) { p.FirstBE, p.LastBE = 0, 0 }), 0)
		}, ErrProtocol},
		{"of another slot", func(p *frame.RunPacket) { p.Source.Slot++ }, ErrRoute},
		{"for another slot", func(p *frame.RunPacket) { p.Destination.Slot++ }, ErrRoute},
		{"beyond the window", func(p *frame.RunPacket) { p.Seq += 1 << 40 }, ErrCredit},
		{"the last numbers", func(p *frame.RunPacket) { p.Seq = 1<<64 - 1 }, ErrCredit},
	} {
		for _, c := range []Cipher{CipherNone, CipherAES256GCM} {
			t.Run(tc.name+" "+c.String(), func(t *testing.T) {
				host, box := wide(t, [2]uint8{}, c)
				var got arrivals
				err := box.ReceiveRuns(ready, 0, sealed(host, 9, runBody(host, tc.change, 2, 4096)), got.keep, got.run)
				if !errors.Is(err, tc.want) || (len(got.tlps) == 2) != (tc.want == nil) || len(got.tlps)%2 != 0 {
					t.Errorf("%v, %d TLPs; want %v", err, len(got.tlps), tc.want)
				}
				if (box.state != Up) != (tc.want == ErrProtocol) {
					t.Errorf("the session is %v", box.state)
				}
				if box.recv.held != 0 {
					t.Errorf("holds %d bytes", box.recv.held)
				}
			})
		}
	}
}

// Reads in runs take next to no bytes. A datagram brings no more of them than it could
// bring one by one, and no more than the credit of the peer.
func TestRunsOfReadsAreBounded(t *testing.T) {
	reads := func(from *Link, counts ...int) (body []byte) {
		seq := from.send.cursor
		for _, count := range counts {
			body = append(body, runBody(from, func(p *frame.RunPacket) {
				setRun(p, pageRead(1<<40, 0, 64), 0)
				p.Seq, p.Count = seq, count
			}, count, 64)...)
			seq += uint64(count)
		}
		return body
	}
	for _, tc := range []struct {
		name   string
		counts []int
		credit uint64 // that the box has granted
		want   error
		taken  int
	}{
		{"the most of one datagram", []int{256, 256, 256, 256}, 1 << 20, nil, 1024},
		{"one more", []int{256, 256, 256, 255, 2}, 1 << 20, ErrMalformed, 1023},
		{"all of the credit", []int{200}, 200 * frame.TLPCost, nil, 200},
		{"more than the credit", []int{200}, 200*frame.TLPCost - 1, ErrCredit, 0},
		{"more later", []int{100, 101}, 200 * frame.TLPCost, ErrCredit, 100},
	} {
		for _, c := range []Cipher{CipherNone, CipherAES256GCM} {
			t.Run(tc.name+" "+c.String(), func(t *testing.T) {
				host, box := wide(t, [2]uint8{}, c)
				box.recv.advertised = tc.credit
				var got arrivals
				err := box.ReceiveRuns(ready, 0, sealed(host, 9, reads(host, tc.counts...)), got.keep, got.run)
				if !errors.Is(err, tc.want) || len(got.tlps) != tc.taken {
					t.Errorf("%d reads, %v; want %d, %v", len(got.tlps), err, tc.taken, tc.want)
				}
			})
		}
	}
	host, box := wide(t, [2]uint8{}, CipherNone) // an end keeps to it
	for i := range 3 * maxRunReads {
		p := pageRead(1<<40+uint64(i)<<6, pcie.Tag(i%256), 64)
		if err := host.Send(ready, &p); err != nil {
			t.Fatal(err)
		}
	}
	var got arrivals
	buf := make([]byte, frame.MaxDatagram)
	for n, path := host.Transmit(ready, buf); n > 0; n, path = host.Transmit(ready, buf) {
		if err := box.ReceiveRuns(ready, path, buf[:n], got.keep, got.run); err != nil {
			t.Fatal(err)
		}
	}
	if len(got.tlps) != 3*maxRunReads || len(got.runs) == 0 {
		t.Errorf("%d reads in runs of %v", len(got.tlps), got.runs)
	}
}

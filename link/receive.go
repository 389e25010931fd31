package link

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	// An acknowledgement is sent at once after ackEvery datagrams or ackBytes,
	// otherwise after up to Config.AckDelay. RFC 9000 recommends two datagrams;
	// here an acknowledgement costs a system call at both ends, and the sender's
	// window is rarely as small as 8 datagrams. 64 KiB keep slow start going on
	// paths with datagrams of that size.
	ackEvery = 8
	// Recent losses indicate a shared bottleneck. There the two of RFC 9000
	// section 13.2.2 apply: each acknowledgement releases a burst, and a sender
	// with bursts of eight loses more than TCP, which leaves it a quarter of
	// TCP's share.
	ackEveryCongested = 2
	congestedFor      = time.Second
	ackBytes          = 64 << 10
)

// Receive processes a datagram that arrived by a path. It decrypts it in place and
// calls deliver for every TLP that is now next in order. The packet and its Data
// are valid only during that call. deliver may call Send and Room, but no other
// method.
//
// The error is the reason for which the datagram, or the rest of it, was dropped:
// one of the Err values of this package. Stats counts it; it needs no other
// handling.
func (l *Link) Receive(now time.Duration, path uint8, datagram []byte, deliver func(*tlp.Packet)) error {
	return l.ReceiveRuns(now, path, datagram, deliver, nil)
}

// owner takes the TLPs that arrive, and whole runs if run is not nil.
type owner struct {
	tlp func(*tlp.Packet)
	run func(*Run)
}

// ReceiveRuns is Receive for an owner that does not need single TLPs where a run
// arrives in order: it calls run instead. The run is valid only during that call,
// for which the same holds as for deliver.
func (l *Link) ReceiveRuns(now time.Duration, path uint8, datagram []byte, deliver func(*tlp.Packet), run func(*Run)) error {
	marked := l.marked
	l.marked = false
	err := l.receive(now, path, datagram, marked, owner{deliver, run})
	if err != nil {
		l.stats.Drops.count(err)
	}
	return err
}

func (l *Link) receive(now time.Duration, path uint8, datagram []byte, marked bool, to owner) error {
	h, _, err := frame.ParseHeader(datagram)
	switch {
	case err != nil:
		return ErrMalformed
	case h.Binding != l.cfg.Binding:
		return ErrNotMine
	case h.Epoch != l.cfg.Epoch:
		return ErrStaleEpoch
	case h.Path != path || int(path) >= len(l.paths):
		return ErrPath
	case l.state == Down:
		return ErrNotUp
	case h.Type != frame.TypeTraffic:
		if l.state == Closing {
			return ErrNotUp
		}
		return l.receiveHandshake(now, &h, datagram)
	case !l.keys.ready:
		l.answerUnknown(now, h.Version, path)
		return ErrNoSession
	case h.Version != l.version:
		return ErrMalformed
	}
	p := l.paths[path]
	if !p.received.fresh(h.Number) {
		return ErrReplay
	}
	size := len(datagram)
	body, ok := l.keys.openTraffic(datagram, &h)
	if !ok {
		return ErrSeal
	}
	l.liveness.heard(now)
	if !l.hs.suspect {
		l.hs.active = false // the confirm has arrived
	}
	if l.state == Closing {
		return l.receiveClosing(body)
	}
	eliciting, err := l.receiveBody(now, body, to)
	if err != nil {
		return err
	}
	l.stats.DatagramsReceived++
	l.stats.WireBytesReceived += uint64(size)
	p.datagramsIn++
	if marked {
		l.stats.MarkedDatagrams++
	}
	p.arrived(now, h.Number, size, eliciting, marked)
	return nil
}

// receiveClosing processes only the peer's close, which ends this end's closing.
func (l *Link) receiveClosing(body []byte) error {
	if _, _, err := frame.ParseClose(body, l.form); err != nil {
		return ErrNotUp
	}
	l.down(l.reason, l.code)
	return nil
}

// arrived records a datagram and schedules its acknowledgement.
func (p *path) arrived(now time.Duration, number uint64, size int, eliciting, marked bool) {
	if marked {
		p.marked++
	}
	inOrder := p.received.add(number)
	if number == p.received.largest {
		p.largestAt = now
	}
	if !eliciting {
		return
	}
	p.ackCount++
	p.ackBytes += size
	at := now + p.cfg.AckDelay
	every := ackEvery
	if !inOrder || marked {
		p.congestedTo = now + congestedFor
	}
	if now < p.congestedTo {
		every = ackEveryCongested
	}
	if !inOrder || marked || p.ackCount >= every || p.ackBytes >= ackBytes {
		at = now
	}
	p.ackAt = min(p.ackAt, at)
}

// receiveBody processes the packets of a datagram. It reports whether they ask for
// an acknowledgement.
func (l *Link) receiveBody(now time.Duration, body []byte, to owner) (eliciting bool, err error) {
	l.reads = 0
	for len(body) > 0 {
		var n int
		switch frame.Kind(body[0]) {
		case frame.KindHeader:
			eliciting = true
			n, err = l.receiveHeader(now, body, to)
		case frame.KindData:
			eliciting = true
			n, err = l.receiveData(now, body, to)
		case frame.KindRun:
			eliciting = true
			n, err = l.receiveRun(now, body, to)
		case frame.KindAck:
			if n, err = l.ack.Parse(body, l.form); err != nil {
				return false, parseError(err)
			}
			if l.ack.Marked != 0 && l.spoken < frame.Version5 {
				return false, ErrMalformed
			}
			err = l.receiveAck(now, &l.ack)
		case frame.KindPing:
			eliciting = true
			if n, err = frame.ParsePing(body, l.form); err != nil {
				err = parseError(err)
			}
		case frame.KindClose:
			code, _, err := frame.ParseClose(body, l.form)
			if err != nil {
				return false, parseError(err)
			}
			l.down(PeerClosed, code)
			return false, nil
		case frame.KindPadding:
			n = len(body)
			if frame.CheckPadding(body) != nil {
				err = ErrMalformed
			}
		case frame.KindHello: // only valid in handshake datagrams
			err = ErrMalformed
		default:
			err = ErrMalformed
		}
		if err != nil {
			return false, err
		}
		if l.state != Up {
			return false, nil
		}
		body = body[n:]
	}
	return eliciting, nil
}

// receiveHeader processes a header packet. If the TLP is next in order and the
// following data packet completes it, receiveHeader processes both without a copy:
// the common case.
func (l *Link) receiveHeader(now time.Duration, body []byte, to owner) (n int, err error) {
	hp := &l.hp
	if n, err = hp.Parse(body, l.form); err != nil {
		return 0, parseError(err)
	}
	if hp.Source != l.cfg.Remote || hp.Destination != l.cfg.Local {
		return 0, ErrRoute
	}
	r := &l.recv
	if hp.Seq < r.next {
		l.stats.Duplicates++
		return n, nil
	}
	if hp.Seq == r.next && r.peek(hp.Seq) == nil {
		if hp.PayloadLen == 0 {
			return n, l.deliverWhole(now, nil, 0, to)
		}
		if rest := body[n:]; len(rest) > 0 && frame.Kind(rest[0]) == frame.KindData {
			m, err := l.dp.Parse(rest, l.form)
			if err != nil {
				return 0, parseError(err)
			}
			if l.dp.Seq == hp.Seq && len(l.dp.Chunk) == hp.PayloadLen {
				return n + m, l.deliverWhole(now, l.dp.Chunk, l.dp.ChunkCRC, to)
			}
		}
	}
	in, err := r.take(hp.Seq, hp.PayloadLen)
	if err != nil {
		return 0, err
	}
	if in.hdr {
		l.stats.Duplicates++
		return n, nil
	}
	in.hdr, in.digest, in.headerLen = true, hp.Digest, uint8(len(hp.TLP))
	copy(in.header[:], hp.TLP)
	in.headerCRC, in.tlpCRC = hp.HeaderCRC, hp.TLPCRC
	return n, l.deliverHeld(now, to)
}

// receiveData processes a data packet.
func (l *Link) receiveData(now time.Duration, body []byte, to owner) (n int, err error) {
	dp := &l.dp
	if n, err = dp.Parse(body, l.form); err != nil {
		return 0, parseError(err)
	}
	r := &l.recv
	if dp.Seq < r.next {
		l.stats.Duplicates++
		return n, nil
	}
	in, err := r.take(dp.Seq, dp.PayloadLen)
	if err != nil {
		return 0, err
	}
	u := unitRange(dp.Offset/frame.Unit, unitCount(dp.Offset+len(dp.Chunk)))
	if in.got&u == u {
		l.stats.Duplicates++
		return n, nil
	}
	in.got |= u
	copy(in.payload[dp.Offset:], dp.Chunk)
	return n, l.deliverHeld(now, to)
}

// deliverHeld delivers TLPs from reassembly as long as the next one is complete.
func (l *Link) deliverHeld(now time.Duration, to owner) error {
	for l.state == Up {
		in := l.recv.peek(l.recv.next)
		if in == nil || !in.complete() {
			return nil
		}
		// The CRC is computed again over the assembled payload: it also covers the
		// memory that held the payload.
		var crc uint32
		if in.payloadLen > 0 && l.form == frame.Checked {
			crc = frame.CRC(0, in.payload)
		}
		err := l.deliver(now, in.header[:in.headerLen], in.digest, in.headerCRC, in.tlpCRC, in.payload, crc, to)
		if err != nil {
			return err
		}
	}
	return nil
}

// deliver checks and delivers the next TLP. Its packets have passed their own
// checks, so a TLP that fails now was corrupted in the memory of a proxy or built
// so, and retransmission would not help.
func (l *Link) deliver(now time.Duration, header []byte, digest bool, headerCRC, tlpCRC uint32,
	payload []byte, payloadCRC uint32, to owner,
) error {
	if l.form == frame.Checked && frame.TLPCRC(headerCRC, payloadCRC, len(payload)) != tlpCRC {
		l.broken(now)
		return ErrCorrupt
	}
	p := &l.out
	end := len(header)
	if digest {
		end -= frame.DigestSize
	}
	n, err := p.DecodeHeader(header[:end])
	if err != nil || n != end || p.PayloadLen() != len(payload) || p.HasDigest != digest {
		l.broken(now)
		return ErrProtocol
	}
	if digest {
		p.Digest = binary.BigEndian.Uint32(header[end:])
	}
	p.Data = payload
	l.stats.TLPsReceived++
	l.stats.BytesReceived += uint64(len(payload))
	to.tlp(p)
	l.recv.advance(len(payload))
	return nil
}

// deliverWhole delivers the TLP of l.hp with the given payload, and the TLPs that
// waited for it.
func (l *Link) deliverWhole(now time.Duration, payload []byte, payloadCRC uint32, to owner) error {
	hp := &l.hp
	if err := l.deliver(now, hp.TLP, hp.Digest, hp.HeaderCRC, hp.TLPCRC, payload, payloadCRC, to); err != nil {
		return err
	}
	return l.deliverHeld(now, to)
}

// broken ends the session because a TLP cannot be delivered.
func (l *Link) broken(now time.Duration) { l.beginClose(now, Broken, CodeBroken) }

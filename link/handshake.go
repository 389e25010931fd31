package link

import (
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
)

// handshake opens the session and detects that the peer has started another:
//
//	initiator                              responder
//	    │ ── hello(I) ─────────────────────▶ │   sealed with a key of I
//	    │ ◀───────────────── hello-ack(I,R) ─ │   sealed with a key of R, echoes the hello
//	 Up │ ── confirm(I,R) ─────────────────▶ │   sealed with a key of both, echoes the ack
//	    │ ◀═══════════ traffic(I,R) ════════▶ │ Up
//
// I and R are session IDs. The responder keeps no state before the confirm, so a
// replayed hello costs it one reply. The echoes prove to each side that the other
// is alive now. See PROTOCOL.md, section "Handshake".
type handshake struct {
	start time.Duration
	peer  uint64 // session of the peer, when Up

	own     seal   // for hello, or for hello-ack and unknown-session
	numbers uint64 // of datagrams sealed with own
	confirm seal
	confirms,
	echo uint64 // number of the hello-ack that a confirm echoes

	// Initiator: its hello and confirm.
	active  bool          // hello or confirm must be repeated
	nextAt  time.Duration // time of the next one
	wait    time.Duration // between them, doubling
	path    uint8         // of the next one
	sentAt  time.Duration // time of the last hello
	verify  uint64        // a hello-ack that echoes a hello from this number on is recent
	suspect bool          // the peer reported that it does not know the session

	// The answer to the peer's last handshake datagram.
	reply       frame.Type // 0: none
	replyPath   uint8
	replyTo     uint64 // session that sent the hello
	replyEcho   uint64 // number of that hello
	unknownAt   time.Duration
	acceptAfter uint64 // responder: a confirm that echoes an earlier hello-ack is old

	// Handshake datagrams processed since admitFrom.
	admitted  int
	admitFrom time.Duration
}

const (
	helloWait    = 10 * time.Millisecond
	helloWaitMax = 250 * time.Millisecond
	// unknownWait is the minimum interval of unknown-session datagrams: they must
	// not serve for amplification.
	unknownWait = 10 * time.Millisecond
	// An end must derive keys before it can authenticate a handshake datagram,
	// ten times the cost of a traffic datagram. It processes at most admitMost in
	// admitEvery: 1 % of a processor, and thirty times the rate of a peer.
	admitMost  = 32
	admitEvery = 10 * time.Millisecond
)

// admit reports whether another handshake datagram may be processed now.
func (h *handshake) admit(now time.Duration) bool {
	if now >= h.admitFrom+admitEvery {
		h.admitFrom, h.admitted = now, 0
	}
	h.admitted++
	return h.admitted <= admitMost
}

func (h *handshake) init(now time.Duration, cfg *Config) {
	*h = handshake{start: now, active: cfg.Initiator, nextAt: now, wait: helloWait}
}

func (h *handshake) wake(l *Link) time.Duration {
	at := machine.Never
	if h.reply != 0 {
		return 0
	}
	if h.active {
		at = h.nextAt
	}
	if l.state == Connecting && l.cfg.ConnectTimeout > 0 {
		at = min(at, h.start+l.cfg.ConnectTimeout)
	}
	return at
}

// transmitHandshake writes the next handshake datagram, if one is due.
func (l *Link) transmitHandshake(now time.Duration, buf []byte) (int, uint8) {
	h := &l.hs
	if l.state == Connecting && l.cfg.ConnectTimeout > 0 && now >= h.start+l.cfg.ConnectTimeout {
		l.down(ConnectFailed, 0)
		return 0, 0
	}
	if h.reply != 0 {
		hdr := frame.Header{Type: h.reply, Path: h.replyPath, Initiator: h.replyTo, Responder: l.cfg.Session}
		h.reply = 0
		return l.writeHandshake(buf, &hdr, &h.own, &h.numbers, h.replyEcho), hdr.Path
	}
	if !h.active || now < h.nextAt {
		return 0, 0
	}
	h.nextAt = now + h.wait
	h.wait = min(2*h.wait, helloWaitMax)
	hdr := frame.Header{Type: frame.TypeHello, Path: h.path, Initiator: l.cfg.Session}
	h.path = (h.path + 1) % uint8(len(l.paths))
	if l.state == Up {
		l.liveness.asked(now)
		if !h.suspect {
			hdr.Type, hdr.Responder = frame.TypeConfirm, h.peer
			return l.writeHandshake(buf, &hdr, &h.confirm, &h.confirms, h.echo), hdr.Path
		}
	}
	h.sentAt = now
	return l.writeHandshake(buf, &hdr, &h.own, &h.numbers, 0), hdr.Path
}

func (l *Link) writeHandshake(buf []byte, hdr *frame.Header, s *seal, numbers *uint64, echo uint64) int {
	if s.aead == nil {
		role := fromResponder
		if l.cfg.Initiator {
			role = fromInitiator
		}
		*s = l.keys.helloSeal(role, l.cfg.Session)
	}
	size := hdr.Size() + frame.HelloSize + frame.TagSize
	if len(buf) < size {
		return 0
	}
	hdr.Binding, hdr.Epoch, hdr.Number = l.cfg.Binding, l.cfg.Epoch, *numbers
	*numbers++
	b := hdr.Append(buf[:0])
	hello := frame.Hello{
		Cipher: uint8(l.cfg.Cipher), Source: l.cfg.Local, Destination: l.cfg.Remote,
		Limit: uint64(l.cfg.Window), Echo: echo,
	}
	b = s.close(hello.Append(b), hdr.Size(), hdr.Path, hdr.Number)
	l.stats.DatagramsSent++
	l.stats.WireBytesSent += uint64(len(b))
	return len(b)
}

// receiveHandshake processes a handshake datagram.
func (l *Link) receiveHandshake(now time.Duration, h *frame.Header, datagram []byte) error {
	fromPeer := (h.Type == frame.TypeHello || h.Type == frame.TypeConfirm) != l.cfg.Initiator
	if !fromPeer {
		return ErrProtocol
	}
	if !l.hs.admit(now) {
		return ErrFlood
	}
	var s seal
	switch {
	case h.Type == frame.TypeConfirm && h.Responder != l.cfg.Session:
		l.answerUnknown(now, h.Path)
		return ErrNoSession
	case h.Type == frame.TypeConfirm:
		s = l.keys.confirmSeal(h.Initiator, h.Responder)
	case l.cfg.Initiator:
		s = l.keys.helloSeal(fromResponder, h.Responder)
	default:
		s = l.keys.helloSeal(fromInitiator, h.Initiator)
	}
	hello, err := openHello(&s, h, datagram)
	if err != nil {
		return err
	}
	switch h.Type {
	case frame.TypeConfirm:
		return l.receiveConfirm(now, h, &hello)
	case frame.TypeHelloAck:
		return l.receiveHelloAck(now, h, &hello)
	case frame.TypeUnknown:
		l.receiveUnknown(now, h)
	default:
		l.hs.reply, l.hs.replyPath = frame.TypeHelloAck, h.Path
		l.hs.replyTo, l.hs.replyEcho = h.Initiator, h.Number
	}
	return nil
}

func openHello(s *seal, h *frame.Header, datagram []byte) (frame.Hello, error) {
	body, ok := s.open(datagram, h.Size(), h.Path, h.Number)
	if !ok {
		return frame.Hello{}, ErrSeal
	}
	hello, n, err := frame.ParseHello(body)
	if err != nil || n != len(body) {
		return frame.Hello{}, ErrMalformed
	}
	return hello, nil
}

func (l *Link) compatible(hello *frame.Hello) bool {
	return hello.Cipher == uint8(l.cfg.Cipher) && hello.Source == l.cfg.Remote && hello.Destination == l.cfg.Local
}

// receiveHelloAck processes a hello-ack at the initiator.
func (l *Link) receiveHelloAck(now time.Duration, h *frame.Header, hello *frame.Hello) error {
	hs := &l.hs
	switch {
	case h.Initiator != l.cfg.Session || hello.Echo >= hs.numbers:
		return ErrNoSession
	case l.state == Up:
		if h.Responder != hs.peer && hs.suspect && hello.Echo >= hs.verify {
			l.down(PeerRestarted, 0)
		} else if h.Responder == hs.peer && hs.suspect {
			hs.suspect, hs.active = false, false
		}
		return nil
	case !l.compatible(hello):
		l.down(Incompatible, 0)
		return ErrProtocol
	}
	if hello.Echo == hs.numbers-1 {
		l.paths[h.Path].rtt.sample(now-hs.sentAt, 0)
	}
	hs.confirm = l.keys.confirmSeal(l.cfg.Session, h.Responder)
	hs.echo = h.Number
	hs.active, hs.nextAt, hs.wait, hs.path = true, now, helloWait, h.Path
	l.up(now, l.cfg.Session, h.Responder, h.Responder, h.Path, hello.Limit)
	return nil
}

// receiveConfirm processes a confirm at the responder.
func (l *Link) receiveConfirm(now time.Duration, h *frame.Header, hello *frame.Hello) error {
	hs := &l.hs
	switch {
	case !l.compatible(hello):
		return ErrProtocol
	case hello.Echo >= hs.numbers:
		return ErrNoSession
	case l.state == Up && h.Initiator != hs.peer:
		if hello.Echo < hs.acceptAfter {
			return ErrReplay
		}
		l.down(PeerRestarted, 0)
		return nil
	case l.state == Connecting:
		hs.acceptAfter = hs.numbers
		l.up(now, h.Initiator, l.cfg.Session, h.Initiator, h.Path, hello.Limit)
	}
	// Any traffic tells the initiator that the confirm has arrived.
	p := l.paths[h.Path]
	p.probes = max(p.probes, 1)
	return nil
}

// up opens the session.
func (l *Link) up(now time.Duration, initiator, responder, peer uint64, path uint8, limit uint64) {
	l.keys.open(&l.cfg, initiator, responder)
	l.state = Up
	l.hs.peer = peer
	l.send.limit = limit
	l.liveness.heard(now)
	for _, p := range l.paths {
		p.usable = p.id == path
		p.lastEliciting, p.nextProbe = now, now
	}
}

// receiveUnknown processes the responder's report that it does not know the
// session. The datagram may be a replay, so a new hello verifies it.
func (l *Link) receiveUnknown(now time.Duration, h *frame.Header) {
	hs := &l.hs
	if l.state != Up || h.Responder == hs.peer || hs.suspect {
		return
	}
	hs.suspect, hs.active, hs.verify = true, true, hs.numbers
	hs.nextAt, hs.wait, hs.path = now, helloWait, h.Path
}

// answerUnknown answers a datagram of an unknown session at the responder.
func (l *Link) answerUnknown(now time.Duration, path uint8) {
	hs := &l.hs
	if l.cfg.Initiator || hs.reply != 0 || now < hs.unknownAt {
		return
	}
	hs.reply, hs.replyPath, hs.replyTo, hs.replyEcho = frame.TypeUnknown, path, 0, 0
	hs.unknownAt = now + unknownWait
}

package link

import (
	"crypto/subtle"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
)

// handshake opens the session and detects that the peer has started another:
//
//	initiator                              responder
//	    │ ── hello(I) ─────────────────────▶ │
//	    │ ◀───────────────── hello-ack(I,R) ─ │   echoes the hello
//	 Up │ ── confirm(I,R) ─────────────────▶ │   echoes the ack
//	    │ ◀═══════════ traffic(I,R) ════════▶ │ Up
//
// I and R are session IDs. The responder keeps no state before the confirm, so a
// replayed hello costs it one reply. The echoes prove to each side that the other
// is alive now. An initiator offers both versions of the protocol. See PROTOCOL.md,
// section "Handshake".
type handshake struct {
	start    time.Duration
	peer     uint64 // session of the peer, when Up
	versions [frame.Version2]exchange

	// Initiator: its hello and confirm.
	active  bool          // hello or confirm must be repeated
	nextAt  time.Duration // time of the next one
	wait    time.Duration // between them, doubling
	path    uint8         // of the next one
	again   bool          // it is not the first
	older   bool          // the hello of version 1 follows that of version 2
	suspect bool          // the peer reported that it does not know the session
	proof   [frame.ProofSize]byte
	// cookies are the responder's, by path. unanswered is the number of the last
	// datagram that a cookie may answer, plus 1.
	cookies    [frame.MaxPaths][frame.CookieSize]byte
	unanswered [frame.MaxPaths]uint64
	// resend is set when a cookie arrived: the last datagram of resendPath goes out once
	// more, with it, beside the schedule. A cookie may be forged, so it does not change
	// the schedule, and resends counts how many followed the last scheduled datagram.
	resend     bool
	resendPath uint8
	resends    uint8

	// The answer to the peer's last handshake datagram.
	reply        frame.Type // 0: none
	replyVersion uint8
	replyPath    uint8
	replyTo      uint64 // session that sent the hello
	replyEcho    uint64 // number of that hello
	unknownAt    time.Duration
	provenAt     time.Duration // a confirm that comes before is dropped
}

// exchange is the state of the handshake datagrams of one version.
type exchange struct {
	numbers  uint64 // of hellos, or of hello-acks and unknown-sessions
	confirms uint64
	echo     uint64 // number of the hello-ack that a confirm echoes
	own      seal   // version 1: of the datagrams that numbers counts
	confirm  seal   // version 1

	sentAt      time.Duration // time of the last hello
	verify      uint64        // a hello-ack that echoes a hello from this number on is recent
	acceptAfter uint64        // responder: a confirm that echoes an earlier hello-ack is old
}

const (
	helloWait    = 10 * time.Millisecond
	helloWaitMax = 250 * time.Millisecond
	// unknownWait is the minimum interval of unknown-session datagrams: they must
	// not serve for amplification.
	unknownWait = 10 * time.Millisecond
	// provenWait is the time after a confirm with a wrong proof in which a responder looks at
	// no other: the keys of each take as long as two hundred small datagrams. Only a peer with
	// the secret can make one.
	provenWait = 10 * time.Millisecond
	// maxResends bounds the cookies that this end follows between two datagrams of its
	// schedule: those that an observer forges may come before the peer's.
	maxResends = 4
)

func (h *handshake) init(now time.Duration, cfg *Config) {
	*h = handshake{start: now, active: cfg.Initiator, nextAt: now, wait: helloWait}
	if cfg.MaxVersion >= frame.Version2 {
		x := h.of(frame.Version1)
		x.numbers, x.confirms = frame.SpeaksVersion2, frame.SpeaksVersion2
	}
}

// of returns the state of a version.
func (h *handshake) of(version uint8) *exchange { return &h.versions[version-1] }

func (h *handshake) wake(l *Link) time.Duration {
	at := machine.Never
	if h.reply != 0 || h.resend {
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
		hdr := frame.Header{
			Version: h.replyVersion, Type: h.reply, Path: h.replyPath, Initiator: h.replyTo, Responder: l.cfg.Session,
		}
		h.reply = 0
		return l.writeHandshake(buf, &hdr, h.replyEcho), hdr.Path
	}
	if h.resend && h.active {
		h.resend = false
		h.resends++
		return l.writeRequest(now, buf, frame.Version2, h.resendPath)
	}
	h.resend = false
	if !h.active || now < h.nextAt {
		return 0, 0
	}
	version, path := h.nextVersion(l), h.path
	h.resends = 0
	if !h.older {
		h.nextAt = now + h.wait
		h.wait = min(2*h.wait, helloWaitMax)
		h.path = (h.path + 1) % uint8(len(l.paths))
		h.again = true
	}
	return l.writeRequest(now, buf, version, path)
}

// writeRequest writes a hello, or the confirm of a session whose peer has not answered it.
func (l *Link) writeRequest(now time.Duration, buf []byte, version, path uint8) (int, uint8) {
	h := &l.hs
	hdr := frame.Header{Version: version, Type: frame.TypeHello, Path: path, Initiator: l.cfg.Session}
	if l.state == Up {
		l.liveness.asked(now)
		if !h.suspect {
			hdr.Type, hdr.Responder = frame.TypeConfirm, h.peer
			return l.writeHandshake(buf, &hdr, h.of(l.version).echo), hdr.Path
		}
	}
	h.of(hdr.Version).sentAt = now
	return l.writeHandshake(buf, &hdr, 0), hdr.Path
}

// nextVersion returns the version of the next hello or confirm. A peer may not know
// the newest one, so from the second try on a hello is sent in both.
func (h *handshake) nextVersion(l *Link) uint8 {
	switch {
	case l.state == Up && !h.suspect:
		return l.version
	case l.cfg.MaxVersion == frame.Version1:
		return frame.Version1
	case h.older:
		h.older = false
		return frame.Version1
	}
	h.older = h.again
	return frame.Version2
}

func (l *Link) writeHandshake(buf []byte, hdr *frame.Header, echo uint64) int {
	size := hdr.Size() + frame.HelloSize(hdr.Version) + frame.TagSize
	if len(buf) < size {
		return 0
	}
	x := l.hs.of(hdr.Version)
	number := &x.numbers
	if hdr.Type == frame.TypeConfirm {
		number = &x.confirms
	}
	hdr.Binding, hdr.Epoch, hdr.Number = l.cfg.Binding, l.cfg.Epoch, *number
	*number++
	hello := l.hello()
	hello.Echo = echo
	var b []byte
	if hdr.Version == frame.Version1 {
		b = hello.Append(hdr.Append(buf[:0]), hdr.Version)
		b = l.seal1(hdr).close(b, hdr.Size(), 0, hdr.Path, hdr.Number)
	} else {
		if l.cfg.Initiator {
			hdr.Cookie, l.hs.unanswered[hdr.Path] = l.hs.cookies[hdr.Path], hdr.Number+1
		}
		if hdr.Type == frame.TypeConfirm {
			hello.Proof = l.hs.proof
		}
		b = hello.Append(hdr.Append(buf[:0]), hdr.Version)
		b = l.auth.close2(hdr, b)
	}
	l.stats.DatagramsSent++
	l.stats.WireBytesSent += uint64(len(b))
	return len(b)
}

// hello returns this end's hello packet.
func (l *Link) hello() frame.Hello {
	return frame.Hello{
		Cipher: uint8(l.cfg.Cipher), Source: l.cfg.Local, Destination: l.cfg.Remote, Limit: uint64(l.cfg.Window),
		Highest: l.cfg.MaxVersion, Public: l.auth.public,
	}
}

// seal1 returns the seal of an own handshake datagram of version 1.
func (l *Link) seal1(h *frame.Header) *seal {
	x := l.hs.of(frame.Version1)
	if h.Type == frame.TypeConfirm {
		return &x.confirm
	}
	if x.own.aead == nil {
		role := fromResponder
		if l.cfg.Initiator {
			role = fromInitiator
		}
		x.own = l.auth.helloSeal1(role, l.cfg.Session)
	}
	return &x.own
}

// receiveHandshake processes a handshake datagram.
func (l *Link) receiveHandshake(now time.Duration, h *frame.Header, datagram []byte) error {
	switch {
	case h.Version > l.cfg.MaxVersion:
		return ErrMalformed
	case (h.Type == frame.TypeHello || h.Type == frame.TypeConfirm) == l.cfg.Initiator:
		return ErrProtocol // only the peer's role sends it
	case h.Version == frame.Version1 && l.cfg.MaxVersion >= frame.Version2 && h.Number >= frame.SpeaksVersion2 &&
		h.Type != frame.TypeUnknown: // of a peer that was restarted as a newer program
		return ErrDowngrade
	case h.Type == frame.TypeCookie:
		return l.receiveCookie(h)
	case h.Type == frame.TypeHelloAck && h.Initiator != l.cfg.Session:
		return ErrNoSession // before the cost of a key
	case h.Type == frame.TypeConfirm && h.Responder != l.cfg.Session && h.Version == frame.Version1:
		l.answerUnknown(now, h.Version, h.Path)
		return ErrNoSession
	}
	hello, err := l.openHello(h, datagram)
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
		l.hs.reply, l.hs.replyVersion, l.hs.replyPath = frame.TypeHelloAck, h.Version, h.Path
		l.hs.replyTo, l.hs.replyEcho = h.Initiator, h.Number
	}
	return nil
}

// openHello authenticates a handshake datagram and returns its hello packet.
func (l *Link) openHello(h *frame.Header, datagram []byte) (frame.Hello, error) {
	var body []byte
	var ok bool
	if h.Version == frame.Version1 {
		s := l.peerSeal1(h)
		body, ok = s.open(datagram, h.Size(), h.Path, h.Number)
	} else {
		body, ok = l.auth.open2(&l.auth.nonce, nil, h, datagram)
	}
	if !ok {
		return frame.Hello{}, ErrSeal
	}
	hello, n, err := frame.ParseHello(body, h.Version)
	if err != nil || n != len(body) {
		return frame.Hello{}, ErrMalformed
	}
	return hello, nil
}

// peerSeal1 returns the seal of a handshake datagram of the peer.
func (l *Link) peerSeal1(h *frame.Header) seal {
	switch {
	case h.Type == frame.TypeConfirm:
		return l.auth.confirmSeal1(h.Initiator, h.Responder)
	case l.cfg.Initiator:
		return l.auth.helloSeal1(fromResponder, h.Responder)
	}
	return l.auth.helloSeal1(fromInitiator, h.Initiator)
}

func (l *Link) compatible(hello *frame.Hello) bool {
	return hello.Cipher == uint8(l.cfg.Cipher) && hello.Source == l.cfg.Remote && hello.Destination == l.cfg.Local
}

// receiveCookie processes the responder's demand for a cookie. It is not
// authenticated, but an attacker who does not see this end's datagrams cannot know
// the session and the number.
func (l *Link) receiveCookie(h *frame.Header) error {
	hs := &l.hs
	older := l.state == Up && !hs.suspect && l.version == frame.Version1 // version 2 has lost
	if !hs.active || older || h.Initiator != l.cfg.Session || h.Number+1 != hs.unanswered[h.Path] || hs.resends == maxResends {
		return ErrNoSession
	}
	hs.cookies[h.Path], hs.unanswered[h.Path] = h.Cookie, 0
	hs.resend, hs.resendPath = true, h.Path
	return nil
}

// receiveHelloAck processes a hello-ack at the initiator.
func (l *Link) receiveHelloAck(now time.Duration, h *frame.Header, hello *frame.Hello) error {
	hs := &l.hs
	x := hs.of(h.Version)
	switch {
	case hello.Echo >= x.numbers:
		return ErrNoSession
	case l.state == Up:
		if h.Responder != hs.peer && hs.suspect && hello.Echo >= x.verify {
			l.down(PeerRestarted, 0)
		} else if h.Responder == hs.peer {
			hs.suspect = false // the confirm is repeated until it is answered
		}
		return nil
	case !l.compatible(hello):
		l.down(Incompatible, 0)
		return ErrProtocol
	}
	var s session
	if h.Version == frame.Version1 {
		s = l.auth.session1(l.cfg.Session, h.Responder)
		x.confirm = l.auth.confirmSeal1(l.cfg.Session, h.Responder)
	} else {
		own, ok := l.hello(), false
		s, ok = l.auth.session2(l.cfg.Session, h.Responder, [2][]byte{offer(&own), offer(hello)}, &hello.Public)
		if !ok {
			return ErrProtocol
		}
		hs.proof = s.proof
	}
	if hello.Echo == x.numbers-1 {
		l.paths[h.Path].rtt.sample(min(now-x.sentAt, l.cfg.DeadInterval), 0)
	}
	x.echo = h.Number
	hs.active, hs.nextAt, hs.wait, hs.path, hs.older = true, now, helloWait, h.Path, false
	l.keys.open(s.initiator, s.responder)
	l.up(now, h, h.Responder, hello)
	return nil
}

// receiveConfirm processes a confirm at the responder.
func (l *Link) receiveConfirm(now time.Duration, h *frame.Header, hello *frame.Hello) error {
	hs := &l.hs
	x := hs.of(h.Version)
	switch {
	case h.Responder != l.cfg.Session:
		l.answerUnknown(now, h.Version, h.Path)
		return ErrNoSession
	case !l.compatible(hello):
		return ErrProtocol
	case hello.Echo >= x.numbers:
		return ErrNoSession
	case l.state == Up && h.Initiator != hs.peer:
		if hello.Echo < x.acceptAfter {
			return ErrReplay
		}
		l.down(PeerRestarted, 0)
		return nil
	case l.state == Connecting && now < hs.provenAt:
		return ErrFlood
	case l.state == Connecting:
		s, err := l.confirmed(h, hello)
		if err != nil {
			hs.provenAt = now + provenWait
			return err
		}
		for i := range hs.versions {
			hs.versions[i].acceptAfter = hs.versions[i].numbers
		}
		l.keys.open(s.responder, s.initiator)
		l.up(now, h, h.Initiator, hello)
	}
	// Any traffic tells the initiator that the confirm has arrived.
	p := l.paths[h.Path]
	p.probes = max(p.probes, 1)
	return nil
}

// confirmed returns the secrets of the session that a confirm opens. The proof of
// version 2 shows that both ends have the same keys and have seen the same offers.
func (l *Link) confirmed(h *frame.Header, hello *frame.Hello) (session, error) {
	if h.Version == frame.Version1 {
		return l.auth.session1(h.Initiator, h.Responder), nil
	}
	own := l.hello()
	s, ok := l.auth.session2(h.Initiator, h.Responder, [2][]byte{offer(hello), offer(&own)}, &hello.Public)
	switch {
	case !ok:
		return s, ErrProtocol
	case subtle.ConstantTimeCompare(s.proof[:], hello.Proof[:]) == 0:
		return s, ErrSeal
	}
	return s, nil
}

// up opens the session with the datagram h of the peer.
func (l *Link) up(now time.Duration, h *frame.Header, peer uint64, hello *frame.Hello) {
	l.forget()
	l.state, l.version, l.spoken = Up, h.Version, h.Version
	if h.Version >= frame.Version2 {
		l.spoken = min(l.cfg.MaxVersion, hello.Highest)
		if l.cfg.Cipher != CipherNone {
			l.form = frame.Bare
		}
	}
	l.send.open(l.form)
	l.hs.peer = peer
	l.send.limit = hello.Limit
	l.liveness.heard(now)
	for _, p := range l.paths {
		p.usable = p.id == h.Path
		p.lastEliciting, p.nextProbe = now, now
	}
}

// forget drops the private key: from now on this end cannot derive the session again.
func (l *Link) forget() {
	l.auth.private = nil
	clear(l.cfg.Ephemeral[:])
}

// receiveUnknown processes the responder's report that it does not know the
// session. The datagram may be a replay, so a new hello verifies it.
func (l *Link) receiveUnknown(now time.Duration, h *frame.Header) {
	hs := &l.hs
	if l.state != Up || h.Responder == hs.peer || hs.suspect {
		return
	}
	for i := range hs.versions {
		hs.versions[i].verify = hs.versions[i].numbers
	}
	hs.suspect, hs.active, hs.again = true, true, false
	hs.nextAt, hs.wait, hs.path = now, helloWait, h.Path
}

// answerUnknown answers a datagram of an unknown session at the responder.
func (l *Link) answerUnknown(now time.Duration, version, path uint8) {
	hs := &l.hs
	if l.cfg.Initiator || hs.reply != 0 || now < hs.unknownAt || version > l.cfg.MaxVersion {
		return
	}
	hs.reply, hs.replyVersion, hs.replyPath, hs.replyTo, hs.replyEcho = frame.TypeUnknown, version, path, 0, 0
	hs.unknownAt = now + unknownWait
}

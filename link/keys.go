package link

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"

	"github.com/dxpu-project/dxpu/frame"
)

// seal protects the datagrams of one direction and key phase, or of one handshake
// role.
type seal struct {
	aead  cipher.AEAD // nil: in clear, with a check
	iv    [12]byte
	seed  uint32 // of the check of clear datagrams
	nonce [12]byte
}

// sealed reports whether datagrams are encrypted.
func (s *seal) sealed() bool { return s.aead != nil }

// overhead returns the number of bytes that close appends.
func (s *seal) overhead() int {
	if s.aead == nil {
		return frame.CheckSize
	}
	return frame.TagSize
}

func (s *seal) setNonce(path uint8, number uint64) []byte {
	s.nonce = s.iv
	s.nonce[0] ^= path
	n := binary.BigEndian.Uint64(s.iv[4:]) ^ number
	binary.BigEndian.PutUint64(s.nonce[4:], n)
	return s.nonce[:]
}

// close seals datagram in place and returns it with its trailer. Its first header
// bytes are the header. Its capacity must suffice for the trailer. Without a cipher, lent
// bytes of the datagram may lie elsewhere.
func (s *seal) close(datagram []byte, header, lent int, path uint8, number uint64) []byte {
	h, body := datagram[:header], datagram[header:]
	if s.aead == nil {
		return binary.BigEndian.AppendUint32(datagram, frame.Check(s.seed, h, len(body)+lent))
	}
	sealed := s.aead.Seal(body[:0], s.setNonce(path, number), body, h)
	return datagram[:header+len(sealed)]
}

// open authenticates a datagram and returns its body, decrypted in place.
func (s *seal) open(datagram []byte, header int, path uint8, number uint64) ([]byte, bool) {
	end := len(datagram) - s.overhead()
	if end < header {
		return nil, false
	}
	h, body := datagram[:header], datagram[header:]
	if s.aead == nil {
		body = datagram[header:end:end]
		return body, binary.BigEndian.Uint32(datagram[end:]) == frame.Check(s.seed, h, len(body))
	}
	body, err := s.aead.Open(body[:0], s.setNonce(path, number), body, h)
	return body, err == nil
}

// phase holds the key of one direction and key phase, and the secret from which
// the next one is derived.
type phase struct {
	seal
	secret []byte
}

// direction is one direction of traffic. Key phases resemble RFC 9001 section 6,
// but the directions change independently and the phase is a counter.
type direction struct {
	number uint8 // of cur, modulo 256
	cur    *phase
	next   *phase // receiving only: ready for use
	prev   *phase // receiving only: for reordered datagrams

	// Receiving only: the number of the first datagram of cur by path, plus 1, and whether this
	// end has acknowledged one of them.
	first [frame.MaxPaths]uint64
	acked bool
}

// keys holds the keys of traffic.
type keys struct {
	cipher Cipher

	ready   bool
	send    direction
	receive direction
	sent    uint64                 // datagrams sealed in this phase
	first   [frame.MaxPaths]uint64 // number of its first datagram, by path
	unacked bool                   // the peer has not acknowledged any of them
}

// Labels of the keys of traffic. PROTOCOL.md, section "Keys".
const (
	labelKey   = "key"
	labelIV    = "iv"
	labelCheck = "check"
	labelNext  = "next"
)

// expand is HKDF-Expand. Its only error is a length above 255 hashes.
func expand(secret []byte, info string, size int) []byte {
	out, err := hkdf.Expand(sha256.New, secret, info, size)
	if err != nil {
		panic("link: HKDF: " + err.Error())
	}
	return out
}

func newSeal(secret []byte, c Cipher) seal {
	var s seal
	if c == CipherNone {
		s.seed = binary.BigEndian.Uint32(expand(secret, labelCheck, 4))
		return s
	}
	s.aead = newAEAD(expand(secret, labelKey, 32))
	copy(s.iv[:], expand(secret, labelIV, len(s.iv)))
	return s
}

func (k *keys) newPhase(secret []byte) *phase {
	return &phase{seal: newSeal(secret, k.cipher), secret: secret}
}

func (k *keys) after(p *phase) *phase { return k.newPhase(expand(p.secret, labelNext, sha256.Size)) }

// open starts the first phase of both directions from the secrets of a session.
func (k *keys) open(send, receive []byte) {
	k.send = direction{cur: k.newPhase(send)}
	k.receive = direction{cur: k.newPhase(receive)}
	k.receive.next = k.after(k.receive.cur)
	k.ready, k.sent, k.unacked = true, 0, true
	k.first = [frame.MaxPaths]uint64{}
}

// forget drops the keys at the end of the session.
func (k *keys) forget() {
	for _, p := range []*phase{k.send.cur, k.receive.cur, k.receive.next} {
		if p != nil {
			clear(p.secret)
		}
	}
	*k = keys{cipher: k.cipher}
}

// advanceSend starts the next phase. The peer has the keys of its current and the
// next phase only, so the current one must have been acknowledged.
func (k *keys) advanceSend(paths []*path) bool {
	if k.unacked {
		return false
	}
	old := k.send.cur
	k.send.cur = k.after(old)
	clear(old.secret) // a later reader of this memory cannot derive the old key
	k.send.number++
	k.sent, k.unacked = 0, true
	for i, p := range paths {
		k.first[i] = p.sent.next
	}
	return true
}

// acked records that the peer has a datagram, and so perhaps the current phase.
func (k *keys) acked(path uint8, number uint64) {
	if k.unacked && number >= k.first[path] {
		k.unacked = false
	}
}

// acknowledges records an acknowledgement that this end sends, of datagrams of a path up to
// largest.
func (k *keys) acknowledges(path uint8, largest uint64) {
	d := &k.receive
	if first := d.first[path]; first > 0 && largest >= first-1 {
		d.acked = true
	}
}

// openTraffic opens a datagram with the key of its phase. It follows the peer to
// the next phase, of which the peer has the key once this end has acknowledged a datagram of the
// present one: a new key costs as much as sixty small datagrams.
func (k *keys) openTraffic(datagram []byte, h *frame.Header) ([]byte, bool) {
	d := &k.receive
	switch h.KeyPhase {
	case d.number:
		body, ok := d.cur.open(datagram, frame.HeaderSize, h.Path, h.Number)
		if ok && d.first[h.Path] == 0 {
			d.first[h.Path] = h.Number + 1
		}
		return body, ok
	case d.number - 1:
		if d.prev == nil {
			return nil, false
		}
		return d.prev.open(datagram, frame.HeaderSize, h.Path, h.Number)
	case d.number + 1:
		if !d.acked {
			return nil, false
		}
		body, ok := d.next.open(datagram, frame.HeaderSize, h.Path, h.Number)
		if ok {
			clear(d.cur.secret)
			d.prev, d.cur = d.cur, d.next
			d.next = k.after(d.cur)
			d.number++
			d.first, d.acked = [frame.MaxPaths]uint64{}, false
			d.first[h.Path] = h.Number + 1
		}
		return body, ok
	}
	return nil, false
}

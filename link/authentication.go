package link

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/dxpu-project/dxpu/frame"
)

// authentication holds the keys of the handshake. Both ends derive them from
// Config.Secret, so a datagram that they seal comes from the peer. See PROTOCOL.md,
// section "Keys".
type authentication struct {
	info []byte // binding and epoch
	prk  [frame.Version2][]byte

	// Keys of version 2, by the role of the sender. The nonce holds the session of
	// the sender, so one key serves all runs.
	hello, ack, confirm cipher.AEAD
	nonce               [sessionNonce]byte // scratch

	private *ecdh.PrivateKey // of version 2, until the session opens or fails
	public  [frame.KeySize]byte
}

// sessionNonce is the size of a nonce: a session ID and 32 bits of the number.
const sessionNonce = 12

const (
	salt1 = "dxpu link v1"
	salt2 = "dxpu link v2"

	labelHello   = "hello"
	labelConfirm = "confirm"
	labelTraffic = "traffic"

	fromInitiator = "i"
	fromResponder = "r"
)

func newAuthentication(cfg *Config) (*authentication, error) {
	a := &authentication{info: binary.BigEndian.AppendUint32(nil, cfg.Binding)}
	a.info = binary.BigEndian.AppendUint32(a.info, cfg.Epoch)
	for i, salt := range []string{salt1, salt2} {
		prk, err := hkdf.Extract(sha256.New, cfg.Secret[:], []byte(salt))
		if err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
		a.prk[i] = prk
	}
	if cfg.MaxVersion == frame.Version1 {
		return a, nil
	}
	a.hello = newAEAD(a.derive(frame.Version2, labelHello, fromInitiator))
	a.ack = newAEAD(a.derive(frame.Version2, labelHello, fromResponder))
	a.confirm = newAEAD(a.derive(frame.Version2, labelConfirm, fromInitiator))
	return a, nil
}

// generate makes the public key of this run.
func (a *authentication) generate(cfg *Config) (err error) {
	if cfg.MaxVersion == frame.Version1 {
		return nil
	}
	if a.private, err = ecdh.X25519().NewPrivateKey(cfg.Ephemeral[:]); err != nil {
		return fmt.Errorf("ephemeral key: %w", err)
	}
	copy(a.public[:], a.private.PublicKey().Bytes())
	return nil
}

// newAEAD returns AES-256-GCM with a key of 32 bytes.
func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCM(block); err == nil {
			return aead
		}
	}
	panic("link: AES-256-GCM: " + err.Error()) // the key size is right
}

// derive returns a secret for label, role, binding, epoch and sessions.
func (a *authentication) derive(version uint8, label, role string, sessions ...uint64) []byte {
	info := append([]byte(label+" "+role+" "), a.info...)
	for _, s := range sessions {
		info = binary.BigEndian.AppendUint64(info, s)
	}
	return expand(a.prk[version-1], string(info), sha256.Size)
}

// helloSeal1 returns the seal of handshake datagrams of version 1 before both
// sessions are known. Its key depends on the session of the sender, so no other run
// uses it.
func (a *authentication) helloSeal1(role string, session uint64) seal {
	return newSeal(a.derive(frame.Version1, labelHello, role, session), CipherAES256GCM)
}

// confirmSeal1 returns the seal of confirms of version 1. It depends on both
// sessions.
func (a *authentication) confirmSeal1(initiator, responder uint64) seal {
	return newSeal(a.derive(frame.Version1, labelConfirm, fromInitiator, initiator, responder), CipherAES256GCM)
}

// aeadFor returns the key of version 2 for a handshake datagram and the session of
// its sender.
func (a *authentication) aeadFor(h *frame.Header) (aead cipher.AEAD, session uint64) {
	switch h.Type {
	case frame.TypeHello:
		return a.hello, h.Initiator
	case frame.TypeConfirm:
		return a.confirm, h.Initiator
	}
	return a.ack, h.Responder
}

func setSessionNonce(nonce *[sessionNonce]byte, session, number uint64) []byte {
	binary.BigEndian.PutUint64(nonce[:], session)
	binary.BigEndian.PutUint32(nonce[8:], uint32(number))
	return nonce[:]
}

// close2 seals a handshake datagram of version 2 in place, like seal.close.
func (a *authentication) close2(h *frame.Header, datagram []byte) []byte {
	aead, session := a.aeadFor(h)
	header, body := datagram[:h.Size()], datagram[h.Size():]
	sealed := aead.Seal(body[:0], setSessionNonce(&a.nonce, session, h.Number), body, header)
	return datagram[:len(header)+len(sealed)]
}

// open2 authenticates a handshake datagram of version 2 and decrypts its body to
// dst, or in place if dst is nil. nonce is scratch space.
func (a *authentication) open2(nonce *[sessionNonce]byte, dst []byte, h *frame.Header, datagram []byte) ([]byte, bool) {
	if h.Number > math.MaxUint32 { // the nonce does not cover it, and no end sends as many
		return nil, false
	}
	header, body := datagram[:h.Size()], datagram[h.Size():]
	if dst == nil {
		dst = body[:0]
	}
	aead, session := a.aeadFor(h)
	body, err := aead.Open(dst, setSessionNonce(nonce, session, h.Number), body, header)
	return body, err == nil
}

// offer returns the part of a hello packet that all hello packets of its sender
// share.
func offer(h *frame.Hello) []byte {
	return h.Append(make([]byte, 0, frame.HelloSize(frame.Version2)), frame.Version2)[:frame.OfferSize]
}

// session holds the secrets of one session.
type session struct {
	initiator, responder []byte // of traffic from that end
	proof                [frame.ProofSize]byte
}

// session1 derives the secrets of a session of version 1.
func (a *authentication) session1(initiator, responder uint64) session {
	return session{
		initiator: a.derive(frame.Version1, labelTraffic, fromInitiator, initiator, responder),
		responder: a.derive(frame.Version1, labelTraffic, fromResponder, initiator, responder),
	}
}

// session2 derives the secrets of a session of version 2 from the exchange of
// ephemeral keys, Config.Secret, and all that both ends said. ok is false if the
// peer's public key is not valid.
func (a *authentication) session2(initiator, responder uint64, offers [2][]byte, peer *[frame.KeySize]byte) (s session, ok bool) {
	public, err := ecdh.X25519().NewPublicKey(peer[:])
	if err != nil || a.private == nil {
		return session{}, false
	}
	shared, err := a.private.ECDH(public)
	if err != nil { // a point of low order
		return session{}, false
	}
	chain, err := hkdf.Extract(sha256.New, shared, a.prk[frame.Version2-1])
	if err != nil {
		panic("link: HKDF: " + err.Error())
	}
	clear(shared)
	hash := transcript(a.info, initiator, responder, offers)
	s.initiator = expand(chain, labelTraffic+" "+fromInitiator+" "+hash, sha256.Size)
	s.responder = expand(chain, labelTraffic+" "+fromResponder+" "+hash, sha256.Size)
	copy(s.proof[:], expand(chain, labelConfirm+" "+fromInitiator+" "+hash, frame.ProofSize))
	clear(chain)
	return s, true
}

// transcript returns the hash of all that both ends said in a handshake.
func transcript(info []byte, initiator, responder uint64, offers [2][]byte) string {
	h := sha256.New()
	h.Write([]byte(salt2))
	h.Write(info)
	var ids [16]byte
	binary.BigEndian.PutUint64(ids[:], initiator)
	binary.BigEndian.PutUint64(ids[8:], responder)
	h.Write(ids[:])
	h.Write(offers[0])
	h.Write(offers[1])
	return string(h.Sum(nil))
}

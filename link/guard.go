package link

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/dxpu-project/dxpu/frame"
)

// Guard decides which handshake datagrams reach a link, one Guard for each path. A
// driver asks it before it takes the lock of the link, so forged handshakes of any
// rate cost only the reader of the socket, and little of it: no key is derived and
// nothing is allocated. Its methods are called from one goroutine at a time, which
// need not be that of the link.
//
// Datagrams of version 2 are authenticated first. Those that were recorded and
// sent again pass that; at more than a peer's rate, the guard of a responder demands
// a cookie (as IKEv2, DTLS and WireGuard do), which only a sender receives that has
// the address it claims. Datagrams of version 1 cannot be authenticated without a
// new key each; the guard passes a few of them. Each kind has a rate of its own.
type Guard struct {
	initiator  bool
	binding    uint32
	epoch      uint32
	path       uint8
	session    uint64
	maxVersion uint8

	auth  *authentication // its keys, which do not change
	nonce [sessionNonce]byte
	plain [frame.ProofSize + frame.OfferSize + 8]byte // an opened hello packet, not used

	seed    []byte // of the secrets of cookies
	secrets [2]cookieSecret
	scratch [2][aes.BlockSize]byte

	older, newer, proven, unknown, cookies rate
	uses                                   cookieUses

	loaded time.Duration // a cookie is demanded until then
}

const (
	// A peer that connects sends at most two handshake datagrams in admitEvery. A
	// link processes admitMost of each kind: with version 1, where each takes a new
	// key, 1 % of a processor.
	admitMost  = 32
	admitEvery = 10 * time.Millisecond
	// loadedFor is how long a guard demands cookies after the last excess. It is
	// that of WireGuard.
	loadedFor = time.Second
	// cookieLife is the time after which the secret of cookies changes. A cookie is
	// valid for one to two of it.
	cookieLife = 2 * time.Minute

	labelCookie = "cookie"
)

// rate counts datagrams in intervals of admitEvery.
type rate struct {
	from  time.Duration
	count int
}

// take counts a datagram and reports whether it is within admitMost.
func (r *rate) take(now time.Duration) bool {
	if now >= r.from+admitEvery {
		r.from, r.count = now, 0
	}
	r.count++
	return r.count <= admitMost
}

// cookieUses remembers which datagrams with a valid cookie have passed, so that those
// which an attacker recorded do not take the place of the peer's. The number of an
// end's handshake datagrams only rises.
type cookieUses [8]cookieUse

// cookieUse holds the least numbers that still pass, of one session of the initiator.
type cookieUse struct {
	session        uint64
	hello, confirm uint64
}

// take notes a datagram and reports whether it is new. The sessions stand in the order of
// their last use; when there are too many, the guard forgets the last one. An attacker has
// recorded as many sessions only if the peer was restarted as often within two cookieLife.
func (u *cookieUses) take(h *frame.Header) bool {
	i := 0
	for i < len(u)-1 && u[i].session != h.Initiator {
		i++
	}
	use := u[i]
	if use.session != h.Initiator {
		use = cookieUse{session: h.Initiator}
	}
	next := &use.hello
	if h.Type == frame.TypeConfirm {
		next = &use.confirm
	}
	if h.Number < *next {
		return false
	}
	*next = h.Number + 1
	copy(u[1:i+1], u[:i])
	u[0] = use
	return true
}

// cookieSecret makes the cookies of one cookieLife.
type cookieSecret struct {
	number int64 // of the cookieLife, plus 1; 0: none
	block  cipher.Block
}

// NewGuards returns a guard for each path of a link with the same configuration.
func NewGuards(cfg Config) ([]*Guard, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	auth, err := newAuthentication(&cfg)
	if err != nil {
		return nil, err
	}
	guards := make([]*Guard, len(cfg.Paths))
	for i := range guards {
		guards[i] = &Guard{
			initiator: cfg.Initiator, binding: cfg.Binding, epoch: cfg.Epoch, path: uint8(i), session: cfg.Session,
			maxVersion: cfg.MaxVersion, auth: auth, seed: expand(cfg.Ephemeral[:], labelCookie+" "+string(rune('0'+i)), 32),
		}
	}
	return guards, nil
}

// Check decides about a handshake datagram that arrived from an address. The link
// is to receive it if the error is nil. Otherwise it is dropped for that reason; if
// n is not 0, reply[:n] goes back to the sender. A reply is shorter than the
// datagram that it answers, at most frame.HeaderSize + frame.SessionsSize +
// frame.CookieSize bytes.
func (g *Guard) Check(now time.Duration, from netip.AddrPort, datagram, reply []byte) (n int, err error) {
	h, _, err := frame.ParseHeader(datagram)
	switch {
	case err != nil || h.Version > g.maxVersion:
		return 0, ErrMalformed
	case h.Binding != g.binding:
		return 0, ErrNotMine
	case h.Epoch != g.epoch:
		return 0, ErrStaleEpoch
	case h.Path != g.path:
		return 0, ErrPath
	case (h.Type == frame.TypeHello || h.Type == frame.TypeConfirm) == g.initiator:
		return 0, ErrProtocol
	case (h.Type == frame.TypeHelloAck || h.Type == frame.TypeCookie) && h.Initiator != g.session:
		return 0, ErrNoSession // only an end that saw the hello can name its session
	case h.Type == frame.TypeCookie: // it has no seal
		return 0, g.limit(now, &g.cookies)
	case h.Version == frame.Version1:
		return 0, g.limit(now, &g.older)
	}
	if len(datagram) != h.Size()+frame.HelloSize(h.Version)+frame.TagSize {
		return 0, ErrMalformed
	}
	if _, ok := g.auth.open2(&g.nonce, g.plain[:0], &h, datagram); !ok {
		return 0, ErrSeal
	}
	switch {
	case h.Type == frame.TypeUnknown:
		return 0, g.limit(now, &g.unknown)
	case g.initiator:
		return 0, g.limit(now, &g.newer)
	case h.Cookie != [frame.CookieSize]byte{} && g.valid(now, from, &h):
		if !g.uses.take(&h) {
			return 0, ErrReplay
		}
		return 0, g.limit(now, &g.proven)
	}
	if !g.newer.take(now) {
		g.loaded = now + loadedFor
	}
	if now >= g.loaded {
		return 0, nil
	}
	return g.demand(now, from, &h, reply), ErrCookie
}

func (g *Guard) limit(now time.Duration, r *rate) error {
	if r.take(now) {
		return nil
	}
	return ErrFlood
}

// demand writes a datagram that gives the sender of h a cookie.
func (g *Guard) demand(now time.Duration, from netip.AddrPort, h *frame.Header, reply []byte) int {
	answer := frame.Header{
		Version: h.Version, Type: frame.TypeCookie, Path: h.Path, Binding: h.Binding, Epoch: h.Epoch,
		Number: h.Number, Initiator: h.Initiator,
	}
	if len(reply) < answer.Size() {
		return 0
	}
	answer.Cookie = g.cookie(g.secret(now, 0), from, h.Initiator)
	return len(answer.Append(reply[:0]))
}

// valid reports whether a datagram has the cookie of its sender, from the current
// secret or the one before.
func (g *Guard) valid(now time.Duration, from netip.AddrPort, h *frame.Header) bool {
	for back := range int64(2) {
		want := g.cookie(g.secret(now, back), from, h.Initiator)
		if subtle.ConstantTimeCompare(want[:], h.Cookie[:]) == 1 {
			return true
		}
	}
	return false
}

// secret returns the cipher of the current cookieLife, or of the one before.
func (g *Guard) secret(now time.Duration, back int64) cipher.Block {
	number := int64(now/cookieLife) + 1 - back
	s := &g.secrets[number&1]
	if s.number != number || s.block == nil {
		info := binary.BigEndian.AppendUint64([]byte(labelCookie+" "), uint64(number))
		block, err := aes.NewCipher(expand(g.seed, string(info), 32))
		if err != nil {
			panic("link: AES-256: " + err.Error()) // the key size is right
		}
		*s = cookieSecret{number: number, block: block}
	}
	return s.block
}

// cookie returns the CBC-MAC of an address and a session: two blocks, always.
func (g *Guard) cookie(block cipher.Block, from netip.AddrPort, initiator uint64) [frame.CookieSize]byte {
	a, b := &g.scratch[0], &g.scratch[1]
	*a, *b = from.Addr().As16(), [aes.BlockSize]byte{}
	block.Encrypt(a[:], a[:])
	binary.BigEndian.PutUint64(b[:], initiator)
	binary.BigEndian.PutUint16(b[8:], from.Port())
	subtle.XORBytes(b[:], b[:], a[:])
	block.Encrypt(b[:], b[:])
	return *b
}

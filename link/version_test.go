package link_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// The ends speak the highest version that both know, in both roles.
func TestVersions(t *testing.T) {
	for _, cipher := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		for host := uint8(frame.Version1); host <= frame.Newest; host++ {
			for box := uint8(frame.Version1); box <= frame.Newest; box++ {
				t.Run(fmt.Sprintf("%v, host %d, box %d", cipher, host, box), func(t *testing.T) {
					ends := linktest.Ends(cipher, ethernet, ethernet)
					ends[linktest.Host].MaxVersion, ends[linktest.Box].MaxVersion = host, box
					n := network(t, linktest.Config{Ends: ends}, "delay=20us,loss=5%,reorder=5%,corrupt=2%", ethernet, ethernet)
					transfer(t, n, 300, 20*time.Second, nil)
					for side, l := range n.Link {
						if l.Version() != min(host, box) {
							t.Errorf("side %d speaks version %d", side, l.Version())
						}
					}
					// The box restarts as another version; the host notices.
					n.Link[linktest.Box].Close(n.Now, 1)
					n.RunUntil(n.Now+5*time.Second, func() bool { return n.Link[linktest.Host].State() == link.Down })
					if err := n.Restart(linktest.Host, 0x3333); err != nil {
						t.Fatal(err)
					}
					if err := n.Restart(linktest.Box, 0x4444); err != nil {
						t.Fatal(err)
					}
					transfer(t, n, 50, n.Now+20*time.Second, nil)
				})
			}
		}
	}
}

// Sealed packets of version 2 have no CRCs.
func TestPacketForms(t *testing.T) {
	const (
		header = 28 + 16 // and a TLP header of four double words
		data   = 16 + 4096
		crcs   = 3 * frame.CRCSize // of the TLP, the header packet and the data packet
	)
	for _, tc := range []struct {
		cipher  link.Cipher
		version uint8
		size    int
	}{
		{link.CipherAES256GCM, frame.Version1, frame.HeaderSize + header + data + crcs + frame.TagSize},
		{link.CipherAES256GCM, frame.Version2, frame.HeaderSize + header + data + frame.TagSize},
		{link.CipherNone, frame.Version1, frame.HeaderSize + header + data + crcs + frame.CheckSize},
		{link.CipherNone, frame.Version2, frame.HeaderSize + header + data + crcs + frame.CheckSize},
	} {
		t.Run(fmt.Sprintf("%v, version %d", tc.cipher, tc.version), func(t *testing.T) {
			ends := linktest.Ends(tc.cipher, jumbo)
			ends[0].MaxVersion = tc.version
			n := up(t, linktest.Config{Ends: ends}, "delay=20us", jumbo)
			n.Run(n.Now + 10*time.Millisecond) // nothing is left to acknowledge
			largest := 0
			n.OnDatagram = func(_ linktest.Side, _ uint8, d []byte) { largest = max(largest, len(d)) }
			if err := n.Send(linktest.Host, memoryWrite(4096)); err != nil {
				t.Fatal(err)
			}
			n.Run(n.Now + 10*time.Millisecond)
			if largest != tc.size || len(n.Arrived[linktest.Box]) != 1 {
				t.Errorf("a datagram of %d bytes, want %d; %d TLPs arrived", largest, tc.size, len(n.Arrived[linktest.Box]))
			}
		})
	}
}

// exchange passes the datagrams of two links for which pass returns true, and
// returns the errors of both.
func exchange(t *testing.T, links [2]*link.Link, until time.Duration, pass func(from linktest.Side, d []byte) []byte) (errs []error) {
	t.Helper()
	buf := make([]byte, frame.MaxDatagram)
	for now := time.Duration(0); now < until; now += time.Millisecond {
		for quiet := 0; quiet < 2; {
			for side, l := range links {
				n, path := l.Transmit(now, buf)
				if n == 0 {
					quiet++
					continue
				}
				quiet = 0
				if d := pass(linktest.Side(side), buf[:n]); d != nil {
					errs = append(errs, links[1-side].Receive(now, path, d, func(*tlp.Packet) {}))
				}
			}
		}
	}
	return errs
}

func newLinks(t *testing.T, ends [2]link.Config) (links [2]*link.Link) {
	t.Helper()
	for i, cfg := range ends {
		var err error
		if links[i], err = link.New(0, cfg); err != nil {
			t.Fatal(err)
		}
	}
	return links
}

// Two ends that speak version 2 do not speak version 1, even if an attacker lets
// only that one through.
func TestDowngradeIsNoticed(t *testing.T) {
	for _, direction := range []linktest.Side{linktest.Host, linktest.Box} {
		t.Run(fmt.Sprintf("from side %d", direction), func(t *testing.T) {
			links := newLinks(t, linktest.Ends(link.CipherAES256GCM, ethernet))
			errs := exchange(t, links, time.Second, func(from linktest.Side, d []byte) []byte {
				if from == direction && d[0]>>4 != frame.Version1 {
					return nil
				}
				return d
			})
			if links[0].State() != link.Connecting || links[1].State() != link.Connecting {
				t.Errorf("states %v and %v", links[0].State(), links[1].State())
			}
			if !slices.Contains(errs, link.ErrDowngrade) || links[1].Stats().Drops.Downgrade == 0 {
				t.Errorf("no downgrade was noticed: %v", errs)
			}
		})
	}
}

// The box of a session of version 1 is restarted as a program that speaks version 2.
// The host heeds its report, and asks in version 2.
func TestRestartAsANewerVersionIsFound(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	newer := ends[linktest.Box]
	newer.Session = 0x4444
	ends[linktest.Box].MaxVersion = frame.Version1
	links := newLinks(t, ends)
	exchange(t, links, 50*time.Millisecond, func(_ linktest.Side, d []byte) []byte { return d })
	host := links[linktest.Host]
	if host.State() != link.Up || host.Version() != frame.Version1 {
		t.Fatalf("the host is %v and speaks version %d", host.State(), host.Version())
	}
	now := 50 * time.Millisecond
	if err := host.Receive(now, 0, unknownSession(t, newer, frame.Version1), nil); err != nil {
		t.Errorf("the report: %v", err)
	}
	buf := make([]byte, frame.MaxDatagram)
	n, _ := host.Transmit(now, buf)
	if h, _, err := frame.ParseHeader(buf[:n]); err != nil || h.Type != frame.TypeHello || h.Version != frame.Version2 {
		t.Errorf("after the report the host sends %v of version %d: %v", h.Type, h.Version, err)
	}
}

// observer derives keys as PROTOCOL.md describes. It knows the manager's secret and
// what was sent.
type observer struct {
	t      *testing.T
	prk    [3][]byte // by version
	info   []byte
	offers [2][]byte // hello packets up to the echo
	ids    []byte    // both sessions
}

func newObserver(t *testing.T, cfg link.Config) *observer {
	o := &observer{t: t, info: binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, cfg.Binding), cfg.Epoch)}
	for version := 1; version <= 2; version++ {
		var err error
		if o.prk[version], err = hkdf.Extract(sha256.New, cfg.Secret[:], fmt.Appendf(nil, "dxpu link v%d", version)); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (o *observer) expand(secret []byte, info string, size int) []byte {
	b, err := hkdf.Expand(sha256.New, secret, info, size)
	if err != nil {
		o.t.Fatal(err)
	}
	return b
}

func (o *observer) aead(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		o.t.Fatal(err)
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		o.t.Fatal(err)
	}
	return a
}

// handshake returns cipher and nonce of a handshake datagram of version 2.
func (o *observer) handshake(h *frame.Header) (cipher.AEAD, []byte) {
	label, session := "hello r ", h.Responder
	switch h.Type {
	case frame.TypeHello:
		label, session = "hello i ", h.Initiator
	case frame.TypeConfirm:
		label, session = "confirm i ", h.Initiator
	}
	nonce := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, session), uint32(h.Number))
	return o.aead(o.expand(o.prk[2], label+string(o.info), 32)), nonce
}

// hello opens a handshake datagram of version 2.
func (o *observer) hello(d []byte) (frame.Header, []byte) {
	h, n, err := frame.ParseHeader(d)
	if err != nil {
		o.t.Fatal(err)
	}
	aead, nonce := o.handshake(&h)
	body, err := aead.Open(nil, nonce, d[n:], d[:n])
	if err != nil {
		o.t.Fatalf("%v: %v", h.Type, err)
	}
	return h, body
}

// note takes the session and the offers from a recorded session of version 2.
func (o *observer) note(sent [][]byte) (keys [2][]byte) {
	for _, d := range sent {
		h, _, _ := frame.ParseHeader(d)
		if h.Version != frame.Version2 || h.Type == frame.TypeTraffic || h.Type == frame.TypeCookie {
			continue
		}
		_, body := o.hello(d)
		from := 0
		if h.Type == frame.TypeHelloAck {
			from = 1
			o.ids = slices.Clone(d[20:36])
		}
		o.offers[from], keys[from] = body[:56], body[24:56]
	}
	return keys
}

// chain returns the secret of a session of version 2 from an exchanged key.
func (o *observer) chain(shared []byte) []byte {
	b, err := hkdf.Extract(sha256.New, shared, o.prk[2])
	if err != nil {
		o.t.Fatal(err)
	}
	return b
}

func (o *observer) transcript() string {
	hash := sha256.Sum256(slices.Concat([]byte("dxpu link v2"), o.info, o.ids, o.offers[0], o.offers[1]))
	return string(hash[:])
}

// opens reports whether a traffic secret opens a datagram.
func (o *observer) opens(secret, d []byte) bool {
	h, n, _ := frame.ParseHeader(d)
	for range h.KeyPhase {
		secret = o.expand(secret, "next", 32)
	}
	nonce := o.expand(secret, "iv", 12)
	nonce[0] ^= h.Path
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^h.Number)
	_, err := o.aead(o.expand(secret, "key", 32)).Open(nil, nonce, d[n:], d[:n])
	return err == nil
}

// An attacker who recorded a session and learns the manager's secret later reads
// traffic of version 1, but not of version 2: that takes an ephemeral key, which no
// end has any more.
func TestForwardSecrecy(t *testing.T) {
	for version := uint8(frame.Version1); version <= frame.Version2; version++ {
		t.Run(fmt.Sprintf("version %d", version), func(t *testing.T) {
			ends := linktest.Ends(link.CipherAES256GCM, ethernet)
			ends[0].MaxVersion, ends[1].MaxVersion = version, version
			ends[0].RekeyDatagrams, ends[1].RekeyDatagrams = 20, 20
			n := network(t, linktest.Config{Ends: ends}, "delay=20us", ethernet)
			var sent, traffic [][]byte
			n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
				sent = append(sent, slices.Clone(d))
				if h, _, _ := frame.ParseHeader(d); from == linktest.Host && h.Type == frame.TypeTraffic {
					traffic = append(traffic, slices.Clone(d))
				}
			}
			transfer(t, n, 1000, 10*time.Second, nil)
			if h, _, _ := frame.ParseHeader(traffic[len(traffic)-1]); h.KeyPhase == 0 {
				t.Fatalf("the recording ends in key phase %d", h.KeyPhase)
			}
			o := newObserver(t, ends[0])
			keys := o.note(sent)
			sessions := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, ends[0].Session), ends[1].Session)
			hash := o.transcript()
			host, err := ecdh.X25519().NewPrivateKey(ends[0].Ephemeral[:])
			if err != nil {
				t.Fatal(err)
			}
			shared := make([]byte, 32)
			if version == frame.Version2 {
				box, err := ecdh.X25519().NewPublicKey(keys[1])
				if err != nil {
					t.Fatal(err)
				}
				if shared, err = host.ECDH(box); err != nil {
					t.Fatal(err)
				}
			}
			for _, tc := range []struct {
				name   string
				secret []byte
				opens  bool
			}{
				{"version 1, from the secret", o.expand(o.prk[1], "traffic i "+string(o.info)+string(sessions), 32), version == frame.Version1},
				{"the secret", o.expand(o.prk[2], "traffic i "+hash, 32), false},
				{"the secret, sessions", o.expand(o.prk[2], "traffic i "+string(o.info)+string(sessions), 32), false},
				{"the secret, no exchange", o.expand(o.chain(make([]byte, 32)), "traffic i "+hash, 32), false},
				{"the secret, public key of the host", o.expand(o.chain(keys[0]), "traffic i "+hash, 32), false},
				{"the secret, public key of the box", o.expand(o.chain(keys[1]), "traffic i "+hash, 32), false},
				{"an ephemeral key", o.expand(o.chain(shared), "traffic i "+hash, 32), version == frame.Version2},
			} {
				for i, d := range traffic {
					if got := o.opens(tc.secret, d); got != tc.opens {
						t.Fatalf("%s: datagram %d: opened %v, want %v", tc.name, i, got, tc.opens)
					}
				}
			}
		})
	}
}

// An attacker who has the manager's secret during the handshake and changes an
// offer is noticed: the proof of the confirm covers what both ends said.
func TestTheTranscriptBindsTheOffers(t *testing.T) {
	for _, tc := range []struct {
		name string
		at   int // byte of the hello packet
		from frame.Type
	}{
		{"versions of the hello", 2, frame.TypeConfirm},
		{"versions of the hello-ack", 2, frame.TypeHelloAck},
		{"credit of the hello-ack", 23, frame.TypeHelloAck},
		{"public key of the hello-ack", 30, frame.TypeHelloAck},
		{"proof", 70, frame.TypeConfirm},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ends := linktest.Ends(link.CipherAES256GCM, ethernet)
			links := newLinks(t, ends)
			o := newObserver(t, ends[0])
			errs := exchange(t, links, 100*time.Millisecond, func(_ linktest.Side, d []byte) []byte {
				h, n, err := frame.ParseHeader(d)
				if err != nil || h.Type != tc.from || h.Version != frame.Version2 {
					return d
				}
				_, body := o.hello(d)
				body[tc.at] ^= 0x40
				aead, nonce := o.handshake(&h)
				return aead.Seal(bytes.Clone(d[:n]), nonce, body, d[:n])
			})
			if links[1].State() != link.Connecting || !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, link.ErrSeal) }) {
				t.Errorf("the box is %v: %v", links[1].State(), errs)
			}
		})
	}
}

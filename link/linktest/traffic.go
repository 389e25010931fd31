package linktest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// Ends returns the configurations of two matching ends with paths of the given
// MTUs.
func Ends(cipher link.Cipher, mtus ...int) [2]link.Config {
	host := link.Config{
		Binding: 7, Epoch: 3, Cipher: cipher, Secret: [32]byte{1, 2, 3}, Session: 0x1111, Ephemeral: [32]byte{1}, Initiator: true,
		Local: frame.Endpoint{Node: 10, Slot: 1}, Remote: frame.Endpoint{Node: 20, Slot: 2},
	}
	for _, mtu := range mtus {
		host.Paths = append(host.Paths, link.PathConfig{MTU: mtu})
	}
	box := host
	box.Initiator, box.Session, box.Ephemeral = false, 0x2222, [32]byte{2}
	box.Local, box.Remote = host.Remote, host.Local
	return [2]link.Config{host, box}
}

// Stream generates distinguishable TLPs and checks their arrival.
type Stream struct {
	// Sizes are the possible payload sizes, multiples of 4; 0 is a read.
	Sizes []int

	seed       uint64
	sent, seen int
	data       []byte
}

// NewStream returns a stream whose content depends only on seed and sizes.
func NewStream(seed uint64, sizes ...int) *Stream {
	return &Stream{Sizes: sizes, seed: seed, data: make([]byte, frame.MaxPayload)}
}

func (s *Stream) packet(i int) tlp.Packet {
	r := rand.New(rand.NewPCG(s.seed, uint64(i)))
	size := s.Sizes[r.IntN(len(s.Sizes))]
	p := tlp.Packet{Type: tlp.MRd, Length: 1, Requester: 0x100, FirstBE: 15}
	p.SetAddr(uint64(i) << 12)
	if size > 0 {
		p.Type, p.Length = tlp.MWr, uint16(size/4)
		if size > 4 {
			p.LastBE = 15
		}
		for at := 0; at < size; at += 4 {
			binary.LittleEndian.PutUint32(s.data[at:], r.Uint32())
		}
		p.Data = s.data[:size]
	}
	return p
}

// Feed sends TLPs until the stream has sent total or the link is full.
func (s *Stream) Feed(n *Network, from Side, total int) error {
	for s.sent < total {
		p := s.packet(s.sent)
		switch err := n.Send(from, &p); err {
		case nil:
			s.sent++
		case link.ErrFull:
			return nil
		default:
			return err
		}
	}
	return nil
}

// Seen returns the number of TLPs that Check has accepted.
func (s *Stream) Seen() int { return s.seen }

// Check compares a delivered TLP with the next expected one.
func (s *Stream) Check(p *tlp.Packet) error {
	want := s.packet(s.seen)
	if p.Type != want.Type || p.Addr != want.Addr || p.Length != want.Length || !bytes.Equal(p.Data, want.Data) {
		return fmt.Errorf("TLP %d: got %v at %#x with %d bytes, want %v at %#x with %d bytes (or different bytes)",
			s.seen, p.Type, p.Addr, len(p.Data), want.Type, want.Addr, len(want.Data))
	}
	s.seen++
	return nil
}

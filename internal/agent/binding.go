package agent

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
)

const (
	// maxBoxes bounds the node numbers of boxes: 23 bits, beside 8 for the slot, in the
	// 32 bits with which a datagram names its binding.
	maxBoxes = 1 << 23
	// transferBit is set in the names of links between boxes.
	transferBit = 1 << 31
)

// sendBuffer bounds the unacknowledged data of a link, in bytes. A completion may
// not pass the posted writes before it, so this data delays the answer to a
// register read: 1 MiB fills 100 Gb/s over a round trip of 80 µs, and takes 10 ms
// at 100 MB/s.
const sendBuffer = 1 << 20

// firstWindow is the congestion window of a link at its start and after a pause, in
// bytes. Eight links that begin at the same time fit the queue of a port of 640 KiB,
// and the round trip of 30 µs carries 2.7 GB/s. Receivers acknowledge 64 KiB or 8
// datagrams at once, also those of 9000 bytes, so the window does not wait for an
// acknowledgement that is delayed. Slow start doubles it every round trip.
const firstWindow = 80 << 10

// LinkConfig returns the link configuration of one side of a desired binding, and
// the peer's address on each path. self is the number of this node.
//
// Datagrams name a binding by its box slot, which has one binding at a time.
// Datagrams of an earlier binding reach the new one and are refused for their
// epoch.
func LinkConfig(want *dxpuv1.DesiredBinding, self uint32, kind dxpuv1.NodeKind) (link.Config, []netip.AddrPort, error) {
	return linkConfig(want, self, kind == dxpuv1.NodeKind_NODE_KIND_HOST)
}

// TransferConfig returns the link configuration of one side of a transfer, as LinkConfig
// does. Datagrams name it by the box slot of the source.
func TransferConfig(t *dxpuv1.Transfer, self uint32) (link.Config, []netip.AddrPort, error) {
	// The initiator of a link names the other end, so the target initiates.
	cfg, peers, err := linkConfig(t.GetLink(), self, t.GetReceive())
	cfg.Binding |= transferBit
	return cfg, peers, err
}

func linkConfig(want *dxpuv1.DesiredBinding, self uint32, initiator bool) (link.Config, []netip.AddrPort, error) {
	fail := func(format string, args ...any) (link.Config, []netip.AddrPort, error) {
		return link.Config{}, nil, fmt.Errorf("agent: binding %q: %s", want.GetBindingId(), fmt.Sprintf(format, args...))
	}
	peer := want.GetPeer()
	if want.Slot > math.MaxUint8 || peer.GetSlot() > math.MaxUint8 {
		return fail("slots %d and %d: slots are numbered 0 to 255", want.Slot, peer.GetSlot())
	}
	if want.Epoch == 0 || want.Epoch > math.MaxUint32 {
		return fail("epoch %d does not fit 32 bits", want.Epoch)
	}
	cfg := link.Config{
		Epoch: uint32(want.Epoch), Session: newSession(), Initiator: initiator,
		Local:      frame.Endpoint{Node: self, Slot: uint16(want.Slot)},
		Remote:     frame.Endpoint{Node: peer.GetNodeNumber(), Slot: uint16(peer.GetSlot())},
		SendBuffer: sendBuffer, InitialCwnd: firstWindow,
	}
	_, _ = rand.Read(cfg.Ephemeral[:]) // never fails, see newSession
	box := cfg.Local
	if cfg.Initiator {
		box = cfg.Remote
	}
	if box.Node >= maxBoxes {
		return fail("box number %d does not fit 23 bits", box.Node)
	}
	cfg.Binding = box.Node<<8 | uint32(box.Slot)
	if len(want.Secret) != len(cfg.Secret) {
		return fail("secret of %d bytes, want %d", len(want.Secret), len(cfg.Secret))
	}
	copy(cfg.Secret[:], want.Secret)
	switch want.Cipher {
	case dxpuv1.Cipher_CIPHER_AES_256_GCM:
		cfg.Cipher = link.CipherAES256GCM
	case dxpuv1.Cipher_CIPHER_NONE:
		cfg.Cipher = link.CipherNone
	default:
		return fail("unknown cipher %v", want.Cipher)
	}
	peers, err := addresses(peer.GetAddresses())
	if err != nil {
		return fail("%v", err)
	}
	mtu := min(cmp.Or(int(want.Mtu), frame.MinMTU), frame.MaxDatagram)
	cfg.Paths = slices.Repeat([]link.PathConfig{{MTU: mtu}}, len(peers))
	return cfg, peers, nil
}

// addresses returns the peer's addresses in the order of their paths.
func addresses(in []*dxpuv1.PathAddress) ([]netip.AddrPort, error) {
	if len(in) == 0 || len(in) > frame.MaxPaths {
		return nil, fmt.Errorf("the peer has %d paths, want 1 to %d", len(in), frame.MaxPaths)
	}
	out := make([]netip.AddrPort, len(in))
	for _, a := range in {
		addr, err := netip.ParseAddrPort(a.Address)
		if err != nil {
			return nil, fmt.Errorf("address of path %d: %w", a.Path, err)
		}
		if int(a.Path) >= len(out) || out[a.Path].IsValid() {
			return nil, fmt.Errorf("path %d: paths are numbered from 0 without gaps", a.Path)
		}
		out[a.Path] = addr
	}
	return out, nil
}

// newSession returns a random session number, which no earlier link has used.
func newSession() uint64 {
	var b [8]byte
	for {
		_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program if the kernel has no randomness
		if s := binary.BigEndian.Uint64(b[:]); s != 0 {
			return s
		}
	}
}

// Addresses returns the paths of a proxy for a report to the manager.
func Addresses(f engine.Driver) []*dxpuv1.PathAddress {
	mtus := f.MTUs()
	var out []*dxpuv1.PathAddress
	for i, addr := range f.Addrs() {
		out = append(out, &dxpuv1.PathAddress{Path: uint32(i), Address: addr.String(), Mtu: uint32(mtus[i])})
	}
	return out
}

// LinkCounters converts the counters of a link to those of the API.
func LinkCounters(s link.Stats) *dxpuv1.Counters {
	c := &dxpuv1.Counters{
		TlpsSent: s.TLPsSent, TlpsReceived: s.TLPsReceived,
		BytesSent: s.BytesSent, BytesReceived: s.BytesReceived,
		DatagramsRetransmitted: s.LostDatagrams, DatagramsRefused: s.Drops.Total(),
	}
	for _, p := range s.Paths {
		if p.Usable && (c.RttNs == 0 || uint64(p.SRTT) < c.RttNs) {
			c.RttNs = uint64(p.SRTT)
		}
	}
	return c
}

// PathStatuses returns the paths of a link for a report to the manager. The health
// of a path that was not used yet is unspecified.
func PathStatuses(s link.Stats) []*dxpuv1.PathStatus {
	var out []*dxpuv1.PathStatus
	for i, p := range s.Paths {
		st := &dxpuv1.PathStatus{Path: uint32(i), RttNs: uint64(p.SRTT)}
		switch {
		case p.Usable:
			st.Health = dxpuv1.Health_HEALTH_OK
		case p.Failures > 0:
			st.Health = dxpuv1.Health_HEALTH_FAILED
		}
		out = append(out, st)
	}
	return out
}

// StateName returns the word for a binding state in timelines, such as "attached".
func StateName(s dxpuv1.BindingState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "BINDING_STATE_"))
}

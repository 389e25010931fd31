package link

import (
	"errors"
	"time"

	"github.com/dxpu-project/dxpu/frame"
)

// Errors of Receive: the reason for which a datagram was dropped, completely or
// from the first bad packet on. Stats.Drops has a counter for each.
var (
	ErrNotMine    = errors.New("link: datagram of another binding")
	ErrStaleEpoch = errors.New("link: datagram of another epoch")
	ErrPath       = errors.New("link: datagram of another path")
	ErrNoSession  = errors.New("link: datagram of an unknown session")
	ErrSeal       = errors.New("link: datagram fails authentication")
	ErrReplay     = errors.New("link: datagram was received before")
	ErrMalformed  = errors.New("link: malformed datagram")
	ErrCorrupt    = errors.New("link: packet CRC mismatch")
	ErrRoute      = errors.New("link: packet of another endpoint")
	ErrCredit     = errors.New("link: peer exceeds its credit")
	ErrProtocol   = errors.New("link: peer breaks the protocol")
	ErrNotUp      = errors.New("link: down")
	ErrFlood      = errors.New("link: too many handshakes")
	ErrCookie     = errors.New("link: handshake needs a cookie")
	ErrDowngrade  = errors.New("link: peer knows a newer version of the protocol")
)

// Drops counts dropped datagrams by the error that Receive returned.
type Drops struct {
	NotMine, StaleEpoch, Path, NoSession, Seal, Replay uint64
	Malformed, Corrupt, Route, Credit, Protocol, NotUp uint64
	Flood, Downgrade                                   uint64
}

// Total returns the sum.
func (d *Drops) Total() uint64 {
	return d.NotMine + d.StaleEpoch + d.Path + d.NoSession + d.Seal + d.Replay +
		d.Malformed + d.Corrupt + d.Route + d.Credit + d.Protocol + d.NotUp + d.Flood + d.Downgrade
}

func (d *Drops) count(err error) {
	switch err {
	case ErrNotMine:
		d.NotMine++
	case ErrStaleEpoch:
		d.StaleEpoch++
	case ErrPath:
		d.Path++
	case ErrNoSession:
		d.NoSession++
	case ErrSeal:
		d.Seal++
	case ErrReplay:
		d.Replay++
	case ErrMalformed:
		d.Malformed++
	case ErrCorrupt:
		d.Corrupt++
	case ErrRoute:
		d.Route++
	case ErrCredit:
		d.Credit++
	case ErrProtocol:
		d.Protocol++
	case ErrNotUp:
		d.NotUp++
	case ErrFlood:
		d.Flood++
	case ErrDowngrade:
		d.Downgrade++
	}
}

// Stats are the counters of one end since New.
type Stats struct {
	DatagramsSent, DatagramsReceived uint64
	WireBytesSent, WireBytesReceived uint64 // as UDP payload
	TLPsSent, TLPsReceived           uint64 // accepted by Send, delivered
	BytesSent, BytesReceived         uint64 // their payload
	// Retransmissions counts retransmitted fragments of TLPs, Duplicates
	// fragments that were received before.
	Retransmissions, Duplicates uint64
	LostDatagrams               uint64
	// SpuriousLosses are datagrams declared lost and acknowledged later.
	SpuriousLosses uint64
	// ProbeTimeouts are probe timeouts (RFC 9002 section 6.2) that fired.
	ProbeTimeouts uint64
	// MarkedDatagrams arrived with the mark of a congested network (CE), MarkCuts are the
	// cuts of this end's window that marks have caused.
	MarkedDatagrams, MarkCuts uint64
	// HiddenMarks are paths whose peer, or network, did not tell of a mark that this end set.
	HiddenMarks uint64
	// Refusals are reports of the network that no process has the peer's port.
	Refusals   uint64
	KeyChanges uint64
	Drops      Drops
	// SendBuffered and ReceiveHeld are bytes in the send buffer and in
	// reassembly now.
	SendBuffered, ReceiveHeld int
	Paths                     []PathStats
}

// PathStats describes a path now.
type PathStats struct {
	Usable                     bool // false before the first acknowledgement and after it failed
	MTU                        int  // may be below the configured one
	SRTT, MinRTT, RTTVar       time.Duration
	Cwnd, InFlight             int // bytes
	DatagramsSent, DatagramsIn uint64
	Failures                   uint64
}

// parseError converts an error of a frame parser to one of this package.
func parseError(err error) error {
	if errors.Is(err, frame.ErrCRC) {
		return ErrCorrupt
	}
	return ErrMalformed
}

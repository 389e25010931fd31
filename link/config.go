package link

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/frame"
)

// Cipher is the protection of traffic. The handshake is always sealed with keys
// derived from Config.Secret.
type Cipher uint8

// Ciphers.
const (
	// CipherNone leaves traffic readable and forgeable. The packets' CRCs detect
	// corruption.
	CipherNone Cipher = 0
	// CipherAES256GCM is AES-256-GCM.
	CipherAES256GCM Cipher = 1
)

// String returns the name that configuration files use.
func (c Cipher) String() string {
	switch c {
	case CipherNone:
		return "none"
	case CipherAES256GCM:
		return "aes-256-gcm"
	}
	return fmt.Sprintf("Cipher(%d)", uint8(c))
}

// PathConfig describes one path to the peer.
type PathConfig struct {
	// MTU is the largest datagram that fits the path, in bytes of UDP
	// payload, from frame.MinMTU to frame.MaxDatagram. The link searches for a
	// smaller one when datagrams of this size stop arriving.
	MTU int
}

// Config describes one end of a link. For MaxVersion and the fields after Paths,
// zero means the default in the comment.
type Config struct {
	Binding, Epoch uint32
	Local, Remote  frame.Endpoint
	// Initiator is set on the host's side: it opens the session.
	Initiator bool
	Cipher    Cipher
	// Secret is known to both ends only. It belongs to one binding and one
	// epoch.
	Secret [32]byte
	// Session identifies this run of this end. It must differ from all earlier
	// ones with the same Secret, because keys depend on it: use 64 random bits.
	// 0 is invalid.
	Session uint64
	// Ephemeral is an X25519 private key: 32 random bytes that no other run uses and
	// nothing stores. It protects recorded traffic from a later theft of Secret. All
	// zero is invalid, except with MaxVersion 1. The link clears its copy when the
	// session opens or fails; the owner keeps none.
	Ephemeral [32]byte
	// MaxVersion is the highest version of the protocol that this end speaks.
	// Default frame.Newest. The link speaks it, or version 1 if its peer knows no
	// other.
	MaxVersion uint8
	// Paths are the paths by path ID, the same on both ends, 1 to frame.MaxPaths.
	Paths []PathConfig

	// Window is the credit of the peer beyond the delivered TLPs in bytes:
	// payload and frame.TLPCost per TLP. It bounds the memory for reassembly.
	// Default DefaultWindow (4 MiB), at least 64 KiB.
	Window int
	// SendBuffer bounds the TLPs that Send accepts before the peer acknowledges
	// them, in the same unit as Window. Default: Window. Of them, only as many wait for
	// their first transmission as the paths carry in their least round trip and a
	// millisecond.
	SendBuffer int
	// InitialCwnd is the initial congestion window of a path in bytes on the
	// wire, and the one after a pause, default 1280 KiB, at least two datagrams. A
	// device with 256 tags of 4 KiB requests a mebibyte at once, which fits with
	// headers and one more datagram; a path of 100 Gb/s carries it in 105 µs. Where
	// many links share a port a smaller one loses less.
	InitialCwnd int
	// FixedCwnd, if not 0, replaces congestion control by a fixed window.
	FixedCwnd int

	// ECN lets the network mark datagrams (RFC 3168): all that share a queue with them should
	// heed marks. Either end may have it alone.
	ECN bool

	// KeepAlive is the silence after which a path is pinged; default 250 ms.
	KeepAlive time.Duration
	// DeadInterval is the silence after which the peer is lost; default 1 s.
	// At least half of it passes after a datagram that asks for an answer, so a
	// process that was stopped does not blame its peer.
	DeadInterval time.Duration
	// ConnectTimeout is the time after which an end gives up connecting.
	// Default: never.
	ConnectTimeout time.Duration
	// AckDelay is the longest delay of an acknowledgement, default 250 µs. Usually
	// a completion is sent earlier and carries it.
	AckDelay time.Duration
	// RekeyDatagrams is the number of datagrams in a key phase. Default and
	// maximum 2^22, for datagrams of up to 2^12 blocks: RFC 9001 section 6.6
	// allows 2^23 for AES-GCM with packets of 2^11 blocks.
	RekeyDatagrams uint64
}

const (
	// DefaultWindow is the default of Config.Window.
	DefaultWindow = 4 << 20
	minWindow     = 64 << 10
	maxWindow     = 1 << 30
	defaultCwnd   = 1280 << 10
	maxRekey      = 1 << 22
)

func (c Config) complete() (Config, error) {
	c.MaxVersion = cmp.Or(c.MaxVersion, frame.Newest)
	c.Window = cmp.Or(c.Window, DefaultWindow)
	c.SendBuffer = cmp.Or(c.SendBuffer, c.Window)
	c.InitialCwnd = cmp.Or(c.InitialCwnd, min(defaultCwnd, c.Window))
	c.KeepAlive = cmp.Or(c.KeepAlive, 250*time.Millisecond)
	c.DeadInterval = cmp.Or(c.DeadInterval, time.Second)
	c.AckDelay = cmp.Or(c.AckDelay, 250*time.Microsecond)
	c.RekeyDatagrams = min(cmp.Or(c.RekeyDatagrams, maxRekey), maxRekey)
	switch {
	case c.Session == 0:
		return c, errors.New("session ID 0")
	case c.MaxVersion > frame.Newest:
		return c, fmt.Errorf("unknown version %d of the protocol", c.MaxVersion)
	case c.MaxVersion >= frame.Version2 && c.Ephemeral == [32]byte{}:
		return c, errors.New("no ephemeral key")
	case c.Cipher > CipherAES256GCM:
		return c, fmt.Errorf("unknown cipher %d", c.Cipher)
	case len(c.Paths) == 0 || len(c.Paths) > frame.MaxPaths:
		return c, fmt.Errorf("%d paths, want 1 to %d", len(c.Paths), frame.MaxPaths)
	case c.Window < minWindow || c.Window > maxWindow:
		return c, fmt.Errorf("window of %d bytes, want %d to %d", c.Window, minWindow, maxWindow)
	case c.SendBuffer < minWindow || c.SendBuffer > maxWindow:
		return c, fmt.Errorf("send buffer of %d bytes, want %d to %d", c.SendBuffer, minWindow, maxWindow)
	case c.InitialCwnd < 0 || c.FixedCwnd < 0:
		return c, errors.New("negative congestion window")
	case c.KeepAlive < 0 || c.DeadInterval < 0 || c.ConnectTimeout < 0 || c.AckDelay < 0:
		return c, errors.New("negative timeout")
	}
	for i, p := range c.Paths {
		if p.MTU < frame.MinMTU || p.MTU > frame.MaxDatagram {
			return c, fmt.Errorf("path %d: MTU %d, want %d to %d", i, p.MTU, frame.MinMTU, frame.MaxDatagram)
		}
	}
	return c, nil
}

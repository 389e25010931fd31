// Package link carries the TLPs of one binding between two proxies: exactly once
// and in order, encrypted, over one or several lossy paths.
//
// A [Link] is one end, a pure machine: its inputs are datagrams and the time, its
// outputs TLPs, datagrams and the time of the next call ([Link.Wake]). It has no
// goroutine, clock or socket, so the daemons, the simulator and the tests run the
// same code. frame/PROTOCOL.md specifies the protocol. Loss detection and
// round-trip estimation follow RFC 9002 (QUIC) unless a comment says otherwise: on
// paths that reorder, losses are detected as in RACK (RFC 8985). The congestion
// window is that of CUBIC's TCP-friendly region (RFC 9438), with undone cuts (RFC
// 4015), a restart after pauses (RFC 2861) and pacing.
package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// Errors of Send.
var (
	// ErrFull means that the send buffer has no room for the TLP now.
	ErrFull = errors.New("link: send buffer full")
	// ErrDown means that the link is closing or down; see State and Reason.
	ErrDown = errors.New("link: down")
)

// Link is one end of the link of a binding. Its methods are called from one
// goroutine at a time, with a time that never goes backwards.
type Link struct {
	cfg     Config
	state   State
	version uint8 // in the headers of datagrams, when Up
	spoken  uint8 // the highest version that both ends speak, when Up
	form    frame.Form
	reason  Reason
	code    uint16 // of the close, ours or the peer's
	paths   []*path
	send    sendBuffer
	recv    reassembly
	keys    keys
	auth    *authentication
	hs      handshake
	closing closing
	stats   Stats

	liveness liveness
	chance   *rand.ChaCha8 // of omissions

	// Scratch space that keeps the hot path free of allocations.
	out   tlp.Packet
	hp    frame.HeaderPacket
	dp    frame.DataPacket
	rp    frame.RunPacket
	ack   frame.Ack
	run   Run
	crcs  []byte
	reads int // in the runs of the present datagram

	marked bool // the next datagram to be received, see Marked
	ecn    ECN  // of the last datagram of Transmit

	lending bool   // the present datagram may have pieces in the send buffer
	lent    []Lent // these pieces
}

// New returns one end of a link. The initiator starts its handshake with the next
// Transmit.
func New(now time.Duration, cfg Config) (*Link, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	l := &Link{cfg: cfg, liveness: newLiveness(now), chance: newChance(&cfg)}
	l.keys.cipher = cfg.Cipher
	if l.auth, err = newAuthentication(&l.cfg); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	if err := l.auth.generate(&l.cfg); err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	for i := range cfg.Paths {
		l.paths = append(l.paths, newPath(uint8(i), &l.cfg))
	}
	l.recv.window, l.recv.advertised = cfg.Window, uint64(cfg.Window) // the hello advertises it
	l.send.capacity, l.send.ahead = cfg.SendBuffer, cfg.SendBuffer
	l.hs.init(now, &l.cfg)
	return l, nil
}

// Send queues a copy of p and p.Data for transmission; see Payload for how to avoid
// the second. It fails with ErrFull, with
// ErrDown, or because the TLP is not valid (see [tlp.Packet.Validate]). TLPs wait
// until the link is Up.
func (l *Link) Send(_ time.Duration, p *tlp.Packet) error {
	if l.state != Connecting && l.state != Up {
		return ErrDown
	}
	if err := p.Validate(); err != nil {
		return fmt.Errorf("link: send: %w", err)
	}
	if !l.send.push(p) {
		return ErrFull
	}
	l.stats.TLPsSent++
	l.stats.BytesSent += uint64(len(p.Data))
	return nil
}

// Payload returns memory of the send buffer for the n bytes of payload of the next
// TLP or run, so that its owner need not copy them once more: Send and SendRun
// take a payload that lies there as it is. It returns nil while Send would fail with
// ErrFull. The memory is valid until the next call of a method other than Room and Fit.
func (l *Link) Payload(n int) []byte {
	if l.state != Connecting && l.state != Up {
		return nil
	}
	return l.send.reserve(n)
}

// Fit returns the number of TLPs with payloads of n bytes each that the send buffer has
// room for now.
func (l *Link) Fit(n int) int {
	return l.send.free() / cost(n)
}

// Room returns the payload size of the largest TLP that Send accepts now, in
// bytes; 0 means full.
func (l *Link) Room() int { return l.send.room() }

// Idle reports whether the peer has acknowledged every TLP given to Send.
func (l *Link) Idle() bool { return l.send.empty() }

// State returns the state of the link.
func (l *Link) State() State { return l.state }

// Version returns the version of the protocol that the ends agreed on, 0 before the
// link is Up.
func (l *Link) Version() uint8 { return l.spoken }

// Reason returns why the link is Closing or Down, and the code of the end that closed it: that of
// the call of Close, CodeSilence or CodeBroken. In other states it returns NotDown.
func (l *Link) Reason() (Reason, uint16) { return l.reason, l.code }

// Close ends the link and tells the peer. TLPs that the peer has not acknowledged
// may be lost; to avoid that, wait for Idle. The link is Closing until Transmit
// has emitted its last close datagram, then Down.
func (l *Link) Close(now time.Duration, code uint16) {
	if l.state == Closing || l.state == Down {
		return
	}
	if l.state == Connecting || !l.keys.ready {
		l.down(LocalClosed, code)
		return
	}
	l.beginClose(now, LocalClosed, code)
}

// Rekey starts a new key phase of the sending direction, without a stall: the next
// datagram uses it. It returns false, and does nothing, until the peer has
// acknowledged a datagram of the current phase.
func (l *Link) Rekey(time.Duration) bool {
	if l.state != Up || !l.keys.advanceSend(l.paths) {
		return false
	}
	l.stats.KeyChanges++
	return true
}

// Listened says that every datagram that had arrived by the given time has been
// given to Receive. An owner whose sockets may wait to be read calls it, so that the
// link does not take an unread socket for a silent peer. An owner that never calls
// it receives datagrams as they arrive.
func (l *Link) Listened(until time.Duration) { l.liveness.listened = until }

// Doubts reports whether the peer is about to count as lost. An owner of several links to
// one peer tells this one by HeardElsewhere then what the others have heard.
func (l *Link) Doubts(now time.Duration) bool {
	return l.state == Up && now >= l.liveness.wake(l.cfg.DeadInterval)
}

// HeardElsewhere says when another link last heard an authenticated datagram of the same
// process. A peer that is alive but does not answer this link gets more time.
func (l *Link) HeardElsewhere(at time.Duration) {
	l.liveness.heardElsewhere = max(l.liveness.heardElsewhere, at)
}

// Refused says that the network has reported a datagram of a path as undeliverable:
// no process has the peer's port. It is a hint that anybody can forge. The link asks
// the peer for an answer at once, by every path that works, and waits for it for a part
// of the dead interval.
func (l *Link) Refused(now time.Duration, path uint8) {
	if l.state != Up || int(path) >= len(l.paths) {
		return
	}
	l.stats.Refusals++
	if !l.liveness.refused(now) {
		return
	}
	for _, p := range l.paths {
		if p.usable || p.id == path {
			p.probes = max(p.probes, 1)
		}
	}
}

// MaxDelay returns how long an answer of the peer may take now although both ends
// live: a multiple of the longest recent delay of an acknowledgement or of a timer.
// It is longer on a machine with busy processors.
func (l *Link) MaxDelay() time.Duration { return l.liveness.maxDelay() }

// Heard returns when the last authenticated datagram of the peer arrived, or when the
// link was made.
func (l *Link) Heard() time.Duration { return l.liveness.lastHeard }

// Wake returns the time of the next call of Transmit, unless Send or Receive is
// called before. A time in the past means at once.
func (l *Link) Wake() time.Duration {
	if l.state == Down {
		return machine.Never
	}
	if l.state == Closing {
		return l.closing.next
	}
	wake := l.hs.wake(l)
	if l.state == Connecting {
		return wake
	}
	wake = min(wake, l.liveness.wake(l.cfg.DeadInterval))
	for _, p := range l.paths {
		wake = min(wake, p.wake(l))
	}
	return wake
}

// Stats returns the counters and a snapshot of every path. It allocates the
// snapshot.
func (l *Link) Stats() Stats {
	s := l.stats
	s.SendBuffered, s.ReceiveHeld = l.send.used(), l.recv.held
	for _, p := range l.paths {
		s.Paths = append(s.Paths, p.stats())
	}
	return s
}

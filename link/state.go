package link

import (
	"fmt"
	"time"
)

// State is the state of a link:
//
//	Connecting ──confirmed──▶ Up ──Close, peer lost──▶ Closing ──close datagrams sent──▶ Down
//	    │                     │                                                           ▲
//	    └──Close, timeout─────┴──peer closed or restarted─────────────────────────────────┘
type State uint8

// States.
const (
	Connecting State = iota
	Up
	Closing
	Down
)

// String returns the name in lower case.
func (s State) String() string {
	if names := [...]string{"connecting", "up", "closing", "down"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Reason is the cause of a link that is Closing or Down.
type Reason uint8

// Reasons.
const (
	NotDown Reason = iota
	// LocalClosed: Close was called at this end.
	LocalClosed
	// PeerClosed: the peer has closed the link, by Close or because it heard nothing; the code is
	// the peer's.
	PeerClosed
	// PeerLost: the peer has been silent for the dead interval.
	PeerLost
	// PeerRestarted: the peer has another session ID, so the TLPs in flight are
	// lost.
	PeerRestarted
	// ConnectFailed: the session did not open within Config.ConnectTimeout.
	ConnectFailed
	// Incompatible: the peer has another cipher or another endpoint.
	Incompatible
	// Broken: a TLP cannot be delivered, because an authenticated peer broke the
	// protocol or memory failed. The link ends rather than leave a gap.
	Broken
)

// String returns the reason in words.
func (r Reason) String() string {
	names := [...]string{
		NotDown: "not down", LocalClosed: "closed here", PeerClosed: "closed by the peer", PeerLost: "peer lost",
		PeerRestarted: "peer restarted", ConnectFailed: "no connection", Incompatible: "incompatible peer", Broken: "protocol broken",
	}
	if int(r) < len(names) {
		return names[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Codes of a close datagram when the link ends by itself. Callers of Close use lower codes.
const (
	CodeSilence uint16 = 0xfffe // with PeerLost: the one that receives it was not heard
	CodeBroken  uint16 = 0xffff // with Broken
)

// closing is the state of a link that this end closes.
type closing struct {
	left int           // close datagrams still to send
	next time.Duration // when the next is due
}

// The link sends closeDatagrams copies, at least two on each path, so that one survives moderate loss. A peer
// that receives none detects the end after its dead interval.
const (
	closeDatagrams = 4
	closeSpacing   = 2 * time.Millisecond
)

func (l *Link) beginClose(now time.Duration, why Reason, code uint16) {
	l.state, l.reason, l.code = Closing, why, code
	l.closing = closing{left: max(closeDatagrams, 2*len(l.paths)), next: now}
	l.send.release()
	l.recv.release()
}

func (l *Link) down(why Reason, code uint16) {
	l.state, l.reason, l.code = Down, why, code
	l.send.release()
	l.recv.release()
	l.forget()
	l.keys.forget()
}

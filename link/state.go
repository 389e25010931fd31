package link

import (
	"fmt"
	"time"
)

// State is where a link stands in its life:
//
//	Connecting ──confirmed──▶ Up ──Close──▶ Closing ──close datagrams sent──▶ Down
//	    │                     │                                                ▲
//	    └──Close, timeout─────┴──peer closed, lost or restarted────────────────┘
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
	switch s {
	case Connecting:
		return "connecting"
	case Up:
		return "up"
	case Closing:
		return "closing"
	case Down:
		return "down"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Reason says why a link is Closing or Down.
type Reason uint8

// Reasons.
const (
	NotDown Reason = iota
	// LocalClosed: Close was called here.
	LocalClosed
	// PeerClosed: Close was called there; the code is the peer's.
	PeerClosed
	// PeerLost: the peer has been silent for the dead interval.
	PeerLost
	// PeerRestarted: the peer runs under another session ID, so what this
	// session had in flight is lost.
	PeerRestarted
	// ConnectFailed: the session did not open within Config.ConnectTimeout.
	ConnectFailed
	// Incompatible: the peer wants another cipher or stands for another endpoint.
	Incompatible
	// Broken: a TLP cannot be delivered, because an authenticated peer broke the
	// protocol or memory failed. The link stops rather than leave a gap.
	Broken
)

// String returns the reason in words.
func (r Reason) String() string {
	switch r {
	case NotDown:
		return "not down"
	case LocalClosed:
		return "closed here"
	case PeerClosed:
		return "closed by the peer"
	case PeerLost:
		return "peer lost"
	case PeerRestarted:
		return "peer restarted"
	case ConnectFailed:
		return "no connection"
	case Incompatible:
		return "incompatible peer"
	case Broken:
		return "protocol broken"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// Codes that a close datagram carries and that a link gives by itself. Callers
// of Close use codes below CodeBroken.
const CodeBroken uint16 = 0xffff

// closing is what is left to do when the link ends here.
type closing struct {
	left int           // close datagrams still to send
	next time.Duration // when the next is due
}

// closeDatagrams are sent so that one survives moderate loss; a peer that gets
// none finds the link dead after its dead interval.
const (
	closeDatagrams = 4
	closeSpacing   = 2 * time.Millisecond
)

func (l *Link) beginClose(now time.Duration, why Reason, code uint16) {
	l.state, l.reason, l.code = Closing, why, code
	l.closing = closing{left: closeDatagrams, next: now}
	l.send.release()
	l.recv.release()
}

func (l *Link) down(why Reason, code uint16) {
	l.state, l.reason, l.code = Down, why, code
	l.send.release()
	l.recv.release()
}

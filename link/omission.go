package link

import (
	"math/rand/v2"
	"time"
)

// omission are numbers that a path has left out. A peer that acknowledges what it has not
// received hides losses: the congestion window does not fall, and the link takes a bottleneck
// from all others. So a sender that uses its window leaves out some numbers now and then, which
// look like lost datagrams, and an acknowledgement of one ends the session (RFC 9000 section
// 21.4).
type omission struct {
	at          time.Duration // when numbers are left out again; 0: the path has not used its window yet
	first, last uint64        // the last ones; 0: none
	count       uint64        // of all
}

const (
	// firstOmission is how long after its first use of the window a path leaves out numbers,
	// and omissionEvery the mean time between two omissions. After one the peer acknowledges
	// more often for a second.
	firstOmission = 2 * time.Second
	omissionEvery = 8 * time.Second
	// mostOmitted is a burst of losses in the queue of a switch. A peer that tells of short ones
	// only is found out at another time.
	mostOmitted = 64

	labelOmission = "omission"
)

// newChance returns what decides about omissions. The peer cannot predict it, but in a session of
// version 1, where it knows the seed.
func newChance(cfg *Config) *rand.ChaCha8 {
	var seed [32]byte
	copy(seed[:], expand(cfg.Ephemeral[:], labelOmission, len(seed)))
	return rand.NewChaCha8(seed)
}

// omit leaves out the next numbers of a path, if it is time for that. A datagram of data has just
// been sent.
func (l *Link) omit(now time.Duration, p *path) {
	o := &p.omission
	switch {
	case p.congestion.fixed || !p.congestion.limits():
		return
	case o.at == 0:
		o.at = now + firstOmission
		return
	case now < o.at:
		return
	}
	n := uint64(1) << (l.chance.Uint64() % 7) // up to mostOmitted
	o.at = now + omissionEvery/2 + time.Duration(l.chance.Uint64()%uint64(omissionEvery))
	o.first, o.last = p.sent.next, p.sent.next+n-1
	o.count += n
	for range n {
		p.sent.push().at = now
	}
}

// covers reports whether a range of acknowledged numbers has one that was left out.
func (o *omission) covers(first, last uint64) bool {
	return o.count > 0 && first <= o.last && last >= o.first
}

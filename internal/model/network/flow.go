package network

import "time"

// flow is one GPU's copies in one direction.
type flow struct {
	gpu     *gpu
	routes  [][]hop       // on each path
	path    uint8         // of the next packet
	size    int           // of a copy in bytes
	ackTime time.Duration // from a packet's arrival to the sender's knowledge of it
	payload int           // of one packet
	header  int           // bytes of a packet beside the payload
	request int           // bytes of a read request on links; 0: posted writes
	bound   float64       // of the window in bytes: the tags of a reader
	base    time.Duration // the round trip without load

	window   float64 // bytes
	slow     bool    // slow start
	flying   int     // bytes on their way
	again    int     // bytes that were lost and are to be sent again
	copied   int     // bytes that wait in this copy
	cutUntil time.Duration
	// DCTCP: the share of marked packets, estimated once in a round trip.
	share         float64
	acked, marked int
	estimateAt    time.Duration

	leaveAt time.Duration // when the sender leaves the failed path; 0: it has not noticed
	counted uint64        // bytes in the time that counts
	before  uint64        // those before the first path failed
	last    time.Duration // when data came last, in the time that counts
}

const (
	// maxWindow is the largest window of posted writes in bytes: the send buffer of a link.
	maxWindow = 4 << 20
	// lossFactor is what a loss leaves of the window (CUBIC, RFC 9438 section 4.6).
	lossFactor = 0.7
	// shareGain is DCTCP's g (RFC 8257 section 4.2).
	shareGain = 1.0 / 16
	// initialWindow is that of a link in packets (RFC 6928).
	initialWindow = 10
)

// room reports whether the window has room for a packet.
func (f *flow) room() bool {
	return float64(f.flying+f.payload) <= max(min(f.window, f.bound), float64(f.payload))
}

// done reports whether all of the copy has arrived.
func (f *flow) done() bool { return f == nil || f.copied <= 0 && f.again == 0 && f.flying == 0 }

// ack accounts for a packet that was delivered.
func (f *flow) ack(now time.Duration, p *packet) {
	f.flying -= f.payload
	f.acked++
	if p.marked {
		f.marked++
		f.slow = false
	}
	if f.slow {
		f.window += float64(f.payload)
	} else {
		f.window += float64(f.payload) * float64(f.payload) / f.window
	}
	f.window = min(f.window, f.bound)
	if now < f.estimateAt {
		return
	}
	f.share += shareGain * (float64(f.marked)/float64(f.acked) - f.share)
	if f.marked > 0 {
		f.shrink(1 - f.share/2)
	}
	f.acked, f.marked, f.estimateAt = 0, 0, now+f.base
}

// lose accounts for a packet that was lost.
func (f *flow) lose(now time.Duration) {
	f.flying -= f.payload
	f.again += f.payload
	f.slow = false
	if now >= f.cutUntil {
		f.shrink(lossFactor)
		f.cutUntil = now + f.base
	}
}

func (f *flow) shrink(factor float64) { f.window = max(f.window*factor, 2*float64(f.payload)) }

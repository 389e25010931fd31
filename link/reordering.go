package link

import "time"

// reordering is the adaptive window of a path that reorders: how much later than
// others a datagram may arrive before it counts as lost. It follows RACK (RFC 8985
// section 6.2). RACK learns from duplicate acknowledgements that the window is too
// short and lengthens it by steps. Datagram numbers are never reused, so the link
// sees how late a datagram was, and takes that.
type reordering struct {
	window  time.Duration // 0: the path has not reordered lately
	persist int           // cuts of the congestion window until it is forgotten
}

const (
	// packetThreshold is kPacketThreshold of RFC 9002. It holds while the path does
	// not reorder.
	packetThreshold = 3
	// reorderingPersists is the number of recoveries after which RACK forgets.
	reorderingPersists = 16
	// mostReordering bounds the window on paths with a short round trip. RACK takes
	// the round trip itself as the bound; in a datacenter the scheduler of a machine
	// between delays a datagram by more.
	mostReordering = 4 * granularity
)

// late notes that a datagram was acknowledged after one that was sent later. beyond
// is its age less the round trip of others.
func (r *reordering) late(beyond time.Duration, rtt *rttEstimate) {
	beyond = max(beyond+beyond/4, rtt.least/4) // RACK's first window is a quarter of the least round trip
	beyond = min(beyond, max(rtt.srtt, mostReordering))
	if beyond >= r.window/2 {
		r.persist = reorderingPersists
	}
	r.window = max(r.window, beyond)
}

// cut notes that the congestion window was cut: a recovery begins.
func (r *reordering) cut() {
	if r.window == 0 {
		return
	}
	if r.persist--; r.persist <= 0 {
		r.window = 0
	}
}

// distance returns how many datagrams sent later must have arrived before one
// counts as lost whatever its age. The receiver drops those that are behind the
// largest by its replay window.
func (r *reordering) distance() uint64 {
	if r.window > 0 {
		return replayWindow
	}
	return packetThreshold
}

// age returns the age at which a datagram counts as lost when one that was sent
// later has arrived: the round trip and the window, without reordering 9/8 of the
// round trip (RFC 9002 section 6.1.2).
func (r *reordering) age(rtt *rttEstimate) time.Duration {
	d := rtt.recent()
	if r.window > 0 {
		return d + r.window
	}
	return max(d+d/8, granularity)
}

package link

import "time"

// A read must not wait behind all the writes that a send buffer can hold: at 1 Gb/s, 4 MiB
// take 34 ms. So TLPs wait in it, ahead of the first transmission, only for about the
// shortest round trip, in which an acknowledgement lets their owner send again, and
// aheadTime. Those in flight are the business of the congestion window.
const (
	// aheadTime is how late an owner may be that refills the buffer: more than the wake-up
	// of a thread takes.
	aheadTime = time.Millisecond
	// aheadLeast keeps slow paths busy with whole batches of segmentation offload.
	aheadLeast = paceBatch
)

// setAhead bounds the TLPs that wait for their first transmission, by the rate of the
// paths: a window in a round trip. An acknowledgement has just changed it.
func (l *Link) setAhead() {
	bytes, usable := float64(aheadLeast), false
	for _, p := range l.paths {
		if !p.usable || !p.rtt.sampled {
			continue
		}
		usable = true
		bytes += float64(p.congestion.cwnd)*float64(p.rtt.least+aheadTime)/float64(p.rtt.srtt) + float64(2*p.mtu.size)
	}
	if usable {
		l.send.ahead = int(min(bytes, float64(l.send.capacity)))
	}
}

// unsent returns the cost of the TLPs that were not sent completely.
func (s *sendBuffer) unsent() int {
	if s.cursor == s.end {
		return 0
	}
	o := s.slot(s.cursor)
	return int(s.cost-o.cost) + cost(int(o.payloadLen))
}

// free returns the cost of the TLPs that push takes now.
func (s *sendBuffer) free() int {
	return max(0, min(s.capacity-s.used(), s.ahead-s.unsent()))
}

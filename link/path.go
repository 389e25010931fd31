package link

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// path is the state of one path: its datagram numbers, both ways, its round
// trip, congestion window and MTU.
type path struct {
	id  uint8
	cfg *Config

	// usable is set when a datagram of this path has been acknowledged and it
	// has not failed since.
	usable   bool
	failures uint64

	sent     sentRing
	received received

	// What is to be acknowledged.
	ackAt       time.Duration // when at the latest, or Never
	ackCount    int           // datagrams that ask for it
	ackBytes    int
	largestCame time.Duration
	crowdedTo   time.Duration // until then acknowledge more often

	rtt        rttEstimate
	congestion congestion
	mtu        mtuSearch

	// Loss detection (RFC 9002 sections 5 and 6).
	largestAcked  uint64
	anyAcked      bool
	scan          uint64 // every record below it is acknowledged, lost or not eliciting
	threshold     uint64 // datagrams of reordering that are no loss
	eliciting     int    // datagrams in flight that ask for an answer
	lastEliciting time.Duration
	lossAt        time.Duration // when the oldest is lost by time, or Never
	probeTimeouts uint          // in a row
	probes        int           // datagrams to send whatever the window
	nextProbe     time.Duration // of an unusable path

	datagramsIn uint64
	row         int // size before the seal of the last datagram in a row of full ones; 0: there is none
}

const (
	// packetThreshold is kPacketThreshold of RFC 9002; a path that reorders
	// more teaches the link so, up to maxThreshold.
	packetThreshold = 3
	maxThreshold    = 128
	// failTimeouts in a row make a path fail when there is another one.
	failTimeouts = 3
	// probeInterval is how often a path that is not usable is tried.
	probeInterval = 50 * time.Millisecond
)

func (p *path) init(id uint8, cfg *Config) {
	*p = path{
		id: id, cfg: cfg, ackAt: machine.Never, lossAt: machine.Never, threshold: packetThreshold,
		congestion: newCongestion(cfg),
		mtu:        newMTUSearch(cfg.Paths[id].MTU),
	}
}

// fits reports whether the congestion window takes a full datagram. One is
// always allowed on an empty path.
func (p *path) fits() bool {
	return p.congestion.inFlight == 0 || p.congestion.inFlight+p.mtu.size <= p.congestion.cwnd
}

// score orders paths: the expected time until a datagram given to the path now
// has arrived.
func (p *path) score() time.Duration {
	load := float64(p.congestion.inFlight) / float64(p.congestion.cwnd)
	return p.rtt.srtt + time.Duration(load*float64(p.rtt.srtt))
}

// wake returns when the path's next timer runs off.
func (p *path) wake(l *Link) time.Duration {
	if p.probes > 0 {
		return 0
	}
	at := min(p.ackAt, p.timeout(), p.pingAt())
	if p.usable {
		at = min(at, p.mtu.probeAt())
	}
	return at
}

// timeout returns when loss detection acts next.
func (p *path) timeout() time.Duration {
	if p.lossAt != machine.Never {
		return p.lossAt
	}
	if p.eliciting == 0 {
		return machine.Never
	}
	backoff := min(p.rtt.probeTimeout(p.cfg.AckDelay)<<min(p.probeTimeouts, 16), p.cfg.DeadInterval/4)
	return p.lastEliciting + backoff
}

// pingAt returns when the path is to be pinged: a quiet one to know that it
// works, an unusable one to know that it works again.
func (p *path) pingAt() time.Duration {
	if p.usable {
		return p.lastEliciting + p.cfg.KeepAlive
	}
	return p.nextProbe
}

// trim drops records of datagrams that need no more attention. Lost ones stay
// for some probe timeouts, to tell spurious losses.
func (p *path) trim(now time.Duration) {
	p.sent.trim(now - 4*p.rtt.probeTimeout(p.cfg.AckDelay))
}

func (p *path) stats() PathStats {
	return PathStats{
		Usable: p.usable, MTU: p.mtu.size,
		SRTT: p.rtt.srtt, MinRTT: p.rtt.least, RTTVar: p.rtt.variation,
		Cwnd: p.congestion.cwnd, InFlight: p.congestion.inFlight,
		DatagramsSent: p.sent.next, DatagramsIn: p.datagramsIn, Failures: p.failures,
	}
}

// rttEstimate is that of RFC 9002 section 5.
type rttEstimate struct {
	sampled                        bool
	latest, srtt, variation, least time.Duration
}

const (
	// granularity is kGranularity of RFC 9002: timers of an operating system
	// that runs other things too are not finer.
	granularity = time.Millisecond
	// unknownTimeout is the probe timeout before the first sample: long for a
	// datacenter, short for a person.
	unknownTimeout = 20 * time.Millisecond
)

func (r *rttEstimate) sample(d, ackDelay time.Duration) {
	d = max(d, 1)
	r.latest = d
	if !r.sampled {
		*r = rttEstimate{sampled: true, latest: d, srtt: d, variation: d / 2, least: d}
		return
	}
	r.least = min(r.least, d)
	if d-ackDelay >= r.least {
		d -= ackDelay
	}
	diff := r.srtt - d
	if diff < 0 {
		diff = -diff
	}
	r.variation = (3*r.variation + diff) / 4
	r.srtt = (7*r.srtt + d) / 8
}

func (r *rttEstimate) probeTimeout(ackDelay time.Duration) time.Duration {
	if !r.sampled {
		return unknownTimeout
	}
	return r.srtt + max(4*r.variation, granularity) + ackDelay
}

// lossDelay is the age at which a datagram is lost when a later one has been
// acknowledged: 9/8 of the round trip.
func (r *rttEstimate) lossDelay() time.Duration {
	d := max(r.latest, r.srtt)
	return max(d+d/8, granularity)
}

package link

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// path is the state of one path: its datagram numbers in both directions, round
// trip, congestion window and MTU.
type path struct {
	id  uint8
	cfg *Config

	// usable is set when a datagram of this path has been acknowledged since the
	// path last failed.
	usable   bool
	failures uint64

	sent     sentRing
	received received

	// Acknowledgements to send.
	ackAt       time.Duration // deadline, or Never
	ackCount    int           // datagrams that ask for one
	ackBytes    int           // their size
	largestAt   time.Duration
	congestedTo time.Duration // until then, acknowledge more often
	marked      uint8         // datagrams that arrived with a mark, modulo 256

	rtt        rttEstimate
	congestion congestion
	pacer      pacer
	mtu        mtuSearch
	omission   omission
	ecn        ecn

	// Loss detection (RFC 9002 sections 5 and 6).
	largestAcked  uint64
	anyAcked      bool
	scan          uint64 // all records below it are acknowledged, lost or not eliciting
	reordering    reordering
	eliciting     int // datagrams in flight that ask for an answer
	lastEliciting time.Duration
	lossAt        time.Duration // when the oldest counts as lost by time, or Never
	probeTimeouts uint          // in a row
	probes        int           // datagrams to send regardless of the window
	nextProbe     time.Duration // of an unusable path
	telling       bool          // the next one tells the limit, see record.limit

	datagramsIn uint64
	runSize     int // size before the seal of the last datagram in a run of full ones; 0: no run
}

const (
	// failTimeouts is the number of consecutive probe timeouts after which a path
	// fails if another one is usable.
	failTimeouts = 3
	// probeInterval is the interval of the probes of an unusable path.
	probeInterval = 50 * time.Millisecond
)

func newPath(id uint8, cfg *Config) *path {
	mtu := cfg.Paths[id].MTU
	return &path{
		id: id, cfg: cfg, ackAt: machine.Never, lossAt: machine.Never,
		congestion: newCongestion(cfg, mtu), mtu: newMTUSearch(mtu),
	}
}

// fits reports whether the congestion window has room for a full datagram. An
// empty path always has.
func (p *path) fits() bool {
	return p.congestion.inFlight == 0 || p.congestion.inFlight+p.mtu.size <= p.congestion.cwnd
}

// score returns the expected time until a datagram that is sent now arrives.
func (p *path) score() time.Duration {
	load := float64(p.congestion.inFlight) / float64(p.congestion.cwnd)
	return p.rtt.srtt + time.Duration(load*float64(p.rtt.srtt))
}

// wake returns when the path's next timer expires.
func (p *path) wake(l *Link) time.Duration {
	if p.probes > 0 {
		return 0
	}
	at := min(p.ackAt, p.timeout(), p.pingAt())
	if p.usable {
		at = min(at, p.mtu.probeAt(), p.paceAt())
	}
	return at
}

// timeout returns the time of the next loss detection.
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

// pingAt returns the time of the next ping. Pings check that an idle path still
// works, and whether an unusable one works again.
func (p *path) pingAt() time.Duration {
	if p.usable {
		return p.lastEliciting + p.cfg.KeepAlive
	}
	return p.nextProbe
}

// trim drops the records of settled datagrams. Lost ones stay for some probe
// timeouts, to detect spurious losses.
func (p *path) trim(now time.Duration) {
	p.sent.trim(now - 4*p.rtt.probeTimeout(p.cfg.AckDelay))
}

func (p *path) stats() PathStats {
	return PathStats{
		Usable: p.usable, MTU: p.mtu.size,
		SRTT: p.rtt.srtt, MinRTT: p.rtt.least, RTTVar: p.rtt.variation,
		Cwnd: p.congestion.cwnd, InFlight: p.congestion.inFlight,
		DatagramsSent: p.sent.next - p.omission.count, DatagramsIn: p.datagramsIn, Failures: p.failures,
	}
}

// rttEstimate is the round-trip estimate of RFC 9002 section 5. No sample is above the dead
// interval: an answer that late tells of a machine that stood still, and of hours if both did.
type rttEstimate struct {
	sampled                        bool
	latest, srtt, variation, least time.Duration
}

const (
	// granularity is kGranularity of RFC 9002: the timer resolution of a loaded
	// operating system.
	granularity = time.Millisecond
	// unknownTimeout is the probe timeout before the first sample: many round
	// trips of a datacenter.
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
	r.variation = (3*r.variation + (r.srtt - d).Abs()) / 4
	r.srtt = (7*r.srtt + d) / 8
}

func (r *rttEstimate) probeTimeout(ackDelay time.Duration) time.Duration {
	if !r.sampled {
		return unknownTimeout
	}
	return r.srtt + max(4*r.variation, granularity) + ackDelay
}

// recent returns the round trip that a datagram takes now.
func (r *rttEstimate) recent() time.Duration { return max(r.latest, r.srtt) }

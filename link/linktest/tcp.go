package linktest

import (
	"math"
	"slices"
	"time"
)

// TCPFlow is the congestion control of a continuous TCP sender: slow start and
// recovery of RFC 5681 and RFC 6675 with selective acknowledgements, and the
// window of NewReno or of CUBIC (RFC 9438). It is the traffic that a link shares
// a network with.
type TCPFlow struct {
	Cubic bool
	MSS   int // payload of a segment in bytes; 40 of headers are added

	arrived          int
	cwnd, ssthresh   float64 // segments
	next             int     // number of the next segment
	acked            []bool  // by number
	sent             []time.Duration
	lost             []int // to retransmit
	una, high        int   // first unacknowledged segment; one above the highest acknowledged one
	scanned          int   // all below it are acknowledged or declared lost
	inFlight         int
	recover          int // a loss below it does not cut the window again
	srtt             time.Duration
	timeout          time.Duration // of the retransmission timer
	wMax, k, epochAt float64       // of CUBIC; seconds
	wEst             float64

	waiting  []int // at the receiver: segments to acknowledge
	expected int   // at the receiver: next segment
}

const (
	tcpHeaders  = 40
	tcpInitial  = 10  // RFC 6928
	cubicC      = 0.4 // RFC 9438 section 4.1
	cubicBeta   = 0.7
	renoBeta    = 0.5
	tcpRTO      = 200 * time.Millisecond // the minimum of Linux
	tcpReorders = 3
	// tcpDelayedAck is the minimum time that Linux waits for a second segment.
	tcpDelayedAck = 40 * time.Millisecond
)

// NewTCPFlow returns a flow at its start.
func NewTCPFlow(mss int, cubic bool) *TCPFlow {
	return &TCPFlow{Cubic: cubic, MSS: mss, cwnd: tcpInitial, ssthresh: math.MaxFloat64, timeout: math.MaxInt64}
}

// Arrived implements Flow.
func (f *TCPFlow) Arrived() int { return f.arrived }

// Pump implements Flow.
func (f *TCPFlow) Pump(s *Shared) time.Duration {
	if s.Now >= f.timeout {
		f.expire(s)
	}
	for f.inFlight < int(f.cwnd) {
		n := f.next
		if len(f.lost) > 0 {
			n, f.lost = f.lost[0], f.lost[1:]
			if f.acked[n] {
				continue
			}
		} else {
			f.next++
			f.acked, f.sent = append(f.acked, false), append(f.sent, 0)
		}
		f.sent[n] = s.Now
		f.inFlight++
		if f.timeout == math.MaxInt64 {
			f.timeout = s.Now + f.rto()
		}
		s.Forward(f.MSS+tcpHeaders, func() { f.receive(s, n) })
	}
	return f.timeout
}

// receive is the receiver: it acknowledges every second segment, and at once if
// one is missing (RFC 5681 section 4.2).
func (f *TCPFlow) receive(s *Shared, n int) {
	f.waiting = append(f.waiting, n)
	gap := n != f.expected
	f.expected = max(f.expected, n+1)
	if len(f.waiting) == 1 && !gap {
		s.events.Push(s.Now+tcpDelayedAck, func() { f.acknowledge(s, n) })
		return
	}
	f.acknowledge(s, n)
}

// acknowledge acknowledges the waiting segments if n is one of them.
func (f *TCPFlow) acknowledge(s *Shared, n int) {
	if !slices.Contains(f.waiting, n) {
		return
	}
	batch := f.waiting
	f.waiting = nil
	s.Back(func() {
		for _, n := range batch {
			f.ack(s, n)
		}
	})
}

func (f *TCPFlow) rto() time.Duration { return max(tcpRTO, 2*f.srtt) }

// expire declares all segments in flight lost.
func (f *TCPFlow) expire(s *Shared) {
	f.cut(s.Now, 0)
	f.cwnd = 1
	f.lost = f.lost[:0]
	for n := f.una; n < f.next; n++ {
		if !f.acked[n] {
			f.lost = append(f.lost, n)
		}
	}
	f.inFlight, f.scanned, f.high = 0, f.una, f.una
	f.timeout = s.Now + f.rto()
}

func (f *TCPFlow) ack(s *Shared, n int) {
	if f.acked[n] {
		return
	}
	f.acked[n] = true
	f.arrived += f.MSS
	f.inFlight = max(0, f.inFlight-1)
	rtt := s.Now - f.sent[n]
	if f.srtt == 0 {
		f.srtt = rtt
	}
	f.srtt = (7*f.srtt + rtt) / 8
	for f.una < f.next && f.acked[f.una] {
		f.una++
	}
	f.high = max(f.high, n+1)
	f.timeout = s.Now + f.rto()
	if n >= f.recover || f.cwnd < f.ssthresh {
		f.grow(s.Now)
	}
	for f.scanned = max(f.scanned, f.una); f.scanned < f.high-tcpReorders; f.scanned++ {
		m := f.scanned
		if f.acked[m] || f.sent[m] > f.sent[n] {
			continue
		}
		f.lost = append(f.lost, m)
		f.inFlight = max(0, f.inFlight-1)
		if m >= f.recover {
			f.cut(s.Now, f.next)
		}
	}
}

// cut reduces the window after a loss.
func (f *TCPFlow) cut(now time.Duration, recover int) {
	beta := renoBeta
	if f.Cubic {
		beta = cubicBeta
		f.wMax = f.cwnd
		f.k = math.Cbrt(f.wMax * (1 - cubicBeta) / cubicC)
		f.epochAt = now.Seconds()
		f.wEst = f.cwnd * beta
	}
	f.ssthresh = max(2, f.cwnd*beta)
	f.cwnd = f.ssthresh
	f.recover = recover
}

// grow grows the window for one acknowledged segment.
func (f *TCPFlow) grow(now time.Duration) {
	switch {
	case f.cwnd < f.ssthresh:
		f.cwnd++
	case !f.Cubic:
		f.cwnd += 1 / f.cwnd
	default:
		f.wEst += 3 * (1 - cubicBeta) / (1 + cubicBeta) / f.cwnd
		t := now.Seconds() - f.epochAt + f.srtt.Seconds() - f.k
		if target := cubicC*t*t*t + f.wMax; target > f.wEst {
			f.cwnd += max(0, min(target, 1.5*f.cwnd)-f.cwnd) / f.cwnd
		} else {
			f.cwnd = max(f.cwnd, f.wEst)
		}
	}
}

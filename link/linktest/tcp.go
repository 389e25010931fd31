package linktest

import (
	"math"
	"slices"
	"time"
)

// TCPFlow is a sender of TCP without end, as far as congestion goes: slow start
// and recovery of RFC 5681 and RFC 6675 with selective acknowledgements, and
// either the window of NewReno or that of CUBIC (RFC 9438). It is what a link has
// to share a network with.
type TCPFlow struct {
	Cubic bool
	MSS   int // payload of a segment in bytes; 40 of headers are added

	arrived          int
	cwnd, ssthresh   float64 // segments
	next             int     // number of the next segment
	acked            []bool  // by number
	sent             []time.Duration
	lost             []int // to be sent again
	una, high        int   // below una all are acknowledged; high: above the highest one that is
	scanned          int   // below it all are acknowledged or given up
	inFlight         int
	recover          int // a loss below it has been answered
	srtt             time.Duration
	timeout          time.Duration // when the retransmission timer runs off
	wMax, k, epochAt float64       // of CUBIC; seconds
	wEst             float64

	waiting  []int // at the receiver, to be acknowledged
	expected int   // by it
}

const (
	tcpHeaders  = 40
	tcpInitial  = 10  // RFC 6928
	cubicC      = 0.4 // RFC 9438 section 4.1
	cubicBeta   = 0.7
	renoBeta    = 0.5
	tcpRTO      = 200 * time.Millisecond // the least of Linux
	tcpReorders = 3
	// tcpDelayedAck is what Linux waits at least for a second segment.
	tcpDelayedAck = 40 * time.Millisecond
)

// NewTCPFlow makes one that has sent nothing yet.
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

// receive is the other end: it acknowledges every second segment, and at once
// when one is missing (RFC 5681 section 4.2).
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

// acknowledge sends what waits, if segment n still does.
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

// expire gives up all that is in flight.
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

// cut answers a loss.
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

// grow is one acknowledged segment.
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

package linktest

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// Shared is a network of several flows through one bottleneck, in virtual time. The
// bottleneck is a queue that drops arrivals when it is full, like a switch.
// Acknowledgements return by a path that only delays them.
type Shared struct {
	Now time.Duration
	// Rate is the bandwidth of the bottleneck in bytes per second, Queue the size
	// of its queue in bytes, Delay the one-way delay.
	Rate  float64
	Queue int
	Delay time.Duration
	// Mark is from how many bytes on in the queue datagrams of links that understand it are
	// marked (ECN), and others dropped (RFC 3168 section 5); 0: none.
	Mark int

	flows  []Flow
	busy   time.Duration
	events machine.Queue[func()]
}

// Flow is one user of a Shared.
type Flow interface {
	// Pump sends all that the flow may send now. It returns the time of the next
	// call if nothing arrives before.
	Pump(s *Shared) (wake time.Duration)
	// Arrived returns the number of payload bytes that have arrived.
	Arrived() int
}

// Add adds a flow to the network.
func (s *Shared) Add(f Flow) { s.flows = append(s.flows, f) }

// Forward sends n bytes through the bottleneck and calls arrive on their arrival.
// It returns false if the queue dropped them.
func (s *Shared) Forward(n int, arrive func()) bool {
	waiting := max(s.busy-s.Now, 0).Seconds() * s.Rate
	if int(waiting)+n > s.Queue {
		return false
	}
	s.busy = max(s.busy, s.Now) + time.Duration(float64(n)/s.Rate*float64(time.Second))
	s.events.Push(s.busy+s.Delay, arrive)
	return true
}

// marks reports whether the bottleneck marks a datagram of n bytes that it gets now.
func (s *Shared) marks(n int) bool {
	return s.Mark > 0 && int(max(s.busy-s.Now, 0).Seconds()*s.Rate)+n > s.Mark
}

// Back sends in the other direction and calls arrive on arrival.
func (s *Shared) Back(arrive func()) { s.events.Push(s.Now+s.Delay, arrive) }

// Run advances the time to until.
func (s *Shared) Run(until time.Duration) {
	for {
		at := until
		for _, f := range s.flows {
			at = min(at, f.Pump(s))
		}
		at = min(at, s.events.Wake())
		s.Now = max(s.Now, at)
		if s.Now >= until {
			return
		}
		for do, ok := s.events.Pop(s.Now); ok; do, ok = s.events.Pop(s.Now) {
			do()
		}
	}
}

// LinkFlow is a link whose host sends posted writes continuously.
type LinkFlow struct {
	Link [2]*link.Link
	// Every is the interval at which the host sends writes; 0: whenever the link
	// accepts one. With an interval, Delays holds the delay of each write that
	// has arrived.
	Every  time.Duration
	Delays []time.Duration
	// Burst is the number of writes at each interval; 0 is one.
	Burst int
	// Detour, if set, returns by how much the next datagram is delayed behind the
	// bottleneck. Different delays reorder.
	Detour func() time.Duration
	// HidesMarks makes the box tell of no mark.
	HidesMarks bool

	next    time.Duration   // time of the next write
	due     int             // writes of the current burst that the link has not taken
	sent    []time.Duration // send times of the writes in flight
	arrived int
	packet  tlp.Packet
	buf     []byte
	deliver func(*tlp.Packet)
	err     error
}

// NewLinkFlow returns a flow between two ends, with writes of the given size in
// bytes.
func NewLinkFlow(now time.Duration, ends [2]link.Config, size int) (*LinkFlow, error) {
	f := &LinkFlow{buf: make([]byte, 1<<16), packet: tlp.Packet{Type: tlp.MWr, Data: make([]byte, size)}}
	f.packet.SetMemory(1<<20, size)
	f.deliver = func(p *tlp.Packet) { f.arrived += len(p.Data) }
	for side := range f.Link {
		l, err := link.New(now, ends[side])
		if err != nil {
			return nil, err
		}
		f.Link[side] = l
	}
	return f, nil
}

// Arrived implements Flow.
func (f *LinkFlow) Arrived() int { return f.arrived }

// Err returns the error of the link's Send other than ErrFull, or nil.
func (f *LinkFlow) Err() error { return f.err }

// Pump implements Flow.
func (f *LinkFlow) Pump(s *Shared) time.Duration {
	f.feed(s.Now)
	for side, l := range f.Link {
		to := f.Link[1-side]
		for {
			n, path := l.Transmit(s.Now, f.buf)
			if n == 0 {
				break
			}
			datagram := slices.Clone(f.buf[:n])
			ecn := l.ECN()
			marked := Side(side) == Host && s.marks(n) || ecn == link.CE
			arrive := func() {
				if marked && !f.HidesMarks {
					to.Marked()
				}
				_ = to.Receive(s.Now, path, datagram, f.deliver)
				f.record(s.Now)
			}
			switch {
			case Side(side) == Box:
				s.Back(arrive)
			case f.Detour == nil:
				if ecn == link.NotECT && s.marks(n) {
					continue
				}
				s.Forward(n, arrive)
			default:
				late := f.Detour()
				s.Forward(n, func() { s.events.Push(s.Now+late, arrive) })
			}
		}
	}
	wake := min(f.Link[Host].Wake(), f.Link[Box].Wake())
	if f.Every > 0 && f.Link[Host].State() == link.Up && f.next > s.Now {
		wake = min(wake, f.next)
	}
	return wake
}

// feed gives the link the writes that are due.
func (f *LinkFlow) feed(now time.Duration) {
	if f.Link[Host].State() != link.Up {
		return
	}
	for f.err == nil && (f.Every == 0 || f.due > 0 || now >= f.next) {
		if f.Every > 0 && f.due == 0 {
			f.due = max(1, f.Burst)
			f.next = max(f.next, now-f.Every) + f.Every // writes that were due are made up for
		}
		err := f.Link[Host].Send(now, &f.packet)
		if err == link.ErrFull {
			return
		}
		f.err = err
		if f.Every > 0 {
			f.due--
			f.sent = append(f.sent, now)
		}
	}
}

// record records the delays of the writes that have arrived by now.
func (f *LinkFlow) record(now time.Duration) {
	arrived := f.arrived/len(f.packet.Data) - len(f.Delays)
	for ; f.Every > 0 && arrived > 0; arrived-- {
		f.Delays = append(f.Delays, now-f.sent[0])
		f.sent = f.sent[1:]
	}
}

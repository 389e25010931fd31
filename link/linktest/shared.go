package linktest

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// Shared is several flows through one bottleneck, in virtual time: a queue that
// drops what comes when it is full, as a switch has. Acknowledgements go back
// over a path that only takes time.
type Shared struct {
	Now time.Duration
	// Rate is that of the bottleneck in bytes per second, Queue how many bytes
	// wait for it, Delay what each direction takes.
	Rate  float64
	Queue int
	Delay time.Duration

	flows  []Flow
	busy   time.Duration
	events machine.Queue[func()]
}

// Flow is one user of a Shared.
type Flow interface {
	// Pump sends what may be sent now. It returns when it wants to be called
	// without anything arriving.
	Pump(s *Shared) (wake time.Duration)
	// Arrived returns how many bytes of payload have come.
	Arrived() int
}

// Add puts a flow into the network.
func (s *Shared) Add(f Flow) { s.flows = append(s.flows, f) }

// Forward sends n bytes through the bottleneck; arrive is called when they are
// through. It reports whether the queue took them.
func (s *Shared) Forward(n int, arrive func()) bool {
	waiting := max(s.busy-s.Now, 0).Seconds() * s.Rate
	if int(waiting)+n > s.Queue {
		return false
	}
	s.busy = max(s.busy, s.Now) + time.Duration(float64(n)/s.Rate*float64(time.Second))
	s.events.Push(s.busy+s.Delay, arrive)
	return true
}

// Back sends something the other way.
func (s *Shared) Back(arrive func()) { s.events.Push(s.Now+s.Delay, arrive) }

// Run lets time pass until the given moment.
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

// LinkFlow is a link whose host sends posted writes without end.
type LinkFlow struct {
	Link [2]*link.Link
	// Every makes the host send one write in such a time, and no more. Delays
	// are then how long each took that has come. 0: as many as the link takes.
	Every  time.Duration
	Delays []time.Duration

	next    time.Duration   // write is sent then
	sent    []time.Duration // of those under way
	arrived int
	packet  tlp.Packet
	buf     []byte
	deliver func(*tlp.Packet)
	err     error
}

// NewLinkFlow makes one of two ends' configurations, with writes of the given size.
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

// Err is why the link takes no more TLPs, nil while it does.
func (f *LinkFlow) Err() error { return f.err }

// Pump implements Flow.
func (f *LinkFlow) Pump(s *Shared) time.Duration {
	for f.Link[Host].State() == link.Up && f.err == nil && s.Now >= f.next {
		err := f.Link[Host].Send(s.Now, &f.packet)
		if err == link.ErrFull {
			break
		}
		f.err = err
		if f.Every > 0 {
			f.sent = append(f.sent, s.Now)
			f.next = max(f.next, s.Now-f.Every) + f.Every // what could not be sent is made up for
		}
	}
	for side, l := range f.Link {
		to := f.Link[1-side]
		for {
			n, path := l.Transmit(s.Now, f.buf)
			if n == 0 {
				break
			}
			datagram := slices.Clone(f.buf[:n])
			arrive := func() {
				_ = to.Receive(s.Now, path, datagram, f.deliver)
				f.note(s.Now)
			}
			if Side(side) == Host {
				s.Forward(n, arrive)
			} else {
				s.Back(arrive)
			}
		}
	}
	wake := min(f.Link[Host].Wake(), f.Link[Box].Wake())
	if f.Every > 0 && f.Link[Host].State() == link.Up && f.next > s.Now {
		wake = min(wake, f.next)
	}
	return wake
}

// note notes how long the writes took that have come by now.
func (f *LinkFlow) note(now time.Duration) {
	came := f.arrived/len(f.packet.Data) - len(f.Delays)
	for ; f.Every > 0 && came > 0; came-- {
		f.Delays = append(f.Delays, now-f.sent[0])
		f.sent = f.sent[1:]
	}
}

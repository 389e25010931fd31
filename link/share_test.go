package link_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
)

// jain returns Jain's index of fairness (RFC 5166 section 2.3.1): 1 if all shares
// are equal, 1/n if one flow has everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// A link shares a bottleneck evenly with other links and with CUBIC, the TCP of
// Linux. With NewReno, which cuts its window deeper, it shares like CUBIC.
func TestSharesABottleneck(t *testing.T) {
	const reno, cubic = "reno", "cubic"
	for _, c := range []struct {
		name  string
		links int
		late  bool // the last link starts long after the others
		tcp   []string
		mtu   int
		rtt   time.Duration
		queue int
		least float64 // index
	}{
		{"two links", 2, false, nil, jumbo, 200 * time.Microsecond, 256 << 10, 0.97},
		{"a link that comes late", 2, true, nil, jumbo, 200 * time.Microsecond, 256 << 10, 0.95},
		{"four links", 4, false, nil, ethernet, 200 * time.Microsecond, 256 << 10, 0.97},
		{"a link and CUBIC", 1, false, []string{cubic}, ethernet, time.Millisecond, 128 << 10, 0.9},
		{"a link and NewReno", 1, false, []string{reno}, ethernet, time.Millisecond, 128 << 10, 0.8},
		{"two links and two CUBIC", 2, false, []string{cubic, cubic}, ethernet, 200 * time.Microsecond, 256 << 10, 0.9},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &linktest.Shared{Rate: 1e9 / 8, Queue: c.queue, Delay: c.rtt / 2}
			var flows []linktest.Flow
			for i := range c.links {
				if c.late && i == c.links-1 {
					s.Run(500 * time.Millisecond)
				}
				f := linkFlow(t, s.Now, c.mtu)
				s.Add(f)
				flows = append(flows, f)
			}
			for _, kind := range c.tcp {
				f := linktest.NewTCPFlow(c.mtu-52, kind == cubic)
				s.Add(f)
				flows = append(flows, f)
			}
			// The first second does not count.
			s.Run(s.Now + time.Second)
			began, before := s.Now, make([]int, len(flows))
			for i, f := range flows {
				before[i] = f.Arrived()
			}
			s.Run(began + 2*time.Second)
			var shares []float64
			total := 0.0
			for i, f := range flows {
				share := float64(f.Arrived()-before[i]) / (s.Rate * (s.Now - began).Seconds())
				shares = append(shares, share)
				total += share
			}
			t.Logf("shares %.3f, sum %.3f, index %.3f", shares, total, jain(shares))
			if jain(shares) < c.least || total < 0.9 {
				t.Errorf("shares %.3f, sum %.3f, index %.3f: want a sum of 0.9 and an index of %v", shares, total, jain(shares), c.least)
			}
		})
	}
}

// A flooding flow takes nothing of another one's share: a neighbour that asks for
// less than its share gets all of it, delayed only by the queue.
func TestFloodLeavesANeighbourItsShare(t *testing.T) {
	const size = 4096
	for _, c := range []struct {
		name   string
		floods int
		part   float64 // of its fair share that the neighbour asks for
	}{
		{"one flood", 1, 0.5},
		{"three floods", 3, 0.1},
		{"seven floods", 7, 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &linktest.Shared{Rate: 1e9 / 8, Queue: 256 << 10, Delay: 100 * time.Microsecond}
			neighbour := linkFlow(t, s.Now, jumbo)
			neighbour.Every = time.Duration(size / (c.part * s.Rate / float64(c.floods+1)) * float64(time.Second))
			s.Add(neighbour)
			for range c.floods {
				s.Add(linkFlow(t, s.Now, jumbo))
			}
			s.Run(500 * time.Millisecond)
			began, before, settled := s.Now, neighbour.Arrived(), len(neighbour.Delays)
			s.Run(began + time.Second)
			asked := float64(s.Now-began) / float64(neighbour.Every) * size
			got := float64(neighbour.Arrived()-before) / asked
			delays := slices.Sorted(slices.Values(neighbour.Delays[settled:]))
			median, late := delays[len(delays)/2], delays[len(delays)*99/100]
			t.Logf("%.3f of what was asked for; median %v, 99 %% within %v", got, median, late)
			// A full queue delays by 2.1 ms. A dropped datagram is retransmitted a
			// round trip later, and may be dropped again.
			full := time.Duration(float64(s.Queue) / s.Rate * float64(time.Second))
			if got < 0.99 || median > full+s.Delay || late > 8*full {
				t.Errorf("%.3f of the requested rate, median %v, 99 %% within %v", got, median, late)
			}
		})
	}
}

func linkFlow(t *testing.T, now time.Duration, mtu int) *linktest.LinkFlow {
	t.Helper()
	ends := linktest.Ends(link.CipherNone, mtu)
	for i := range ends { // like the proxies
		ends[i].SendBuffer, ends[i].InitialCwnd = 1<<20, 256<<10
	}
	f, err := linktest.NewLinkFlow(now, ends, 4096)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

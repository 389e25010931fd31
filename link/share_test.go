package link_test

import (
	"fmt"
	"math/rand/v2"
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

// Reordering is no congestion, and no excuse: a link whose datagrams are late now and
// then shares a bottleneck with CUBIC as without, and sends next to nothing twice.
func TestReorderedLinkSharesWithCUBIC(t *testing.T) {
	const ms = time.Millisecond
	constant := func(d time.Duration) func(*rand.Rand) time.Duration {
		return func(*rand.Rand) time.Duration { return d }
	}
	spread := func(rng *rand.Rand) time.Duration { return time.Duration(rng.ExpFloat64() * float64(3*ms)) }
	for _, c := range []struct {
		name   string
		one    int // one of this number of datagrams is late
		late   func(*rand.Rand) time.Duration
		cubic  int
		share  [2]float64 // of the link, of the bottleneck
		resent float64    // most part of the datagrams
	}{
		{"none late", 1 << 30, constant(0), 1, [2]float64{0.3, 0.7}, 0.02},
		{"1 of 200 late", 200, constant(3 * ms), 1, [2]float64{0.3, 0.7}, 0.02},
		{"1 of 50 late", 50, constant(3 * ms), 1, [2]float64{0.3, 0.7}, 0.02},
		{"1 of 50 late by very different times", 50, spread, 1, [2]float64{0.1, 0.65}, 0.03},
		// More than the link waits for: it takes them for losses, and for congestion.
		{"1 of 50 very late", 50, constant(12 * ms), 1, [2]float64{0.02, 0.65}, 0.05},
		{"1 of 100 late, beside four", 100, constant(3 * ms), 4, [2]float64{0.1, 0.4}, 0.04},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s, seed %d", c.name, seed), func(t *testing.T) {
				t.Parallel()
				s := &linktest.Shared{Rate: 1e9 / 8, Queue: 256 << 10, Delay: 100 * time.Microsecond}
				f, err := linktest.NewLinkFlow(0, linktest.Ends(link.CipherNone, ethernet), 4096)
				if err != nil {
					t.Fatal(err)
				}
				rng := rand.New(rand.NewPCG(seed, 5))
				passed := rng.IntN(c.one)
				f.Detour = func() time.Duration {
					if passed++; passed%c.one > 0 {
						return 0
					}
					return c.late(rng)
				}
				s.Add(f)
				var tcp []*linktest.TCPFlow
				for range c.cubic {
					x := linktest.NewTCPFlow(ethernet-52, true)
					s.Add(x)
					tcp = append(tcp, x)
				}
				arrived := func() (linkBytes, tcpBytes int) {
					for _, x := range tcp {
						tcpBytes += x.Arrived()
					}
					return f.Arrived(), tcpBytes
				}
				s.Run(300 * time.Millisecond) // does not count
				link0, tcp0 := arrived()
				before := f.Link[linktest.Host].Stats()
				s.Run(1800 * time.Millisecond)
				link1, tcp1 := arrived()
				whole := s.Rate * 1.5
				share, others := float64(link1-link0)/whole, float64(tcp1-tcp0)/whole
				st := f.Link[linktest.Host].Stats()
				resent := float64(st.LostDatagrams-before.LostDatagrams) / float64(st.DatagramsSent-before.DatagramsSent)
				t.Logf("link %.3f, CUBIC %.3f; %.4f resent, of them %d needlessly", share, others, resent, st.SpuriousLosses)
				if share < c.share[0] || share > c.share[1] || share+others < 0.9 || resent > c.resent {
					t.Errorf("the link has %.3f of the bottleneck, CUBIC %.3f, and %.4f of its datagrams are sent again: want %v, the rest of 0.9, and at most %v",
						share, others, resent, c.share, c.resent)
				}
			})
		}
	}
}

// Eight links that begin to send at the same time, again and again, lose little at
// the short queue of one port of a switch.
func TestBurstsAtOnePort(t *testing.T) {
	const writes = 4096
	for _, c := range []struct {
		links, burst, queue int
		lost                float64 // most part of the datagrams
		slower              float64 // most median time for a burst, in times of the bottleneck alone
	}{
		{1, 1 << 20, 256 << 10, 0.02, 1.3},
		{8, 128 << 10, 512 << 10, 0.03, 2},
		{8, 256 << 10, 512 << 10, 0.04, 2},
		{8, 1 << 20, 512 << 10, 0.04, 1.3},
		{8, 1 << 20, 2 << 20, 0.02, 1.3},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%d links, %d KiB, queue %d KiB, seed %d", c.links, c.burst>>10, c.queue>>10, seed), func(t *testing.T) {
				t.Parallel()
				s := &linktest.Shared{Rate: 10e9 / 8, Queue: c.queue, Delay: 20 * time.Microsecond}
				rng := rand.New(rand.NewPCG(seed, 6))
				var flows []*linktest.LinkFlow
				for range c.links {
					f := linkFlow(t, 0, jumbo)
					f.Every, f.Burst = 100*time.Millisecond, c.burst/writes
					f.Detour = func() time.Duration { return time.Duration(rng.IntN(1000)) } // else the same link always comes first
					s.Add(f)
					flows = append(flows, f)
				}
				s.Run(5 * time.Second)
				var lost, sent uint64
				var took []time.Duration // by the last write of each burst
				for _, f := range flows {
					st := f.Link[linktest.Host].Stats()
					lost, sent = lost+st.LostDatagrams, sent+st.DatagramsSent
					for last := f.Burst - 1; last < len(f.Delays); last += f.Burst {
						took = append(took, f.Delays[last])
					}
				}
				slices.Sort(took)
				ideal := time.Duration(float64(c.links*c.burst) / s.Rate * float64(time.Second))
				median := took[len(took)/2]
				part := float64(lost) / float64(sent)
				t.Logf("%.4f lost; median %v, worst %v, bottleneck alone %v", part, median, took[len(took)-1], ideal)
				if part > c.lost || median > time.Duration(c.slower*float64(ideal)) {
					t.Errorf("%.4f of the datagrams are lost and a burst takes %v: want at most %v and %v times %v", part, median, c.lost, c.slower, ideal)
				}
			})
		}
	}
}

func linkFlow(t *testing.T, now time.Duration, mtu int) *linktest.LinkFlow {
	t.Helper()
	ends := linktest.Ends(link.CipherNone, mtu)
	for i := range ends { // like the proxies
		ends[i].SendBuffer, ends[i].InitialCwnd = 1<<20, 80<<10
	}
	f, err := linktest.NewLinkFlow(now, ends, 4096)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

package link_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// A read behind a stream of posted writes waits for the queue of the network, a round trip
// and about a millisecond, not for a full send buffer, and the stream fills the path.
func TestReadBehindWrites(t *testing.T) {
	const queue = 256 << 10 // of the bottleneck
	for _, tc := range []struct {
		rate float64 // bytes per second
		rtt  time.Duration
	}{
		{12.5e6, 200 * time.Microsecond},
		{125e6, 200 * time.Microsecond},
		{125e6, 5 * time.Millisecond},
		{1250e6, 200 * time.Microsecond},
	} {
		t.Run(fmt.Sprintf("%.0f Mb per s, %v", tc.rate*8/1e6, tc.rtt), func(t *testing.T) {
			spent := func(size int) time.Duration { return time.Duration(float64(size) / tc.rate * 1e9) }
			delay := plan(t, fmt.Sprintf("delay=%v", tc.rtt/2))
			n := up(t, linktest.Config{
				Ends:  linktest.Ends(link.CipherNone, ethernet),
				Paths: []linktest.Path{{Rate: tc.rate, Queue: queue, Plans: [2]fault.Plan{delay, delay}}},
			}, "")
			bytes, arrived := 0, false
			n.OnDeliver = func(_ linktest.Side, p *tlp.Packet) {
				bytes += len(p.Data)
				arrived = arrived || p.Type == tlp.MRd
			}
			stream := func(end time.Duration) {
				for n.Now < end && !arrived {
					feed(t, n)
					n.RunUntil(min(end, n.Now+50*time.Microsecond), func() bool { return arrived })
				}
			}
			measured := min(500*time.Millisecond, max(spent(25<<20), 10*tc.rtt))
			stream(n.Now + measured) // past slow start
			bytes = 0
			stream(n.Now + measured)
			if share := float64(bytes) / (tc.rate * measured.Seconds()); share < 0.8 {
				t.Errorf("the stream has %.2f of the path", share)
			}
			limit := spent(queue) + 2*tc.rtt + 2*time.Millisecond + spent(128<<10)
			var longest time.Duration
			for range 20 {
				read := tlp.Packet{Type: tlp.MRd, Length: 1, FirstBE: 15, Requester: 0x100}
				at := n.Now
				for arrived = false; n.Send(linktest.Host, &read) == link.ErrFull; {
					n.Run(n.Now + 10*time.Microsecond)
				}
				if stream(n.Now + time.Second); !arrived {
					t.Fatal("the read does not arrive within a second")
				}
				longest = max(longest, n.Now-at)
				arrived = false
				stream(n.Now + 3*time.Millisecond)
			}
			t.Logf("a read takes up to %v, limit %v", longest, limit)
			if longest > limit {
				t.Errorf("a read takes %v behind writes, want at most %v", longest, limit)
			}
		})
	}
}

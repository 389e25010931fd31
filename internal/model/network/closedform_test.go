package network_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/network"
)

// readBound is the rate of reads in closed form, in bytes per second: the windows in a round
// trip without load, or the busiest of the links and proxies, each of which takes a fixed time
// for a packet.
// turn is the time in which all packets that are in flight have passed.
func readBound(s *network.Spec) (rate float64, turn time.Duration) {
	payload := float64(min(s.TLPs*min(int(s.MRRS), s.MPS), int(s.Window())))
	completion, request := payload+float64(s.Header), float64(s.Header)
	n := float64(s.GPUs)
	trip := s.RTT().Seconds()
	busiest := 0.0 // seconds for a packet
	station := func(seconds, shared float64) {
		trip += seconds
		busiest = max(busiest, seconds/shared)
	}
	station(request/s.BoxLink, 1)     // the box's link out
	station(request/s.HostLink, 1)    // the port to the host
	station(completion/s.HostLink, 1) // the host's link out
	station(completion/s.BoxLink, 1)  // the port to the box
	station(payload/s.GPULink, n)     // a link of each GPU
	if s.InProcess > 0 {
		busiest = max(busiest, 2*s.Conversion.Seconds()/float64(s.InProcess)) // both directions
	}
	packets := float64(int(s.Window()) / int(payload))
	return payload * min(n*packets/trip, 1/busiest), time.Duration(max(trip, n*packets*busiest) * float64(time.Second))
}

// drawSpec returns GPUs of one box that read from one host.
func drawSpec(rng *rand.Rand) network.Spec {
	s := paper(1 + rng.IntN(8))
	s.Tags = 1 + rng.IntN(256)
	s.TLPs, s.Header = 1+rng.IntN(8), 1+rng.IntN(100)
	s.Memory, s.Wire, s.Conversion = time.Duration(rng.IntN(3000)), time.Duration(1+rng.IntN(20_000)), time.Duration(1+rng.IntN(2000))
	s.GPULink, s.HostLink, s.BoxLink = 1e9+3e10*rng.Float64(), 1e9+5e10*rng.Float64(), 1e9+5e10*rng.Float64()
	s.InProcess = []int{0, 1, 4, 64, 1000}[rng.IntN(5)]
	_, turn := readBound(&s)
	s.Time = 6 * turn // a queue that is filled at once needs some turns to become even
	return s
}

// Reads of GPUs behind one proxy flow at the rate of the closed form, whatever bounds them.
func TestReadsAgreeWithClosedForm(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 51))
		s := drawSpec(rng)
		want, _ := readBound(&s)
		got := float64(measure(t, s).Total.In)
		if off := got/want - 1; off < -0.05 || off > 0.02 {
			t.Errorf("seed %d: %.3g bytes a second, %.3g in closed form (%+.1f %%): %+v", seed, got, want, 100*off, s)
		}
	}
}

// A longer wire, fewer tags, fewer packets in process and slower links make no rate higher,
// nor do losses.
func TestRatesAreMonotone(t *testing.T) {
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 52))
		s := drawSpec(rng)
		best := float64(measure(t, s).Total.In)
		for name, worse := range map[string]func(s *network.Spec){
			"wire": func(s *network.Spec) { s.Wire *= 3 }, "tags": func(s *network.Spec) { s.Tags = (s.Tags + 1) / 2 },
			"process": func(s *network.Spec) { s.InProcess = max(min(s.InProcess, 64)/2, 1) }, "link": func(s *network.Spec) { s.HostLink /= 2 },
			"loss": func(s *network.Spec) { s.Loss = 0.05 },
		} {
			w := s
			worse(&w)
			_, turn := readBound(&w)
			w.Time = max(w.Time, 6*turn)
			if got := float64(measure(t, w).Total.In); got > best*1.01 {
				t.Errorf("seed %d, %s: %.4g bytes a second instead of %.4g: %+v", seed, name, got, best, s)
			}
		}
	}
}

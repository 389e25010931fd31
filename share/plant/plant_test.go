package plant_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/plant"
)

const us = time.Microsecond

var small = share.Device{SMs: 10, ThreadsPerSM: 1024, Memory: 1 << 30}

// kernel fills sms multiprocessors of the small device for waves × 100 µs.
func kernel(sms, waves int64, memory share.PPM) plant.Kernel {
	return plant.Kernel{Blocks: sms * waves * 2, Occupancy: 2, BlockTime: 100 * us, Memory: memory}
}

// finish runs the GPU until it is idle and returns when each launch of each client ended.
func finish(g *plant.GPU) map[share.ClientID][]time.Duration {
	out := map[share.ClientID][]time.Duration{}
	for at := g.Wake(); at != machine.Never; at = g.Wake() {
		g.Advance(at)
		for _, d := range g.Take() {
			out[d.Client] = append(out[d.Client], at)
		}
	}
	return out
}

func newGPU(x share.Execution, clients ...share.ClientID) *plant.GPU {
	g := plant.New(plant.Default(small, x))
	for _, c := range clients {
		g.Attach(c)
	}
	return g
}

func TestKernelAlone(t *testing.T) {
	for _, tc := range []struct {
		name   string
		kernel plant.Kernel
		sms    int32
		alone  time.Duration
	}{
		{"one block", plant.Kernel{Blocks: 1, Occupancy: 2, BlockTime: us}, 1, us},
		{"one wave", kernel(10, 1, 0), 10, 100 * us},
		{"one block more", plant.Kernel{Blocks: 21, Occupancy: 2, BlockTime: us}, 10, 2 * us},
		{"three waves", kernel(10, 3, 0), 10, 300 * us},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if n := tc.kernel.SMs(small); n != tc.sms {
				t.Errorf("%d multiprocessors, want %d", n, tc.sms)
			}
			if d := tc.kernel.Alone(small); d != tc.alone {
				t.Errorf("alone %v, want %v", d, tc.alone)
			}
			g := newGPU(share.OneContext, 1)
			g.Submit(0, 1, 1, tc.kernel, false, 0)
			if got := finish(g)[1][0]; got != tc.alone {
				t.Errorf("it took %v, want %v", got, tc.alone)
			}
		})
	}
}

// Kernels of two clients run side by side as far as there are multiprocessors; those
// of one client run one after another.
func TestSideBySide(t *testing.T) {
	g := newGPU(share.OneContext, 1, 2)
	g.Submit(0, 1, 1, kernel(5, 1, 0), false, 0)
	g.Submit(0, 1, 2, kernel(5, 1, 0), false, 0)
	g.Submit(0, 2, 1, kernel(5, 1, 0), false, 0)
	done := finish(g)
	if done[1][0] != 100*us || done[1][1] != 200*us || done[2][0] != 100*us {
		t.Errorf("ended at %v", done)
	}
}

// A launch of high priority takes the multiprocessors that become free, not those in use.
func TestPriority(t *testing.T) {
	g := newGPU(share.OneContext, 1, 2)
	g.Submit(0, 1, 1, kernel(10, 3, 0), false, 0)
	g.Submit(50*us, 2, 1, kernel(10, 1, 0), true, 0)
	done := finish(g)
	if done[2][0] != 200*us || done[1][0] != 400*us {
		t.Errorf("ended at %v", done)
	}
}

func TestShareOfMultiprocessors(t *testing.T) {
	g := newGPU(share.OneContext, 1)
	g.SetShare(0, 1, share.Percent(50))
	g.Submit(0, 1, 1, kernel(10, 1, 0), false, 0)
	if done := finish(g); done[1][0] != 200*us {
		t.Errorf("ended at %v: on half of the multiprocessors it takes two waves", done)
	}
	if u := g.Usage(1); u.Busy != 200*us || u.SMTime != 1000*us {
		t.Errorf("usage %+v", u)
	}
}

// Two kernels that each need 80 % of the bandwidth wait longer for memory; in
// partitions they have bandwidth of their own.
func TestBandwidth(t *testing.T) {
	g := newGPU(share.OneContext, 1, 2)
	k := kernel(5, 1, share.Percent(80))
	g.Submit(0, 1, 1, k, false, 0)
	g.Submit(0, 2, 1, k, false, 0)
	// Demand 160 %, and 3 % for the neighbour: 0.2 + 0.8·1.63 = 1.504.
	if at := finish(g)[1][0]; at < 150400 || at > 150401 {
		t.Errorf("ended at %v, want 150.4 µs", at)
	}
	g = newGPU(share.Partitions, 1, 2)
	g.SetShare(0, 1, share.Percent(50))
	g.SetShare(0, 2, share.Percent(50))
	k = kernel(5, 1, share.Percent(40))
	g.Submit(0, 1, 1, k, false, 0)
	g.Submit(0, 2, 1, k, false, 0)
	if done := finish(g); done[1][0] != 100*us || done[2][0] != 100*us {
		t.Errorf("partitions disturb each other: ended at %v", done)
	}
}

// Contexts do not run side by side, and a switch takes time.
func TestContexts(t *testing.T) {
	g := newGPU(share.Contexts, 1, 2)
	g.Submit(0, 1, 1, kernel(5, 1, 0), false, 0)
	g.Submit(0, 2, 1, kernel(5, 1, 0), false, 0)
	done := finish(g) // 30 µs for the first context too
	if done[1][0] != 130*us || done[2][0] != 260*us {
		t.Errorf("ended at %v", done)
	}
}

// A context gives way after its slice while another one has work.
func TestSlice(t *testing.T) {
	g := newGPU(share.Contexts, 1, 2)
	for i := range share.LaunchID(60) {
		g.Submit(0, 1, i+1, kernel(10, 1, 0), false, 0)
	}
	g.Submit(0, 2, 1, kernel(10, 1, 0), false, 0)
	done := finish(g)
	if at := done[2][0]; at != 30*us+2000*us+30*us+100*us {
		t.Errorf("the other context ended at %v, want after a slice", at)
	}
}

// Preempt loses the blocks that run and keeps those that ended.
func TestPreempt(t *testing.T) {
	g := newGPU(share.OneContext, 1, 2)
	g.Submit(0, 1, 1, kernel(10, 3, 0), false, 0)
	g.Submit(0, 1, 2, kernel(10, 1, 0), false, 0)
	killed := g.Preempt(150*us, 1)
	if len(killed) != 2 || killed[0].Launch != 1 || killed[0].Blocks != 40 || killed[1].Blocks != 20 {
		t.Errorf("killed %+v, want 40 blocks of launch 1 and 20 of launch 2", killed)
	}
	g.Submit(150*us, 2, 1, kernel(10, 1, 0), true, 0)
	if done := finish(g); done[2][0] != 260*us { // after the reset of 10 µs
		t.Errorf("ended at %v", done)
	}
}

// Work is neither lost nor done twice, whatever happens: each launch completes once, or
// is killed, or goes with its client.
func TestWorkIsConserved(t *testing.T) {
	for seed := range uint64(30) {
		for _, x := range []share.Execution{share.Contexts, share.OneContext, share.Partitions} {
			rng := rand.New(rand.NewPCG(seed, uint64(x)))
			g := newGPU(x, 1, 2, 3)
			for c := range share.ClientID(3) {
				g.SetShare(0, c+1, share.Percent(33))
			}
			pending := map[share.ClientID]map[share.LaunchID]bool{1: {}, 2: {}, 3: {}}
			take := func() {
				for _, d := range g.Take() {
					if !pending[d.Client][d.Launch] {
						t.Fatalf("launch %d of client %d ended twice", d.Launch, d.Client)
					}
					delete(pending[d.Client], d.Launch)
				}
			}
			now := time.Duration(0)
			for i := range share.LaunchID(300) {
				now += time.Duration(rng.IntN(100)) * us
				c := share.ClientID(1 + rng.IntN(3))
				switch rng.IntN(10) {
				case 0:
					for _, k := range g.Preempt(now, c) {
						delete(pending[c], k.Launch)
					}
				case 1:
					g.SetSpeed(now, c, share.PPM(rng.IntN(1_000_000)))
				default:
					pending[c][i] = true
					g.Submit(now, c, i, kernel(int64(1+rng.IntN(20)), 1, share.PPM(rng.IntN(1_000_000))), rng.IntN(2) == 0, int32(rng.IntN(10)))
				}
				take()
			}
			for at := g.Wake(); at != machine.Never; at = g.Wake() {
				g.Advance(at)
				take()
			}
			for c, left := range pending {
				if len(left) > 0 {
					t.Errorf("seed %d, %v: client %d has %d launches that never end", seed, x, c, len(left))
				}
			}
		}
	}
}

// A preemption loses the blocks that run, and no more.
func TestPreemptCountsTheBlocksThatRun(t *testing.T) {
	g := newGPU(share.OneContext, 1)
	g.Submit(0, 1, 1, plant.Kernel{Blocks: 21, Occupancy: 2, BlockTime: 100 * us}, false, 0)
	if got := g.Preempt(150*us, 1); len(got) != 1 || got[0].Blocks != 1 {
		t.Errorf("killed: %+v, want one launch with the one block of its second wave", got)
	}
}

package share_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Placements of MIG instances never overlap, move no pinned instance, and move others
// only when there is no other way.
func TestPlanMIG(t *testing.T) {
	at := func(profile, start int, pinned bool) share.MIGInstance {
		return share.MIGInstance{Profile: profile, Start: start, Pinned: pinned}
	}
	for _, tc := range []struct {
		name    string
		current []share.MIGInstance
		want    []int
		moves   int // -1: does not fit
	}{
		{"seven small ones", nil, []int{0, 0, 0, 0, 0, 0, 0}, 0},
		{"eight small ones", nil, []int{0, 0, 0, 0, 0, 0, 0, 0}, -1},
		{"4g beside 3g", []share.MIGInstance{at(3, 4, true)}, []int{4}, 0},
		{"4g where 3g lies", []share.MIGInstance{at(3, 0, false)}, []int{4}, 1},
		{"4g where 3g lies, in use", []share.MIGInstance{at(3, 0, true)}, []int{4}, -1},
		{"3g with 1g in each half", []share.MIGInstance{at(0, 1, true), at(0, 5, false)}, []int{3}, 1},
		{"whole GPU beside one", []share.MIGInstance{at(0, 6, false)}, []int{5}, -1},
		{"no such profile", nil, []int{9}, -1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			kept, placed, ok := share.MIGA100.Plan(tc.current, tc.want)
			if ok != (tc.moves >= 0) {
				t.Fatalf("fits: %v", ok)
			}
			var used uint
			for _, i := range append(kept, placed...) {
				mask := uint(1<<share.MIGProfiles[i.Profile].Size-1) << i.Start
				if used&mask != 0 || mask >= 1<<8 {
					t.Errorf("instances overlap, or one leaves the GPU: %+v %+v", kept, placed)
				}
				used |= mask
			}
			moves := 0
			for n := range kept {
				if kept[n].Start != tc.current[n].Start {
					moves++
				}
			}
			if ok && moves != tc.moves {
				t.Errorf("%d moves, want %d", moves, tc.moves)
			}
		})
	}
}

// Match finds the best matching: checked against all of them.
func TestMatchAgainstAllMatchings(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := make([][]int64, 1+rng.IntN(5))
		columns := 1 + rng.IntN(5)
		for i := range w {
			for range columns {
				x := rng.Int64N(100) - 20
				if rng.IntN(5) == 0 {
					x = share.Forbidden
				}
				w[i] = append(w[i], x)
			}
		}
		got, err := share.Match(w)
		if err != nil {
			t.Fatal(err)
		}
		sum, taken := int64(0), map[int]bool{}
		for i, j := range got {
			if j < 0 {
				continue
			}
			if taken[j] || w[i][j] == share.Forbidden {
				t.Fatalf("seed %d: %v takes a column twice or a forbidden pair", seed, got)
			}
			taken[j] = true
			sum += w[i][j]
		}
		if want := bestMatching(w, 0, 0); sum != want {
			t.Fatalf("seed %d: %v has the weight %d, want %d", seed, got, sum, want)
		}
	}
	if _, err := share.Match([][]int64{{1, 2}, {3}}); err == nil {
		t.Error("rows of different lengths are accepted")
	}
}

func bestMatching(w [][]int64, row int, used uint) int64 {
	if row == len(w) {
		return 0
	}
	best := bestMatching(w, row+1, used)
	for j, x := range w[row] {
		if used&(1<<j) == 0 && x != share.Forbidden {
			best = max(best, x+bestMatching(w, row+1, used|1<<j))
		}
	}
	return best
}

func TestSysMonitor(t *testing.T) {
	var m share.SysMonitor
	fine := share.Sample{Clock: share.Whole, Temperature: 60}
	hot := share.Sample{Clock: share.Whole, Temperature: 95}
	now := time.Duration(0)
	step := func(s share.Sample, d time.Duration, want share.Health) {
		t.Helper()
		for end := now + d; now < end; now += 100 * time.Millisecond {
			m.Observe(now, s, share.A100)
		}
		if got := m.State(); got != want {
			t.Errorf("at %v: %v, want %v", now, got, want)
		}
	}
	step(fine, 500*time.Millisecond, share.HealthInit)
	step(fine, time.Second, share.Healthy)
	step(hot, 200*time.Millisecond, share.HealthOverlimit)
	step(fine, 1200*time.Millisecond, share.Healthy)
	step(hot, 2500*time.Millisecond, share.HealthUnhealthy)
	step(fine, 5*time.Second, share.HealthUnhealthy) // hysteresis
	step(fine, 6*time.Second, share.Healthy)
	m.Fail(share.FaultDevice)
	step(fine, 20*time.Second, share.HealthDisabled)
	m.Fail(share.FaultCleared)
	step(fine, 2*time.Second, share.Healthy)
}

// The limit of gemini holds over each window of ten seconds, whatever the client does, for
// kernels that take no longer than their profile says.
func TestGeminiLimitHoldsOverTheWindow(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := newChecker(t, "gemini", share.A100)
		limit := share.Percent(10 + rng.IntN(60))
		c.join(1, share.ClientSpec{Limit: limit})
		c.join(2, share.ClientSpec{})
		const window, tick = 1000, 10 * time.Millisecond
		var busy [4000]bool
		for i := range busy {
			for id := share.ClientID(1); id <= 2; id++ {
				if rng.IntN(8) > 0 {
					c.launch(id, share.Kernel{Blocks: 1, Expected: tick})
				}
			}
			c.decide()
			id := share.ClientID(1)
			if len(c.clients[2].flights) > 0 {
				id = 2
			}
			busy[i] = len(c.clients[1].flights) > 0
			c.now += tick
			c.complete(id, tick)
			c.decide()
		}
		used := 0
		for i := range busy {
			if busy[i] {
				used++
			}
			if i >= window && busy[i-window] {
				used--
			}
			if got := share.PPM(used) * share.Whole / window; got > limit {
				t.Fatalf("seed %d: %d ppm in the window before %v, limit %d", seed, got, time.Duration(i)*tick, limit)
			}
		}
	}
}

func TestBalancer(t *testing.T) {
	var b share.Balancer
	now, moves := time.Duration(0), 0
	for range 60 { // 15 seconds of imbalance: a move, and others after the rest
		now += share.BalancePeriod
		if from, to, ok := b.Observe(now, []int{1, 3, 0}); ok {
			moves++
			if from != 1 || to != 2 {
				t.Errorf("a move from %d to %d", from, to)
			}
		}
	}
	if moves != 3 {
		t.Errorf("%d moves in 15 seconds, want 3", moves)
	}
	for range 60 {
		now += share.BalancePeriod
		if _, _, ok := b.Observe(now, []int{1, 2, 1}); ok {
			t.Error("a move although no GPU is idle")
		}
	}
}

func TestPlaceSharePod(t *testing.T) {
	gpus := []share.VGPU{{Device: share.A100}, {Device: share.A100}, {Device: share.A100}}
	place := func(p share.SharePod, want int) {
		t.Helper()
		i, ok := share.PlaceSharePod(gpus, p)
		if ok != (want >= 0) || ok && i != want {
			t.Fatalf("%+v on GPU %d, %v; want %d", p, i, ok, want)
		}
		if ok {
			gpus[i].Pods = append(gpus[i].Pods, p)
		}
	}
	half := share.Percent(50)
	place(share.SharePod{Request: half}, 0)
	place(share.SharePod{Request: share.Percent(30)}, 0)                        // best fit
	place(share.SharePod{Request: share.Percent(10), Affinity: "a"}, 1)         // worst fit
	place(share.SharePod{Request: share.Percent(10), Affinity: "a"}, 1)         // with its label
	place(share.SharePod{Request: share.Whole, Affinity: "a"}, -1)              // no room beside its label
	place(share.SharePod{Request: share.Percent(5), AntiAffinity: "b"}, 0)      // best fit
	place(share.SharePod{Request: share.Percent(5), AntiAffinity: "b"}, 1)      // apart
	place(share.SharePod{Request: share.Percent(5), Exclusion: "c"}, 2)         // an empty one
	place(share.SharePod{Request: share.Percent(5)}, 0)                         // not with the exclusive one
	place(share.SharePod{Request: share.Percent(5), Memory: math.MaxInt64}, -1) // more memory than there is
}

// The tuner comes near the minimum of convex costs, wherever it lies.
func TestBatchTuner(t *testing.T) {
	for _, noise := range []float64{50, 300, 1200, 5000} {
		tuner := share.NewBatchTuner(64)
		cost := func(b int) float64 { return share.StatisticalCost(20+1.5*float64(b), float64(b), 64, noise) }
		rounds := 0
		for b, ok := tuner.Next(); ok; b, ok = tuner.Next() {
			tuner.Observe(b, cost(b))
			if rounds++; rounds > 50 {
				t.Fatal("the search does not end")
			}
		}
		least := math.Inf(1)
		for b := 42; b <= 128; b += 2 {
			least = min(least, cost(b))
		}
		if got := cost(tuner.Best()); got > 1.02*least {
			t.Errorf("noise %v: batch size %d costs %v, the least is %v", noise, tuner.Best(), got, least)
		}
	}
	tuner := share.NewBatchTuner(-5)
	tuner.Observe(1, math.NaN())
	if b, ok := tuner.Next(); b != 1 || !ok {
		t.Errorf("after a reading that is no number: %d, %v", b, ok)
	}
}

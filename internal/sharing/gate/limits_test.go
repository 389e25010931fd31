package gate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/share"
)

// ranBetween returns how long kernels of a program ran in a time.
func (p *program) ranBetween(from, to time.Duration) (sum time.Duration) {
	for _, s := range p.spans {
		if a, b := max(s[0], from), min(s[1], to); b > a {
			sum += b - a
		}
	}
	return sum
}

// most returns the longest time for which kernels of a program ran in ten seconds.
func (p *program) most(until time.Duration) (most time.Duration) {
	for at := 10 * time.Second; at <= until; at += time.Second {
		most = max(most, p.ranBetween(at-10*time.Second, at))
	}
	return most
}

// lies are what programs may tell of their launches. The last one is none: a program need not
// measure its launches.
var lies = map[string]func(p *program){
	"too little": func(p *program) { p.tell = func(time.Duration) time.Duration { return 1 } },
	"half":       func(p *program) { p.tell = func(ran time.Duration) time.Duration { return ran / 2 } },
	"too much":   func(p *program) { p.tell = func(time.Duration) time.Duration { return time.Hour } },
	"twice":      func(p *program) { p.twice = true },
	"few blocks": func(p *program) { p.blocks = 1 },
	"many":       func(p *program) { p.blocks = 1 << 50 },
	"nothing":    func(p *program) { p.tell = func(time.Duration) time.Duration { return 0 } },
}

// Whatever programs at random want, none has more than its limit in ten seconds, and each has
// it. One that tells no truth gains little, and takes little from the others.
func TestLimitsOfAnyPrograms(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { testLimits(t, "gemini", nil, seed) })
		t.Run(fmt.Sprintf("gaiapi, %d", seed), func(t *testing.T) { testLimits(t, "gaiapi", nil, seed) })
		for name, lie := range lies {
			t.Run(fmt.Sprintf("%d, one tells %s", seed, name), func(t *testing.T) { testLimits(t, "gemini", lie, seed) })
		}
	}
}

// anyPrograms returns programs at random, with limits that are 90 % at most together.
func anyPrograms(rng *rand.Rand, lie func(p *program)) (programs []*program, limits []int) {
	lengths := []time.Duration{300 * time.Microsecond, time.Millisecond, 3 * time.Millisecond, 7 * time.Millisecond, 20 * time.Millisecond}
	left := 90
	for n := 2 + rng.IntN(3); n > 0; n-- {
		limit := min(10+rng.IntN(40), left-10*(n-1))
		left -= limit
		i := len(programs)
		p := &program{
			id: gate.ProcessID(100 + i), client: share.ClientID(i + 1), kernel: lengths[rng.IntN(len(lengths))], ahead: 1 + rng.IntN(8), credit: rng.IntN(2) == 0,
		}
		if rng.IntN(2) == 0 {
			p.burst = 20 + rng.IntN(40)
			p.pause = time.Duration(p.burst) * p.kernel / 4
		}
		if i == 0 && lie != nil {
			lie(p)
		}
		programs, limits = append(programs, p), append(limits, limit)
	}
	return programs, limits
}

func testLimits(t *testing.T, policy string, lie func(p *program), seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 77))
	w := newWorld(t, policy)
	w.resizes = true // a program may tell what it likes
	programs, limits := anyPrograms(rng, lie)
	for i, p := range programs {
		spec := percent(limits[i])
		spec.Class = share.Class(rng.IntN(2))
		w.join(p.client, spec)
		w.add(p)
	}
	for at := 20 * time.Second; at <= 40*time.Second; at += time.Second {
		w.run(at)
		for i, p := range programs {
			above, below := 0.03, 0.08 // it waits for turns of others
			if p.burst > 0 {
				above, below = 0.10, 0.30 // the pauses in its turns count as use
			}
			if lie != nil {
				below = max(below, 0.10)
			}
			if i == 0 && lie != nil {
				above, below = 0.20, 1
			}
			got, want := p.ranBetween(at-10*time.Second, at).Seconds()*10, float64(limits[i])
			if got > want*(1+above) || got < want*(1-below) {
				t.Fatalf("program %d, kernels of %v in bursts of %d, had %.2f %% of the GPU before %v, want %v %%", i, p.kernel, p.burst, got, at, want)
			}
		}
	}
}

// Programs whose kernels are as long as the window, or a good part of it, have their limit in
// time, and not more in any ten seconds than that and a kernel.
func TestLimitsOfLongKernels(t *testing.T) {
	for _, policy := range []string{"gemini", "gaiapi"} {
		for _, limit := range []int{10, 30} {
			for _, kernel := range []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 12 * time.Second} {
				for _, ahead := range []int{1, 4} {
					testLongKernels(t, policy, limit, &program{id: 100, client: 1, kernel: kernel, ahead: ahead})
				}
			}
		}
	}
}

func testLongKernels(t *testing.T, policy string, limit int, p *program) {
	t.Helper()
	w := newWorld(t, policy)
	w.join(1, percent(limit))
	w.join(2, percent(20))
	w.add(p)
	w.add(&program{id: 101, client: 2, kernel: 20 * time.Millisecond})
	w.run(500 * time.Second)
	bound := time.Duration(limit) * 100 * time.Millisecond
	if policy == "gaiapi" { // it counts from launch to launch, and not in windows
		bound += min(p.kernel, 10*time.Second)
	}
	if got := p.most(w.now); got > max(bound, min(p.kernel, 10*time.Second)) {
		t.Errorf("%s: kernels of %v ran for %v in ten seconds, limit %d %%", policy, p.kernel, got, limit)
	}
	got, most := p.ranBetween(0, w.now), 5*time.Duration(limit)*time.Second
	if got > most+p.kernel {
		t.Errorf("%s: kernels of %v ran for %v of %v, limit %d %%", policy, p.kernel, got, w.now, limit)
	}
	if policy == "gaiapi" && got < most*9/10-p.kernel {
		t.Errorf("%s: kernels of %v ran for only %v of %v, limit %d %%", policy, p.kernel, got, w.now, limit)
	}
}

// A program that uses less than its limit waits for nothing with gaiapi, whatever keeps its launches
// in flight: copies before them, ends that it tells late, or a debugger.
func TestHonestProgramsWait(t *testing.T) {
	each := func(n int, d time.Duration) func(int) time.Duration {
		return func(i int) time.Duration {
			if i%n == 0 {
				return d
			}
			return 0
		}
	}
	for _, c := range []struct {
		name  string
		limit int
		p     program
	}{
		{"copies before each ten kernels", 40, program{copies: each(10, 30*time.Millisecond)}},
		{"each sixth end comes late", 30, program{late: each(6, 50*time.Millisecond), ahead: 1}},
		{"stands still", 60, program{late: each(1000, 20*time.Second), ahead: 1, burst: 1, pause: time.Millisecond}},
	} {
		var ran [2]time.Duration
		for i, limit := range []int{100, c.limit} {
			p := c.p
			p.id, p.client, p.kernel = 100, 1, time.Millisecond
			w := newWorld(t, "gaiapi")
			w.join(1, percent(limit))
			w.add(&p)
			w.run(60 * time.Second)
			ran[i] = p.ran
		}
		if ran[1] < ran[0]*98/100 {
			t.Errorf("%s: ran for %v with a limit of %d %%, %v without", c.name, ran[1], c.limit, ran[0])
		}
	}
}

package dispatch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// A slice that is resized again and again keeps to its limit over ten seconds: the policy
// forgets neither what it has used nor what runs.
func TestLimitHoldsAcrossResizes(t *testing.T) {
	p := &program{id: 1, spec: percent(30), kernel: 7 * time.Millisecond}
	w := newWorld(t, "gemini", p)
	for i := range 100 {
		w.run(time.Duration(i) * 100 * time.Millisecond)
		spec := percent(30 - i%2)
		spec.Memory = int64(i%3) << 20
		if !w.d.Resize(w.now, 1, spec) {
			t.Fatal("the share was not changed")
		}
	}
	if got := w.d.Usage(1).Service; got > 3*time.Second || got < 2700*time.Millisecond {
		t.Errorf("%v in ten seconds with a limit of 30 %%", got)
	}
	if n := w.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// A new share counts at once for a client that launches without an end.
func TestResizeOfAnEndlessBurst(t *testing.T) {
	for _, policy := range []string{"mps", "muxflow"} {
		t.Run(policy, func(t *testing.T) {
			spec := percent(60)
			spec.Class = share.Offline
			p := &program{id: 1, spec: spec, kernel: 7 * time.Millisecond}
			w := newWorld(t, policy, p)
			w.run(5 * time.Second)
			spec.Limit = share.Percent(20)
			w.d.Resize(w.now, 1, spec)
			before := w.d.Usage(1).Service
			w.run(w.now + 10*time.Second)
			if got := (w.d.Usage(1).Service - before).Seconds() / 10; got < 0.2*0.97 || got > 0.2*1.03 {
				t.Errorf("%.2f %% of the GPU after the change to 20 %%", 100*got)
			}
		})
	}
}

// The account of the memory follows each resize, to the byte, with every policy.
func TestResizeAccountsMemory(t *testing.T) {
	for _, info := range share.Policies() {
		t.Run(info.Name, func(t *testing.T) {
			w := newWorld(t, info.Name)
			eighth := small.Memory / 8
			spec := func(n int64) share.ClientSpec {
				return share.ClientSpec{Request: share.Percent(10), Memory: n}
			}
			for id := range share.ClientID(2) {
				if err := w.d.Join(0, id+1, spec(eighth)); err != nil {
					t.Fatal(err)
				}
			}
			// An instance of MIG for 0 bytes is the whole GPU.
			for _, c := range []struct {
				bytes int64
				ok    bool
			}{{7*eighth + 1, false}, {2 * eighth, true}, {-1, false}, {eighth / 2, true}, {0, info.Name != "mig"}, {2 * eighth, true}, {eighth, true}} {
				if got := w.d.Resize(0, 1, spec(c.bytes)); got != c.ok {
					t.Fatalf("resized to %d bytes: %t, want %t", c.bytes, got, c.ok)
				}
			}
			w.d.Leave(0, 2)
			if err := w.d.Join(0, 3, spec(7*eighth+1)); err == nil {
				t.Error("a byte beyond the memory was granted")
			}
			w.d.Leave(0, 1)
			if err := w.d.Join(0, 3, spec(small.Memory)); err != nil {
				t.Errorf("memory is leaked: %v", err)
			}
			if n := w.d.Violations(); n != 0 {
				t.Errorf("the policy found %d events wrong", n)
			}
		})
	}
}

// A client whose kernels are late, and whose limit changes again and again, has what its limits
// give, each for as long as it holds, and a kernel: it sheds no debt by a higher limit for a moment,
// and waits for no lower one of the past.
func TestLateLaunchesPayByLimitsThatChange(t *testing.T) {
	type change func(rng *rand.Rand, up bool) (after time.Duration, limit int)
	for name, next := range map[string]change{
		"all for a moment": func(_ *rand.Rand, up bool) (time.Duration, int) {
			if up {
				return 490 * time.Millisecond, 100
			}
			return 10 * time.Millisecond, 10
		},
		"any": func(rng *rand.Rand, _ bool) (time.Duration, int) {
			return time.Duration(rng.Int64N(int64(20 * time.Second))), 10 + rng.IntN(91)
		},
		"all for a while": func(rng *rand.Rand, up bool) (time.Duration, int) {
			if up {
				return time.Duration(rng.Int64N(int64(40 * time.Second))), 100
			}
			return time.Duration(rng.Int64N(int64(10 * time.Second))), 10
		},
	} {
		for _, policy := range []string{"mps", "gemini", "gaiapi"} {
			for _, kernel := range []time.Duration{time.Second, 5 * time.Second} {
				t.Run(fmt.Sprint(name, policy, kernel), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(3, 4))
					p := &program{id: 1, spec: percent(10), kernel: kernel}
					w := newUncutWorld(t, policy, p)
					limit, up, given := 10, true, time.Duration(0)
					for w.now < 500*time.Second {
						after, to := next(rng, up)
						w.run(w.now + after)
						given += share.Percent(limit).Of(after)
						limit, up = to, !up
						if !w.d.Resize(w.now, 1, percent(limit)) {
							t.Fatal("the share was not changed")
						}
						if got := w.d.Usage(1).Service; got > given+kernel+10*time.Second {
							t.Fatalf("%v until %v, its limits give %v", got, w.now, given)
						}
					}
					if got := w.d.Usage(1).Service; got > given+kernel || got < given*7/10-kernel {
						t.Errorf("%v, its limits give %v", got, given)
					}
				})
			}
		}
	}
}

// A client pays for a late launch for a minute at most, whatever resizes there are. A
// higher limit makes the wait shorter, also where the launch is longer than the minute pays for.
func TestResizesLeaveTheMostOfADebt(t *testing.T) {
	for _, policy := range []string{"mps", "gemini", "gaiapi"} {
		for _, c := range []struct {
			name     string
			limits   [2]int
			from, to time.Duration // of the next kernel
		}{
			{"low", [2]int{1, 2}, 50 * time.Second, 61 * time.Second},
			{"all", [2]int{100, 100}, 45 * time.Second, 61 * time.Second},
		} {
			t.Run(policy+"/"+c.name, func(t *testing.T) {
				p := &program{id: 1, spec: percent(1), kernel: 50 * time.Second}
				w := newUncutWorld(t, policy, p)
				w.run(50*time.Second + time.Millisecond)
				p.kernel, p.part = 10*time.Millisecond, 10*time.Millisecond
				end, before := w.now, w.d.Usage(1).Service
				for i := 0; w.d.Usage(1).Service == before && w.now < 10*time.Minute; i++ {
					w.d.Resize(w.now, 1, percent(c.limits[i%2]))
					w.run(w.now + 100*time.Millisecond)
				}
				if got := w.now - end; got < c.from || got > c.to {
					t.Errorf("the next kernel ran after %v", got)
				}
			})
		}
	}
}

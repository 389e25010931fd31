package share_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// limits are what a client might use at a time: how long its limits have let it until then.
type limits struct {
	at, sum []time.Duration
	of      []share.PPM
}

func (l *limits) set(now time.Duration, of share.PPM) {
	sum := time.Duration(0)
	if len(l.at) > 0 {
		sum = l.until(now)
	}
	l.at, l.sum, l.of = append(l.at, now), append(l.sum, sum), append(l.of, of)
}

func (l *limits) until(now time.Duration) time.Duration {
	i, found := slices.BinarySearch(l.at, now)
	if !found {
		i = max(i-1, 0)
	}
	return l.sum[i] + time.Duration(float64(l.of[i])*float64(now-l.at[i])/float64(share.Whole))
}

// The GPU runs the launches of one client, as fast as it gets permits. It has at no time had more
// than its limits of that time and of the ten seconds before give it, and the launches in flight,
// whatever changes them; and short launches have what the limits give.
func TestLimitsThatChange(t *testing.T) {
	kernels := []time.Duration{10 * time.Millisecond, 900 * time.Millisecond, 4 * time.Second, 15 * time.Second}
	for _, policy := range []string{"gemini", "gaiapi"} {
		for _, kernel := range kernels {
			for seed := range uint64(2 * len(changes)) {
				t.Run(fmt.Sprint(policy, kernel, seed), func(t *testing.T) { testLimitsThatChange(t, policy, kernel, seed) })
			}
		}
	}
}

// changes are how clients change their limits: after how long, and to what.
var changes = []func(rng *rand.Rand, up bool) (after time.Duration, limit share.PPM){
	func(_ *rand.Rand, up bool) (time.Duration, share.PPM) { // all for a moment, again and again
		if up {
			return 97 * time.Millisecond, share.Whole
		}
		return time.Millisecond, share.Percent(10)
	},
	func(rng *rand.Rand, _ bool) (time.Duration, share.PPM) {
		return time.Duration(rng.Int64N(int64(20 * time.Second))), share.Percent(5 + rng.IntN(96))
	},
	func(rng *rand.Rand, up bool) (time.Duration, share.PPM) { // all for a while
		limit := share.Whole
		if !up {
			limit = share.Percent(1 + rng.IntN(30))
		}
		return time.Duration(rng.Int64N(int64(40 * time.Second))), limit
	},
	func(rng *rand.Rand, up bool) (time.Duration, share.PPM) { // nearly the same
		limit := share.Percent(60)
		if !up {
			limit--
		}
		return time.Second + time.Duration(rng.Int64N(1000)), limit
	},
}

func testLimitsThatChange(t *testing.T, policy string, kernel time.Duration, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	ahead := 1 + 3*int(seed/uint64(len(changes)))
	change := changes[seed%uint64(len(changes))]
	c := newChecker(t, policy, share.A100)
	var given limits
	var spans [][2]time.Duration
	first := share.Percent(10)
	given.set(0, first)
	c.join(1, share.ClientSpec{Limit: first})
	next, limit := change(rng, true)
	up, starts, end := false, time.Duration(-1), 100*time.Second
	for c.now < end {
		if c.now >= next {
			c.resize(1, share.ClientSpec{Limit: limit})
			given.set(c.now, limit)
			after, l := change(rng, up)
			next, limit, up = c.now+after, l, !up
			c.decide()
		}
		x := c.clients[1]
		if starts >= 0 && c.now >= starts+kernel {
			c.complete(1, kernel)
			spans, starts = append(spans, [2]time.Duration{starts, c.now}), -1
		}
		if len(x.flights) < ahead {
			c.launch(1, share.Kernel{Blocks: 1000})
		}
		c.decide()
		if starts < 0 && len(x.flights) > 0 {
			starts = c.now
		}
		at := min(next, end, max(c.policy.Wake(), c.now+time.Microsecond))
		if starts >= 0 {
			at = min(at, starts+kernel)
		}
		c.pass(at)
	}
	var ran time.Duration
	least := 500 * time.Second // of the time that it had before a launch, less that of its limits until ten seconds before
	for _, span := range spans {
		least = min(least, ran-given.until(span[0]-10*time.Second))
		ran += kernel
		if over := ran - given.until(span[1]) - least - time.Duration(ahead)*kernel; over > 10*time.Millisecond {
			t.Fatalf("at %v it had %v more than its limits give", span[1], over)
		}
	}
	if all := given.until(end); kernel < 100*time.Millisecond && ran < all*9/10-time.Second || ran < all/3-kernel {
		t.Errorf("it had %v, its limits give %v", ran, all)
	}
}

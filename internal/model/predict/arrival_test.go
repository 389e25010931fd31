package predict

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// A plan of other waits takes over the tables that it would make itself.
func TestArrivalsOfOtherWaits(t *testing.T) {
	seen := 0
	for _, does := range []traits{{}, {untold: true}, {graphs: true}, {late: true}} {
		for n := range 100 {
			native := &machine{drawn: drawProgram(uint64(20_000 + n)), out: record(t), traits: does}
			native.run()
			plan := native.out.plan()
			least, most := plan.alternatives()
			for _, other := range [...]*Plan{least, most} {
				if other == nil {
					continue
				}
				own := newArrivals(other)
				if taken := plan.arrivals.with(other); !reflect.DeepEqual(taken, own) {
					t.Fatalf("program %d, %+v: the plan takes over %+v, and finds %+v", n, does, taken, own)
				}
				if own != nil {
					seen++
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("%d plans with other waits, want at least 100", seen)
	}
}

func TestWaitSet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		ops := 1 + random.IntN(6)
		want := map[workload.Wait]bool{}
		var waits []workload.Wait
		for range random.IntN(20) {
			w := workload.Wait{Op: random.Int32N(int32(ops)), On: random.Int32N(int32(ops))}
			waits, want[w] = append(waits, w), true
		}
		set := newWaitSet(ops, waits)
		for i := range int32(ops) {
			for on := range int32(ops) {
				if got := set.has(i, on); got != want[workload.Wait{Op: i, On: on}] {
					t.Fatalf("%d waits for %d: %v, of %v", i, on, got, waits)
				}
			}
		}
	}
}

// Several predictions have the ranges that each has alone.
func TestRangesAreThoseOfEach(t *testing.T) {
	wide := 0
	for n := range 60 {
		native := &machine{drawn: drawProgram(uint64(30_000 + n)), out: record(t), traits: traits{untold: n%2 == 0, graphs: n%3 == 0}}
		native.run()
		together, alone := native.out.plan(), native.out.plan()
		st := together.Stats(0)
		var settings []Setting
		var results []Result
		for _, added := range []time.Duration{0, 5 * us, 18 * us} {
			s := at(perf.NativeRTT + added)
			settings, results = append(settings, s), append(results, run(t, together, s))
		}
		got, err := together.Ranges(settings, results, &st)
		if err != nil {
			t.Fatal(err)
		}
		for i := range settings {
			want, err := alone.Range(settings[i], &results[i], &st)
			if err != nil || !reflect.DeepEqual(got[i], want) {
				t.Fatalf("program %d: %+v, alone %+v, %v", n, got[i], want, err)
			}
			if want.Wide() {
				wide++
			}
		}
	}
	if wide < 20 {
		t.Errorf("%d ranges are wide, want at least 20", wide)
	}
}

package predict

import (
	"math/rand/v2"
	"reflect"
	"testing"

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

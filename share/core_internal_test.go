package share

import (
	"math/rand/v2"
	"testing"
	"time"
)

// begin looks at the clients only when it may have something to decide. In a random history it
// looks whenever a client is to be evicted or waits for memory, and the number of waiting
// launches is right.
func TestBeginMissesNothing(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		k := core[struct{}]{device: A100}
		var now time.Duration
		launches := LaunchID(0)
		for range 400 {
			if rng.IntN(5) == 0 {
				now += time.Duration(rng.Int64N(int64(StuckAfter / 4)))
			}
			e := randomEvent(rng, &launches)
			if c := k.find(e.Client); c != nil && len(c.flights) > 0 && rng.IntN(2) == 0 {
				e.Launch = c.flights[rng.IntN(len(c.flights))].id
			}
			k.receive(now, &e)
			checkBegin(t, &k, now)
			k.begin(now, nil)
			for _, c := range k.clients {
				if c.ready() && rng.IntN(2) == 0 {
					k.permit(c, nil, false, 0)
				}
			}
			checkBegin(t, &k, now)
			if t.Failed() {
				t.Fatalf("seed %d, after event %v of client %d", seed, e.Kind, e.Client)
			}
		}
	}
}

func randomEvent(rng *rand.Rand, launches *LaunchID) Event {
	*launches++
	kinds := []EventKind{Join, Leave, Launch, Launch, Launch, Completed, Completed, Killed, Waited, Waited, Allocate, Free, Failed, Resized}
	e := Event{Kind: kinds[rng.IntN(len(kinds))], Client: ClientID(1 + rng.IntN(5)), Launch: *launches}
	switch e.Kind {
	case Join, Resized:
		e.Spec.Memory = 1 << 30
	case Allocate, Free:
		e.Bytes = rng.Int64N(1 << 30)
	case Waited:
		e.Ran = time.Duration(rng.Int64N(int64(StuckAfter)))
	case Failed:
		e.Fault = []Fault{FaultTerminate, FaultClient}[rng.IntN(2)]
		if rng.IntN(3) > 0 {
			e.Kind = Idle
		}
	default:
	}
	return e
}

func checkBegin(t *testing.T, k *core[struct{}], now time.Duration) {
	t.Helper()
	heads, wants := 0, len(k.refused) > 0
	for _, c := range k.clients {
		if c.waiting {
			heads++
		}
		stuck := len(c.flights) > 0 && c.evict == NoReason && now >= c.flights[0].stuckAt()
		leaves := c.leaving && len(c.flights) == 0 && c.evict == NoReason
		wants = wants || stuck || leaves || c.evict != NoReason && !c.told || c.request != 0
	}
	if heads != k.heads {
		t.Errorf("%d launches wait, %d counted", heads, k.heads)
	}
	if wants && !k.due && now < k.stuck {
		t.Errorf("begin at %v would look at no client: %+v", now, k)
	}
}

package broker_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// kernel is how long each launch of a pair takes. It fills the GPU.
const kernel = time.Millisecond

// pair is two shares that launch all the time, one after the other each.
type pair struct {
	*table
	next uint64
	ids  map[broker.ProcessID]uint64
	ends map[broker.ProcessID]time.Duration
	ran  map[broker.ProcessID]int
}

// newPair makes a share with a limit beside one that may have half of the GPU; false: the
// hardware keeps the shares.
func newPair(t *testing.T, policy string, class share.Class, memory int64, limit share.PPM) (*pair, bool) {
	x := &pair{newTable(t, broker.Config{Policy: policy, GPUs: gpus[:1]}), 0, map[broker.ProcessID]uint64{}, map[broker.ProcessID]time.Duration{}, map[broker.ProcessID]int{}}
	x.create(spec{ID: "a", Class: class, Memory: memory, Compute: limit, Limit: limit})
	x.create(spec{ID: "b", Class: class, Memory: gib, Compute: share.Whole / 2, Limit: share.Whole / 2})
	x.connect(1, "a", 11)
	x.connect(2, "b", 12)
	if p, _ := x.b.Page("a"); p.GPUs[0].Gate == wire.Open {
		return nil, false
	}
	x.launch(1)
	x.launch(2)
	return x, true
}

func (x *pair) launch(id broker.ProcessID) {
	x.next++
	x.ids[id] = x.next
	x.send(id, wire.Message{Type: wire.Launch, ID: x.next, Arg: [wire.Args]uint64{640, 256, 1, 7}})
}

// run lets the time pass. The launches of the two run beside each other.
func (x *pair) run(until time.Duration) {
	for x.now < until {
		x.now += kernel / 2
		x.flush()
		for _, id := range []broker.ProcessID{1, 2} {
			for _, m := range x.got[id] {
				if m.Type == wire.Permit {
					x.ends[id] = x.now + kernel
				}
			}
			x.got[id] = nil
			if at, runs := x.ends[id]; !runs || x.now < at {
				continue
			}
			delete(x.ends, id)
			x.ran[id]++
			x.send(id, wire.Message{Type: wire.Done, ID: x.ids[id], Arg: [wire.Args]uint64{uint64(kernel)}})
			x.launch(id)
		}
	}
}

func pairs(t *testing.T, f func(t *testing.T, policy string, class share.Class)) {
	for _, p := range share.Policies() {
		for _, class := range []share.Class{share.Online, share.Offline} {
			t.Run(p.Name+"/"+class.String(), func(t *testing.T) { f(t, p.Name, class) })
		}
	}
}

// The smallest share that there is, of a byte and a tenth of a percent, goes on beside one that
// floods the GPU, whatever the policy.
func TestSmallestShare(t *testing.T) {
	pairs(t, func(t *testing.T, policy string, class share.Class) {
		x, ok := newPair(t, policy, class, 1, share.Whole/1000)
		if !ok {
			return
		}
		x.run(time.Minute)
		if x.ran[1] < 10 || x.ran[2] < 1000 {
			t.Errorf("in a minute %d launches of the smallest share, %d beside it", x.ran[1], x.ran[2])
		}
	})
}

// The policies that keep limits, as docs/sharing.md and [share.Info] say. The others have none.
func TestLimitsOfPolicies(t *testing.T) {
	most := map[string]float64{"gemini": 10, "gaiapi": 10.5, "gaia": 20}
	pairs(t, func(t *testing.T, policy string, class share.Class) {
		x, ok := newPair(t, policy, class, gib, share.Percent(10))
		if !ok {
			return
		}
		x.run(time.Minute)
		if info, err := share.Find(policy); err != nil || info.Limits != (most[policy] != 0) {
			t.Fatalf("%+v, %v", info, err)
		}
		got := float64(x.ran[1]) * float64(kernel) / float64(time.Minute) * 100
		t.Logf("%.1f %% of the time with a limit of 10 %%", got)
		if limit, keeps := most[policy]; keeps && (got > limit || got < 5) {
			t.Errorf("%.1f %% of the time, want 5 to %v", got, limit)
		}
	})
}

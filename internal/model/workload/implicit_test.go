package workload

import (
	"testing"
	"time"
)

// TestManyStreamsBesideALongDefaultStream: a file can name sixty thousand streams, and millions of
// operations of the default stream. If each stream took a look at all of these, this test would
// take an hour.
func TestManyStreamsBesideALongDefaultStream(t *testing.T) {
	w := &Workload{Ops: []Op{{Call: None}, {Call: None}}}
	r := &resolver{w: w, ends: w.GraphEnds()}
	long := make([]launch, 2_000_000)
	for i := range long {
		long[i].at = time.Duration(2 * i)
	}
	for i := range 1 << 16 {
		at := time.Duration(2*(i*29%len(long)) + 1)
		var p pair
		if r.serial(&p, long, []launch{{queue: 1, at: at, op: 1}}, nil); len(p.waits[0]) != 1 || len(p.waits[1]) != 1 {
			t.Fatalf("stream %d: waits %v; want one of each stream", i, p.waits)
		}
	}
}

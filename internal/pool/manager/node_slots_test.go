package manager

import (
	"testing"
	"time"
)

// Slots are found in records of any order, gaps and versions.
func TestFindSlot(t *testing.T) {
	s := newState(time.Now())
	r, err := s.decodeRecord("node/b1", []byte(`{"v":1,"id":"b1","slots":[{"slot":9,"health":1},{"slot":4294967295},{"slot":1},{"slot":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	n := r.(*nodeRecord)
	for _, i := range []uint32{0, 1, 9, 1<<32 - 1} {
		if got := n.slot(i); got == nil || got.Slot != i {
			t.Errorf("slot %d is %+v", i, got)
		}
	}
	for _, i := range []uint32{2, 3, 4, 8, 10, 1 << 31} {
		if got := n.slot(i); got != nil {
			t.Errorf("slot %d is %+v", i, got)
		}
	}
	if got := (&nodeRecord{}).slot(0); got != nil {
		t.Errorf("a slot of none: %+v", got)
	}
}

package vfioserver

import "testing"

// The owner either sees that the backlog is within a new limit, or is called when it is.
func TestLimitBelowTheBacklog(t *testing.T) {
	calls := 0
	w := newWorker(func() { calls++ })
	const limit = 8 * jobCost
	for range 2 * limit / jobCost {
		w.push(0, func() {})
	}
	waiting, _ := w.load()
	w.stop()
	w.run() // before the owner, which has seen the whole backlog, sets the limit
	if calls != 0 {
		t.Fatalf("%d calls at a backlog of %d bytes", calls, waiting)
	}
	if got := w.setLimit(limit); got > limit {
		t.Errorf("%d bytes wait, and there is no call any more", got)
	}
}

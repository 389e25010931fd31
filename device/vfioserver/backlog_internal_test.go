package vfioserver

import (
	"fmt"
	"testing"
	"time"
)

// A read behind a full backlog waits some tens of milliseconds at any rate of the
// server, also after the rate has changed, and the server never waits for writes.
func TestBacklogFollowsTheServer(t *testing.T) {
	const step = 100 * time.Microsecond // as often as the owner looks
	var (
		b             backlog
		now           time.Duration
		waiting, done int
	)
	for _, rate := range []int{2 << 20, 100 << 20, 20 << 20, 1 << 30} { // bytes per second
		t.Run(fmt.Sprintf("%d MiB/s", rate>>20), func(t *testing.T) {
			each := int(float64(rate) * step.Seconds())
			starved, settled := 0, false // a backlog of before has to be taken first
			for i := range 5000 {
				now += step
				took := min(each, waiting)
				waiting -= took
				done += took
				b.note(now, waiting, uint64(done))
				settled = settled || i > 100 && waiting <= b.most(false)
				if waiting == 0 && settled {
					starved++
				}
				for waiting <= b.most(false) {
					waiting += 2048 + jobCost
				}
				wait := time.Duration(float64(waiting) / float64(rate) * 1e9)
				if settled && wait > 2*backlogTime {
					t.Fatalf("after %v a read waits for %v", now, wait)
				}
			}
			if !settled {
				t.Error("the backlog does not become as short as its limit")
			}
			if starved > 0 {
				t.Errorf("the server waited %d times", starved)
			}
			if b.most(true) != maxBacklog {
				t.Error("the limit is smaller while the server waits for an answer of the host")
			}
		})
	}
}

// Where the server waits for requests, the time does not count as its own.
func TestIdleServerIsNotSlow(t *testing.T) {
	var b backlog
	const ms = time.Millisecond
	for i := range time.Duration(10) { // a request each second, taken within a millisecond
		b.note(i*time.Second, 1<<10, uint64(i)<<10)
		b.note(i*time.Second+ms, 0, uint64(i+1)<<10)
	}
	if got := b.most(false); got != firstBacklog {
		t.Errorf("the limit is %d, want %d", got, firstBacklog)
	}
}

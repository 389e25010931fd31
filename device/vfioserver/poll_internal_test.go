package vfioserver

import "testing"

// Polling goes on while answers are quick, and is tried ever less often while they
// are not.
func TestPollingFollowsTheServer(t *testing.T) {
	var p polling
	tries := func(reads int) (n int) {
		for range reads {
			if p.next() {
				n++
				p.judge(slow + 1)
			}
		}
		return n
	}
	for range 100 {
		if !p.next() {
			t.Fatal("a quick server is not polled")
		}
		p.judge(slow)
	}
	if n := tries(10_000); n < 10_000/(mostSkip+1) || n > 50 {
		t.Errorf("polled for %d of 10000 answers of a slow server", n)
	}
	for !p.next() {
	}
	p.judge(slow)
	if !p.next() {
		t.Error("a server that is quick again is not polled")
	}
}

//go:build linux

package agent

import "testing"

// Each user has a number of calls at one time, and root any number.
func TestCallsOfAUser(t *testing.T) {
	l := callers{calls: map[uint32]int{}}
	for i := range maxCalls {
		if !l.enter(1000) || !l.enter(0) {
			t.Fatalf("call %d is refused", i)
		}
	}
	if l.enter(1000) || !l.enter(0) || !l.enter(1001) {
		t.Error("a user has too many calls, or keeps others out")
	}
	l.leave(1000)
	if !l.enter(1000) || l.enter(1000) {
		t.Error("a call that has ended makes room for one more")
	}
	for range maxCalls {
		l.leave(1000)
	}
	if _, ok := l.calls[1000]; ok {
		t.Error("a user without calls is not forgotten")
	}
}

package session

import "testing"

// The last failures are known, whatever came before, and one that failed twice is no leak.
func TestFailuresAreBounded(t *testing.T) {
	var f failures
	if f.any([]uint64{0, 1}) {
		t.Error("a failure of nothing")
	}
	for cookie := uint64(1); cookie <= 3*maxFailed; cookie++ {
		f.add(cookie)
		f.add(7)
	}
	for cookie, want := range map[uint64]bool{3 * maxFailed: true, 3*maxFailed - maxFailed/2 + 1: true, 3*maxFailed - maxFailed: false, 1: false} {
		if f.any([]uint64{0, cookie}) != want {
			t.Errorf("packet %d: %v", cookie, !want)
		}
	}
	if len(f.order) != maxFailed || len(f.cookies) > maxFailed {
		t.Errorf("%d and %d are kept", len(f.order), len(f.cookies))
	}
}

package session

import (
	"slices"
	"testing"
)

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

// A context that moves takes the last failures with it, in their order, and not more.
func TestFailuresMove(t *testing.T) {
	for _, n := range []uint64{0, 3, maxFailed, maxFailed + 5} {
		var f failures
		for cookie := uint64(1); cookie <= n; cookie++ {
			f.add(cookie)
		}
		moved := failures{order: []uint64{9}, cookies: map[uint64]struct{}{9: {}}}
		if err := moved.take(f.words()); err != nil {
			t.Fatal(err)
		}
		first := n - min(n, maxFailed) + 1
		if len(moved.order) != int(min(n, maxFailed)) || n > 0 && (!moved.any([]uint64{first}) || !moved.any([]uint64{n})) || moved.any([]uint64{first - 1, n + 1}) {
			t.Errorf("of %d failures, %d came", n, len(moved.order))
		}
		f.add(n + 1)
		moved.add(n + 1)
		if !slices.Equal(f.words(), moved.words()) {
			t.Errorf("after %d failures, the order differs", n)
		}
	}
	if new(failures).take(make([]byte, 8*(maxFailed+1))) == nil {
		t.Error("too many failures were taken")
	}
}

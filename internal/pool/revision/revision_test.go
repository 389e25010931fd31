package revision

import (
	"fmt"
	"testing"
)

func TestReplaces(t *testing.T) {
	one, two := First(1), First(2)
	tests := []struct {
		a, b uint64
		want bool
	}{
		{1, 0, true},
		{1, 1, false},
		{1, 2, false},
		{one + 7, one + 7, false},
		{one + 8, one + 7, true},
		{one + 1, two + 9, true},
		{two, one + 9, true},
		{First(MaxIncarnation), 9, true},
		{one, one - 1, true}, // a pool that has made 2^28 changes
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%x after %x", tt.a, tt.b), func(t *testing.T) {
			if got := Replaces(tt.a, tt.b); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCommon(t *testing.T) {
	one, two := First(1), First(2)
	tests := []struct {
		in   []uint64
		want uint64
	}{
		{nil, 0},
		{[]uint64{7}, 7},
		{[]uint64{7, 5, 6}, 5},
		{[]uint64{one + 7, one + 9}, one + 7},
		{[]uint64{one + 7, two + 1}, 0},
		{[]uint64{0, one}, 0},
	}
	for _, tt := range tests {
		if got := Common(tt.in...); got != tt.want {
			t.Errorf("%x: got %x, want %x", tt.in, got, tt.want)
		}
	}
}

// Revisions survive a float64, which is all that a page in a browser has.
func TestRevisionsAreExactInFloatingPoint(t *testing.T) {
	last := First(MaxIncarnation+1) - 1
	if got := uint64(float64(last)); got != last || Incarnation(last) != MaxIncarnation {
		t.Errorf("%d becomes %d", last, got)
	}
}

package quantile

import (
	"slices"
	"testing"
)

func TestOf(t *testing.T) {
	for _, tc := range []struct {
		name string
		v    []int
		q    float64
		want int
	}{
		{"no samples", nil, 0.5, 0},
		{"one sample", []int{7}, 0.99, 7},
		{"median of an odd number", []int{3, 1, 2}, 0.5, 2},
		{"median of an even number", []int{4, 1, 3, 2}, 0.5, 3},
		{"least", []int{3, 1, 2}, 0, 1},
		{"greatest", []int{3, 1, 2}, 1, 3},
		{"lower quartile", []int{1, 2, 3, 4, 5, 6, 7, 8}, 0.25, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := slices.Clone(tc.v)
			if got := Of(v, tc.q); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
			if !slices.Equal(v, tc.v) {
				t.Errorf("the samples were reordered: %v", v)
			}
		})
	}
}

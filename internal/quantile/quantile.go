// Package quantile reads quantiles from samples.
package quantile

import (
	"cmp"
	"slices"
)

// Of returns the q quantile of v: of n samples in ascending order the one at
// index ⌊q·n⌋, the last for q = 1, and zero if v is empty. It leaves v as it is,
// and sorts a copy unless v is sorted.
func Of[T cmp.Ordered](v []T, q float64) T {
	if len(v) == 0 {
		var zero T
		return zero
	}
	if !slices.IsSorted(v) {
		v = slices.Sorted(slices.Values(v))
	}
	return v[min(len(v)-1, int(q*float64(len(v))))]
}

package share

import (
	"errors"
	"math"
)

// MaxMatch bounds a matching: it takes O(n³).
const MaxMatch = 512

// Forbidden is the weight of a pair that must not be chosen, because the memory does not
// fit or the predicted slow-down is too large.
const Forbidden = math.MinInt64

// Match chooses for each row (online client) at most one column (offline client), each at
// most once, with the largest sum of the weights (Kuhn and Munkres; here by shortest
// augmenting paths). MuxFlow's weights are predicted, normalised offline throughputs.
// It returns the column of each row, or -1. Weights are between -2^40 and 2^40, or
// Forbidden; a row stays alone rather than take a negative weight.
func Match(weights [][]int64) ([]int, error) {
	rows, columns := len(weights), 0
	if rows > 0 {
		columns = len(weights[0])
	}
	if rows > MaxMatch || columns > MaxMatch {
		return nil, errors.New("share: a matching of more than 512 rows or columns: divide it into shards")
	}
	// Each row also has a column of its own with weight zero: it stays alone.
	n := columns + rows
	cost := make([][]int64, rows)
	for i, w := range weights {
		if len(w) != columns {
			return nil, errors.New("share: the rows of a matching have different lengths")
		}
		cost[i] = make([]int64, n)
		for j := range n {
			cost[i][j] = 1 << 50
			switch {
			case j == columns+i:
				cost[i][j] = 0
			case j < columns && w[j] != Forbidden:
				if w[j] > 1<<40 || w[j] < -1<<40 {
					return nil, errors.New("share: a weight of a matching is out of range")
				}
				cost[i][j] = -w[j]
			}
		}
	}
	return assign(cost, n, columns), nil
}

// assign solves the assignment problem for the least cost. Indexes of potentials and of
// the path are one-based; zero is the row that is being added.
func assign(cost [][]int64, n, columns int) []int {
	u, v := make([]int64, len(cost)+1), make([]int64, n+1)
	row, way := make([]int, n+1), make([]int, n+1)
	for i := 1; i <= len(cost); i++ {
		row[0] = i
		at := 0
		least := make([]int64, n+1)
		for j := range least {
			least[j] = math.MaxInt64
		}
		used := make([]bool, n+1)
		for row[at] != 0 {
			used[at] = true
			r, delta, next := row[at], int64(math.MaxInt64), 0
			for j := 1; j <= n; j++ {
				if used[j] {
					continue
				}
				if c := cost[r-1][j-1] - u[r] - v[j]; c < least[j] {
					least[j], way[j] = c, at
				}
				if least[j] < delta {
					delta, next = least[j], j
				}
			}
			for j := 0; j <= n; j++ {
				if used[j] {
					u[row[j]] += delta
					v[j] -= delta
				} else if least[j] != math.MaxInt64 {
					least[j] -= delta
				}
			}
			at = next
		}
		for at != 0 {
			row[at] = row[way[at]]
			at = way[at]
		}
	}
	out := make([]int, len(cost))
	for i := range out {
		out[i] = -1
	}
	for j := 1; j <= columns; j++ {
		if row[j] > 0 {
			out[row[j]-1] = j - 1
		}
	}
	return out
}

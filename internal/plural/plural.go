// Package plural puts numbers into sentences.
package plural

import "strconv"

// Count returns a number with its noun, as in "1 box" and "2 boxes".
func Count[N ~int | ~uint32](n N, one, many string) string {
	if n == 1 {
		many = one
	}
	return strconv.FormatInt(int64(n), 10) + " " + many
}

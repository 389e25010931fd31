// Package plural puts numbers into sentences.
package plural

import "fmt"

// Count returns a number with its noun, as in "1 box" and "2 boxes".
func Count[N ~int | ~uint32 | ~uint64](n N, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprint(n) + " " + many
}

package cli

import (
	"fmt"
	"io"
	"time"
)

// progress returns a function that prints the state of a benchmark, at most every two
// seconds.
func progress(w io.Writer) func(format string, args ...any) {
	const every = 2 * time.Second
	start, next := time.Now(), every
	return func(format string, args ...any) {
		if took := time.Since(start); took >= next {
			next = took + every
			fmt.Fprintf(w, "%5.1fs  %s\n", took.Seconds(), fmt.Sprintf(format, args...))
		}
	}
}

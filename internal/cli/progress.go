package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress returns a function that prints the state of a benchmark, at most every two
// seconds. Goroutines may call it at the same time.
func progress(w io.Writer) func(format string, args ...any) {
	const every = 2 * time.Second
	var mu sync.Mutex // guards next, and keeps the lines apart
	start, next := time.Now(), every
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if took := time.Since(start); took >= next {
			next = took + every
			fmt.Fprintf(w, "%5.1fs  %s\n", took.Seconds(), fmt.Sprintf(format, args...))
		}
	}
}

package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// wrongClock returns a clock that is off by the nanoseconds that a file holds at
// the time, not at all while there is no such file: for tests of what a manager
// does when the clock of its machine jumps.
func wrongClock(file string) func() time.Time {
	return func() time.Time {
		now := time.Now().Round(0) // a clock that jumps is not monotonic
		raw, err := os.ReadFile(file)
		if err != nil {
			return now
		}
		off, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			_, _ = fmt.Fprintf(os.Stderr, "dxpu: %s: %v\n", file, err)
			return now
		}
		return now.Add(time.Duration(off))
	}
}

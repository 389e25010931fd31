package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// wrongClock returns a clock that is wrong by the number of nanoseconds in a file, and
// correct while the file does not exist. It serves tests of a manager whose
// machine's clock jumps.
func wrongClock(file string) func() time.Time {
	return func() time.Time {
		now := time.Now().Round(0) // a clock that jumps is not monotonic
		raw, err := os.ReadFile(file)
		if err != nil {
			return now
		}
		off, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			fmt.Fprintf(os.Stderr, "dxpu: %s: %v\n", file, err)
			return now
		}
		return now.Add(time.Duration(off))
	}
}

package cli

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The callers of a benchmark tell their progress at the same time, and one of them prints it.
func TestProgressOfManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		report := progress(&out)
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				for range 3 {
					report("working")
					time.Sleep(time.Second)
				}
			})
		}
		callers.Wait()
		if got, want := out.String(), "  2.0s  working\n"; got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	})
}

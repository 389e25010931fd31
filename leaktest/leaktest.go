// Package leaktest fails the tests of a package whose goroutines outlive them.
package leaktest

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"
)

// patience is how long goroutines that were told to end may take to do so.
const patience = 5 * time.Second

// Main runs the tests, says what is left of them, and exits. It is the whole
// TestMain of a package. While fuzzing it only runs: the engine keeps goroutines
// of its own.
func Main(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if fuzzing := flag.Lookup("test.fuzz"); fuzzing != nil && fuzzing.Value.String() != "" {
		os.Exit(code)
	}
	for limit := time.Now().Add(patience); code == 0 && runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(limit) {
			fmt.Fprintf(os.Stderr, "%d goroutines are left, %d at the start\n", runtime.NumGoroutine(), before)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			code = 1
		}
	}
	os.Exit(code)
}

// Package leaktest finds what tests leave behind: it fails those of a package
// whose goroutines outlive them, and counts descriptors.
package leaktest

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
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

// NeedProc skips a test where /proc is not mounted, and only there.
func NeedProc(tb testing.TB) {
	tb.Helper()
	if _, err := os.Stat("/proc/self"); errors.Is(err, fs.ErrNotExist) {
		tb.Skip("/proc is not mounted")
	}
}

// Descriptors returns how many descriptors the process has open. It needs /proc.
func Descriptors(tb testing.TB) int {
	tb.Helper()
	NeedProc(tb)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}

// Package leaktest detects leaks of tests: it fails the tests of a package whose
// goroutines outlive them, and counts file descriptors.
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

// patience is the time that goroutines have to end after the tests.
const patience = 5 * time.Second

// Main is the TestMain of a package: it runs the tests, fails if goroutines are left,
// and exits. Under fuzzing it does not count, because the engine has its own
// goroutines.
func Main(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if fuzzing := flag.Lookup("test.fuzz"); fuzzing != nil && fuzzing.Value.String() != "" {
		os.Exit(code)
	}
	for limit := time.Now().Add(patience); code == 0 && runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(limit) {
			fmt.Fprintf(os.Stderr, "%d goroutines are left, there were %d at the start\n", runtime.NumGoroutine(), before)
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			code = 1
		}
	}
	os.Exit(code)
}

// NeedProc skips the test if /proc is not mounted.
func NeedProc(tb testing.TB) {
	tb.Helper()
	if _, err := os.Stat("/proc/self"); errors.Is(err, fs.ErrNotExist) {
		tb.Skip("/proc is not mounted")
	}
}

// Descriptors returns the number of open file descriptors. It skips the test if
// /proc is not mounted.
func Descriptors(tb testing.TB) int {
	tb.Helper()
	NeedProc(tb)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}

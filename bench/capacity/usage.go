package capacity

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
)

// usage is what the process has taken so far.
type usage struct {
	memory     uint64        // live objects and stacks after garbage collection, bytes
	processor  time.Duration // of all threads
	goroutines int
	at         time.Time
}

func measureUsage() (usage, error) {
	for range 2 { // the second collects what the pools gave up in the first
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	cpu, err := processorTime()
	return usage{m.HeapAlloc + m.StackInuse, cpu, runtime.NumGoroutine(), time.Now()}, err
}

// residentMemory returns what the process has in memory, in bytes.
func residentMemory() (uint64, error) {
	raw, err := os.ReadFile("/proc/self/statm") // proc(5): size, resident, ... in pages
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(raw), &size, &resident); err != nil {
		return 0, fmt.Errorf("bench: /proc/self/statm: %w", err)
	}
	return resident * uint64(os.Getpagesize()), nil
}

func processorTime() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, fmt.Errorf("bench: getrusage: %w", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// idle returns the share of a processor that the process takes while nobody
// uses it.
func idle(ctx context.Context, d time.Duration) (float64, error) {
	cpu, err := processorTime()
	if err != nil {
		return 0, err
	}
	at := time.Now()
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(d):
	}
	after, err := processorTime()
	return float64(after-cpu) / float64(time.Since(at)), err
}

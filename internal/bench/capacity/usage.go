package capacity

import (
	"context"
	"runtime"
	"time"

	"github.com/dxpu-project/dxpu/internal/bench/process"
)

// usage is the use of resources of the process so far.
type usage struct {
	memory     uint64        // live objects and stacks after garbage collection, bytes
	processor  time.Duration // of all threads
	goroutines int
	at         time.Time
}

func measureUsage() (usage, error) {
	for range 2 { // a sync.Pool releases its objects over two collections
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	cpu, err := process.Time()
	return usage{m.HeapAlloc + m.StackInuse, cpu, runtime.NumGoroutine(), time.Now()}, err
}

// idle measures the processors that the idle process uses: 1 is all of one.
func idle(ctx context.Context, d time.Duration) (float64, error) {
	cpu, err := process.Time()
	if err != nil {
		return 0, err
	}
	at := time.Now()
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(d):
	}
	after, err := process.Time()
	return float64(after-cpu) / float64(time.Since(at)), err
}

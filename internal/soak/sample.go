package soak

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"
)

// Sample is the use of resources of the process at rest: both proxies without a
// binding, after garbage collection.
type Sample struct {
	AtNS       int64  `json:"at_ns"`
	Heap       uint64 `json:"heap_bytes"`
	Shared     uint64 `json:"shared_bytes"` // resident memory of memfds: DMA memory of the VM
	Goroutines int    `json:"goroutines"`
	FDs        int    `json:"fds"`
}

func takeSample(at time.Duration) Sample {
	var m runtime.MemStats
	for range 3 { // a sync.Pool releases its objects over two collections
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return Sample{AtNS: at.Nanoseconds(), Heap: m.HeapAlloc, Shared: sharedMemory(), Goroutines: runtime.NumGoroutine(), FDs: openFDs()}
}

// sharedMemory returns the resident shared memory of the process in bytes; 0: the system
// does not say.
func sharedMemory() uint64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib uint64
		if n, _ := fmt.Sscanf(line, "RssShmem: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}

// openFDs counts the process's file descriptors.
func openFDs() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// Limits of growth between the warm-up and the end. Some goroutines may not have
// ended yet.
const (
	heapSlack      = 8 << 20
	sharedSlack    = 1 << 20
	goroutineSlack = 4
)

// checkGrowth compares the last sample with the first one after the warm-up.
func (r *run) checkGrowth() {
	if len(r.samples) < 2 {
		return
	}
	warm := r.samples[0]
	if len(r.samples) > 3 {
		warm = r.samples[1]
	}
	last := r.samples[len(r.samples)-1]
	// Some goroutines may not have ended yet.
	for wait := time.Millisecond; wait < time.Second && last.Goroutines > warm.Goroutines; wait *= 2 {
		pause(wait)
		last = takeSample(time.Duration(last.AtNS))
	}
	if last.Heap > warm.Heap+warm.Heap/10+heapSlack {
		r.ledger.violate("the heap has grown from %d to %d bytes", warm.Heap, last.Heap)
	}
	if last.Shared > warm.Shared+sharedSlack {
		r.ledger.violate("shared memory has grown from %d to %d bytes", warm.Shared, last.Shared)
	}
	if last.FDs > warm.FDs {
		r.ledger.violate("file descriptors have grown from %d to %d", warm.FDs, last.FDs)
	}
	if last.Goroutines > warm.Goroutines+goroutineSlack {
		r.ledger.stuck("goroutines have grown from %d to %d", warm.Goroutines, last.Goroutines)
	}
}

func goroutineStacks() string {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}

func pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}

// stallWatch detects times in which the machine does not run this process: without
// a processor no proxy can answer in time.
type stallWatch struct {
	stalls  int
	longest time.Duration
	recent  atomic.Int64 // longest gap of this and the last interval of stallMemory, in nanoseconds
}

const (
	stallTick = 20 * time.Millisecond
	// stallLeast is the shortest stall that excuses a loss: a register read passes eight
	// threads, each of which may wait as long, and has a second.
	stallLeast = 125 * time.Millisecond
	// stallMemory is the interval after which a gap is forgotten.
	stallMemory = 10 * time.Second
	// stallGrace is the extension of graceAfter by a recent gap: a link waits six times
	// the longest delay in each direction before it takes its peer for dead.
	stallGrace = 12
)

func (s *stallWatch) run(ctx context.Context, l *ledger) {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	last := time.Now()
	var present time.Duration
	from := last
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		gap := now.Sub(last) - stallTick
		if present = max(present, gap); int64(present) > s.recent.Load() {
			s.recent.Store(int64(present))
		}
		if now.Sub(from) > stallMemory {
			s.recent.Store(int64(present))
			present, from = 0, now
		}
		if gap > stallLeast {
			s.stalls++
			s.longest = max(s.longest, gap)
			l.stalled.Add(int64(gap))
			l.excuse("the machine stopped the process", last)(now.Add(s.grace()))
		}
		last = now
	}
}

// grace returns the time after a disturbance within which its consequences may show.
func (s *stallWatch) grace() time.Duration {
	return graceAfter + stallGrace*time.Duration(s.recent.Load())
}

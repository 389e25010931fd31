package reader

import (
	"runtime"
	"sync"
)

// maxBlocking bounds how far Block raises GOMAXPROCS. A host rarely has more
// active readers at one time, and the garbage collector, which goes by
// GOMAXPROCS, stays small.
const maxBlocking = 8

var blocking struct {
	mu    sync.Mutex // guards count
	count int
}

// Block raises GOMAXPROCS by one, until end is called, for a goroutine that will
// wait in the kernel again and again. Between short waits such a goroutine keeps
// its processor (P) of the Go scheduler, for up to ten milliseconds each time.
// If all were taken in this way, the goroutines that it has made ready would wait
// as long.
func Block() (end func()) {
	change(1)
	return sync.OnceFunc(func() { change(-1) })
}

func change(by int) {
	blocking.mu.Lock()
	defer blocking.mu.Unlock()
	before := min(blocking.count, maxBlocking)
	blocking.count += by
	if after := min(blocking.count, maxBlocking); after != before {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + after - before)
	}
}

package reader

import (
	"runtime"
	"sync"
)

// maxBlocking is how many goroutines that wait in the kernel are made up for:
// more than are active at one time for anything but a large host, and few
// enough that the garbage collector, which goes by GOMAXPROCS, stays small.
const maxBlocking = 8

var blocking struct {
	mu    sync.Mutex // guards what follows
	count int
}

// Block makes up for a goroutine that is going to wait in the kernel again and
// again, until end is called. Between short waits it keeps its place among the
// GOMAXPROCS that run, for up to ten milliseconds each time; were all places
// taken so, whatever it has just made ready would wait as long. So there is one
// place more for each.
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

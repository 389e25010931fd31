package bench

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// nap is the largest delay of timers while keepAwake runs, in ns.
const nap = 50_000

// keepAwake makes the timers of this process exact to about a nap until stop is
// called. In an idle process, timers of the Go runtime fire at whole milliseconds
// (its netpoller), which is many round trips. A thread that returns from the kernel
// all the time makes the scheduler check them.
func keepAwake() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // 1 ns instead of 50 µs; if refused, naps are 50 µs longer
		for ctx.Err() == nil {
			t := unix.NsecToTimespec(nap)
			_ = unix.Nanosleep(&t, nil) // an interrupted nap is only shorter
			runtime.Gosched()
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

package client

import (
	"sync"
	"time"
)

// A healthy pool elects a leader before longElection in most cases, and answers a probe
// long before slowProbe.
const (
	longElection = time.Second
	slowProbe    = 500 * time.Millisecond
)

// waits tells the user of a client once that requests wait, and once that they go on.
type waits struct {
	tell func(reason string) // nil: no user

	mu     sync.Mutex // guards the fields below; held while tell runs, so that its calls have an order
	told   bool
	silent bool // that a manager does not answer
}

func (w *waits) say(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.locked(reason)
}

// over says that an answer has arrived.
func (w *waits) over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told {
		w.locked("")
	}
}

// answered says that a manager has answered a probe, if the user was told that it does not. A
// wait for a leader goes on.
func (w *waits) answered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told && w.silent {
		w.locked("")
	}
}

// locked tells a reason, "" for the end of the wait.
func (w *waits) locked(reason string) {
	if told := reason != ""; w.tell != nil && told != w.told {
		w.told, w.silent = told, false
		w.tell(reason)
	}
}

// after tells a reason unless stop is called before d is over. After stop has returned
// nothing is told any more.
func (w *waits) after(d time.Duration, reason string) (stop func()) {
	stopped := false // guarded by mu
	timer := time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !stopped && !w.told {
			w.locked(reason)
			w.silent = true
		}
	})
	return func() {
		timer.Stop()
		w.mu.Lock()
		defer w.mu.Unlock()
		stopped = true
	}
}

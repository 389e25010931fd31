package vfioserver

import "sync"

// worker runs the jobs that may wait for a device server, one after the other.
type worker struct {
	idle func() // called when the backlog has become short again; must not block

	mu    sync.Mutex // guards the fields below
	more  *sync.Cond
	jobs  []job
	bytes int
	limit int    // of bytes, for idle
	done  uint64 // cost of the jobs that have ended
	busy  bool   // run has a job
	ended bool
}

type job struct {
	cost int // bytes that it holds
	do   func()
}

// resumePart is the part of the limit that is free when idle is called: room for more
// than one request, or each would wake the owner.
const resumePart = 4

// jobCost is the size of a job beside the bytes that it holds.
const jobCost = 64

func newWorker(idle func()) *worker {
	w := &worker{idle: idle, limit: maxBacklog}
	w.more = sync.NewCond(&w.mu)
	return w
}

// push adds a job that holds cost bytes. After stop it is dropped.
func (w *worker) push(cost int, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.jobs = append(w.jobs, job{cost + jobCost, do})
	w.bytes += cost + jobCost
	w.more.Signal()
}

// isIdle reports whether every job has ended.
func (w *worker) isIdle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.jobs) == 0 && !w.busy
}

// setLimit sets the limit of the backlog, for idle, and returns the backlog: idle is
// called if it is above the limit.
func (w *worker) setLimit(bytes int) (backlog int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limit = bytes
	return w.bytes
}

// load returns the cost of the jobs in the queue and of those that have ended.
func (w *worker) load() (backlog int, done uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes, w.done
}

// run runs jobs until stop, and then the remaining ones.
func (w *worker) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.jobs) == 0 {
			if w.ended {
				return
			}
			w.more.Wait()
		}
		j := w.jobs[0]
		w.jobs[0] = job{}
		w.jobs = w.jobs[1:]
		w.busy = true
		w.mu.Unlock()
		j.do()
		w.mu.Lock()
		w.busy = false
		short := w.limit - w.limit/resumePart
		long := w.bytes > short
		w.bytes -= j.cost
		w.done += uint64(j.cost)
		if long && w.bytes <= short {
			w.idle()
		}
	}
}

// stop ends run once the queue is empty.
func (w *worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.more.Signal()
}

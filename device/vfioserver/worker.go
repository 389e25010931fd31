package vfioserver

import "sync"

// worker runs the jobs that may wait for a device server, one after the other.
type worker struct {
	idle func() // called when the backlog is no longer too long; must not block

	mu    sync.Mutex // guards the fields below
	more  *sync.Cond
	jobs  []job
	bytes int
	done  uint64 // cost of the jobs that have ended
	busy  bool   // run has a job
	ended bool
}

type job struct {
	cost int // bytes that it holds
	do   func()
}

// jobCost is the size of a job beside the bytes that it holds.
const jobCost = 64

func newWorker(idle func()) *worker {
	w := &worker{idle: idle}
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
		full := w.bytes > maxBacklog
		w.bytes -= j.cost
		w.done += uint64(j.cost)
		if full && w.bytes <= maxBacklog {
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

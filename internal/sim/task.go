package sim

import (
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// task is blocking code of a node: a controller, or a program that uses a
// device. It is a coroutine: it runs until it waits, and goes on when its
// condition holds or its time has come.
type task struct {
	node  *Node
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	ready func() bool
	until time.Duration
	ended bool
}

// errStopped unwinds the task of a node that was stopped.
var errStopped = errors.New("sim: the node was stopped")

// Go starts f as a task of the node.
func (n *Node) Go(f func()) {
	t := &task{node: n, ready: func() bool { return true }}
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		defer func() {
			t.ended = true
			if r := recover(); r != nil && r != errStopped {
				panic(r)
			}
		}()
		f()
	})
	t.next = next
	n.stops = append(n.stops, stop)
	n.tasks = append(n.tasks, t)
	n.world.at(n.world.now, n, nil)
}

// resume runs the tasks that can go on, until none can.
func (n *Node) resume() {
	for again := true; again && !n.dead; {
		again = false
		for _, t := range n.tasks { // a task may start others, which have an event of their own
			if t.ended || !(t.ready() || n.world.now >= t.until) {
				continue
			}
			t.run()
			again = true
			if n.dead {
				return
			}
		}
	}
	n.tasks = slices.DeleteFunc(n.tasks, func(t *task) bool { return t.ended })
}

// run lets the task run until it waits or ends.
func (t *task) run() {
	w := t.node.world
	before := w.running
	w.running = t
	t.next()
	w.running = before
}

// WaitUntil suspends the calling task until ready returns true or the given time
// has come. A caller that is no task runs the world meanwhile.
func (n *Node) WaitUntil(until time.Duration, ready func() bool) {
	w := n.world
	if n.dead {
		panic(errStopped)
	}
	if ready() || w.now >= until {
		return
	}
	t := w.running
	if t == nil {
		w.RunUntil(until, ready)
		return
	}
	if until != machine.Never {
		w.at(until, n, nil)
	}
	t.ready, t.until = ready, until
	if !t.yield(struct{}{}) || n.dead {
		panic(errStopped)
	}
}

// Stop ends the node at once, as the death of its process does: it sends and
// receives nothing more, and its tasks end where they are.
func (n *Node) Stop() {
	if n.dead {
		return
	}
	n.dead = true
	for _, stop := range n.stops {
		stop()
	}
	n.tasks, n.stops = nil, nil
}

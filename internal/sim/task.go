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
	until time.Duration // on the node's clock
	armed time.Duration // when an event lets the task look at the time, on the world's clock; machine.Never: none does
	ended bool
}

// errStopped unwinds the task of a node that was stopped.
var errStopped = errors.New("sim: the node was stopped")

// Go starts f as a task of the node.
func (n *Node) Go(f func()) {
	t := &task{node: n, ready: func() bool { return true }, armed: machine.Never}
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
	over := false
	for again := true; again; {
		again = false
		for _, t := range n.tasks { // a task may start others, which have an event of their own
			if t.ended || !(t.ready() || n.Now() >= t.until) {
				continue
			}
			t.run()
			again = true
			over = over || t.ended
			if n.dead {
				return
			}
		}
	}
	if over {
		n.tasks = slices.DeleteFunc(n.tasks, func(t *task) bool { return t.ended })
	}
}

// run lets the task run until it waits or ends.
func (t *task) run() {
	w := t.node.world
	before := w.running
	w.running = t
	t.next()
	w.running = before
}

// WaitUntil suspends the calling task until ready returns true or the node's clock
// shows the given time. A caller that is no task runs the world meanwhile.
func (n *Node) WaitUntil(until time.Duration, ready func() bool) {
	w := n.world
	if n.dead {
		panic(errStopped)
	}
	over := func() bool { return ready() || n.Now() >= until }
	if over() {
		return
	}
	t := w.running
	if t == nil {
		w.RunUntil(n.worldTime(until), over)
		return
	}
	t.ready, t.until = ready, until
	t.arm()
	if !t.yield(struct{}{}) || n.dead {
		panic(errStopped)
	}
}

// arm schedules an event for the end of the task's wait. An event that is left
// over from an earlier wait moves itself.
func (t *task) arm() {
	at := t.node.worldTime(t.until)
	if at >= t.armed {
		return
	}
	t.armed = at
	t.node.world.at(at, t.node, func() {
		if t.armed != at {
			return // superseded by an earlier event
		}
		t.armed = machine.Never
		if !t.ended && t.node.Now() < t.until {
			t.arm()
		}
	})
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

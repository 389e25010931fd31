package session

import (
	"slices"

	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// Quiet commands. An event for each kernel takes time of the device: 2.2 µs with NVIDIA's driver
// 580 on an H100, 0.2 µs if one kernel of 16 has an event (docs/benchmarks.md). So a kernel has
// none while a further packet is already there, if its queue is in order and keeps no times. It
// has ended when the next command of its queue with an event has, and takes its status. On a
// device that several tenants share, each kernel has an event: the end of its turn.

// maxQuiet bounds the kernels in a row without an event: the driver learns late of their end.
const maxQuiet = 15

// enqueued is a command that is not complete. The event of a quiet one is 0.
type enqueued struct {
	event  cl.Event
	queue  *queue
	number uint64 // counts the commands of the session from 1
}

// quiet reports whether the next kernel of a queue needs no event.
func (s *Session) quiet(q *queue) bool {
	return s.Turns == nil && s.more && q.ordered && !q.times && q.quiet < maxQuiet
}

// settle gives the last command of each queue an event, before the session looks for the end
// of commands or sleeps.
func (s *Session) settle() error {
	for _, q := range s.busy {
		if err := s.cover(q); err != nil {
			return err
		}
	}
	return nil
}

// cover gives the last command of an ordered queue an event: that of a marker behind it.
func (s *Session) cover(q *queue) error {
	if q.quiet == 0 {
		return nil
	}
	e, err := s.Library.Marker(q.queue, nil)
	if err != nil {
		return err
	}
	last := &q.commands[len(q.commands)-1]
	last.event = e
	s.pending[last.cookie] = enqueued{e, q, s.pending[last.cookie].number}
	q.quiet = 0
	return s.Library.Flush(q.queue)
}

// covered returns the index of the first command with an event, or -1.
func (q *queue) covered() int {
	return q.index(func(c command) bool { return c.event != 0 })
}

func (q *queue) index(f func(command) bool) int { return slices.IndexFunc(q.commands, f) }

// eventOf returns the event that a command of a queue waits for so that a packet is complete, or 0
// if it need not wait.
func (s *Session) eventOf(cookie uint64, q *queue) (cl.Event, error) {
	e, ok := s.pending[cookie]
	switch {
	case !ok || e.event != 0:
		return e.event, nil
	case e.queue == q:
		return 0, nil // in order
	}
	i := e.queue.index(func(c command) bool { return c.cookie == cookie })
	for _, c := range e.queue.commands[i:] {
		if c.event != 0 {
			return c.event, nil
		}
	}
	err := s.cover(e.queue)
	return e.queue.commands[len(e.queue.commands)-1].event, err
}

package session

import (
	"slices"
	"sync"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// queue is a command queue. The commands of an ordered one are in the order of their packets;
// those of the others are in loose.go.
//
// The goroutine of Run looks for the end of commands while it polls for packets. When it
// goes to sleep, the queue's own goroutine waits for the commands instead, so that no
// other goroutine wakes up for a short command, and none polls for a long one.
type queue struct {
	birth
	flags   uint32
	queue   cl.Queue
	times   bool // events have times
	ordered bool // commands end in their order

	// Guarded by the session's mutex:
	commands []command // of an ordered queue
	quiet    int       // the last ones, which have no event
	loose    int       // commands of an out-of-order queue
	barrier  uint64    // of an out-of-order queue: cookie of the last barrier
	waited   cl.Event  // the queue's goroutine waits for it, and releases it if its command is gone then
	released bool      // no further command comes
	work     sync.Cond // the queue's goroutine may have to wait for a command
}

// command is an enqueued packet.
type command struct {
	cookie uint64
	event  cl.Event // 0: quiet
	out    uint64   // of the result
	length uint32
	gate   *gate    // nil: it needs no turn
	after  []uint64 // cookies of the commands that it waits for
}

func (s *Session) newQueue(c *cursor) error {
	handle, flags := c.u32(), c.u32()
	if err := s.free(handle, c); err != nil {
		return err
	}
	if flags&^reg.QueueFlags != 0 {
		return cl.InvalidValue
	}
	if s.queues >= reg.MaxQueues {
		return cl.OutOfResources
	}
	q := &queue{birth: s.birth(), flags: flags, times: flags&reg.QueueWithoutTimes == 0, ordered: flags&reg.QueueOutOfOrder == 0}
	h, err := s.Library.NewQueue(s.context, s.Device, q.times || s.Turns != nil, q.ordered)
	if err != nil {
		return err
	}
	q.queue, q.work.L = h, &s.mu
	s.queues++
	s.objects[handle] = q
	if !q.ordered {
		return nil
	}
	s.busy = append(s.busy, q)
	s.tasks.Go(func() { s.complete(q) })
	return nil
}

// releaseQueue ends a queue after its commands.
func (s *Session) releaseQueue(q *queue) {
	s.queues--
	q.released = true
	q.work.Signal()
	s.retire(q)
}

// maxBatch bounds the events of one message.
const maxBatch = 64

// complete waits for the commands of a queue while the goroutine of Run sleeps, until
// the queue is released.
func (s *Session) complete(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for !(s.asleep && len(q.commands) > 0) && !(q.released && len(q.commands) == 0) {
			q.work.Wait()
		}
		if len(q.commands) == 0 {
			break
		}
		first := q.covered()
		event := q.commands[first].event
		q.waited = event
		s.mu.Unlock()
		err := s.Library.Wait(event)
		s.mu.Lock()
		q.waited = 0
		var events []reg.Event
		if i := q.index(func(c command) bool { return c.event == event }); i >= 0 {
			events = s.endFirst(q, i+1, err, nil)
		} else { // it ended before a command of another queue
			_ = s.Library.Release(event)
		}
		if s.sendEnded(q, events) != nil || s.askTurn() != nil {
			return // without the connection, Run ends as well
		}
	}
	s.busy = slices.DeleteFunc(s.busy, func(o *queue) bool { return o == q })
	_ = s.Library.Release(q.queue)
}

// collect sends the events of the commands that have ended, and reports whether there
// were any.
func (s *Session) collect() (any bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.busy {
		if q.waited != 0 || len(q.commands) == 0 {
			continue
		}
		before := len(q.commands)
		if err := s.sendEnded(q, nil); err != nil {
			return false, err
		}
		any = any || len(q.commands) < before
	}
	ended, err := s.endLoose()
	if err == nil {
		err = s.askTurn()
	}
	return any || ended, err
}

// sendEnded sends some events and those of the queue's commands that have ended.
func (s *Session) sendEnded(q *queue, events []reg.Event) error {
	for i := q.covered(); i >= 0; i = q.covered() {
		ended, err := s.Library.Ended(q.commands[i].event)
		if !ended {
			break
		}
		events = s.endFirst(q, i+1, err, events)
		if len(events) >= maxBatch {
			if err := s.sendAll(events); err != nil {
				return err
			}
			events = events[:0]
		}
	}
	return s.sendAll(events)
}

// sendAll sends events in as many messages as it takes.
func (s *Session) sendAll(events []reg.Event) error {
	for part := range slices.Chunk(events, maxBatch) {
		if err := s.send(part...); err != nil {
			return err
		}
	}
	return nil
}

// endFirst ends the first n commands, the last of which has ended, and appends their events.
func (s *Session) endFirst(q *queue, n int, err error, events []reg.Event) []reg.Event {
	last := q.commands[n-1].cookie
	for len(q.commands) > 0 && s.isPending(last) {
		c := q.commands[0]
		q.commands = q.commands[1:] // of thousands
		events = append(s.endAfter(c, events), s.end(q, c, err))
	}
	if q.released && len(q.commands) == 0 {
		q.work.Signal()
	}
	return events
}

func (s *Session) isPending(cookie uint64) bool {
	_, ok := s.pending[cookie]
	return ok
}

// end returns the event of a command that has ended, and forgets the command.
func (s *Session) end(q *queue, c command, err error) reg.Event {
	e := reg.Event{Cookie: c.cookie, Out: c.out, Length: c.length}
	if err != nil {
		e.Status, e.Length = status(err), 0
		s.failed.add(c.cookie)
	}
	var t [4]uint64
	if q.times || c.gate != nil {
		t = s.Library.Times(c.event)
	}
	if c.gate != nil {
		s.endTurn(c.gate, t)
	}
	if q.times {
		e.Queued, e.Submitted, e.Started, e.Ended = t[0], t[1], t[2], t[3]
	}
	number := s.pending[c.cookie].number
	delete(s.pending, c.cookie)
	s.released.end(number)
	s.freeReleased()
	s.markEnd(c.cookie)
	s.turns.changed = true
	if c.event != 0 && c.event != q.waited {
		_ = s.Library.Release(c.event)
	}
	return e
}

// enqueue enqueues a packet.
func (s *Session) enqueue(h reg.PacketHeader, c *cursor) error {
	q, err := object[*queue](s, h.Queue, cl.InvalidCommandQueue)
	if err != nil {
		return err
	}
	if _, taken := s.pending[h.Cookie]; taken || len(s.pending) >= reg.MaxPacketsInFlight {
		return cl.OutOfResources
	}
	out := command{cookie: h.Cookie}
	if err := s.newGate(q, h); err != nil {
		return err
	}
	s.after = nil
	out.event, err = s.start(q, h, c, &out)
	out.after = s.after
	if out.gate = s.closeGate(err); err != nil {
		return err
	}
	s.enqueued++
	s.pending[h.Cookie] = enqueued{out.event, q, s.enqueued}
	s.markBegin(h.Cookie)
	if q.ordered {
		q.commands = append(q.commands, out)
	} else if err := s.addLoose(q, out); err != nil {
		return err
	} else if h.Op == reg.PacketMarker && h.Flags&reg.MarkerBarrier != 0 {
		q.barrier = h.Cookie
	}
	_ = s.askTurn() // without the connection, Run ends as well
	if out.event == 0 {
		q.quiet++
		return nil
	}
	q.quiet = 0
	return s.Library.Flush(q.queue)
}

package session

import "github.com/dxpu-project/dxpu/device/gpu/reg"

// A driver handles events in the order in which they arrive: it copies what a command has read into
// the program's memory then. So the event of a command comes behind those of the commands that it
// waits for, although the session looks at one queue after the other.

// endAfter ends the commands that a command that has ended waited for, and appends their events.
func (s *Session) endAfter(c command, events []reg.Event) []reg.Event {
	for _, cookie := range c.after {
		if p, ok := s.pending[cookie]; ok {
			events = s.endThrough(p.queue, cookie, events)
		}
	}
	return events
}

// endThrough ends the commands of a queue up to one that has ended, and appends their events. A
// command whose waits have failed may end before others that it waits for: those stay.
func (s *Session) endThrough(q *queue, cookie uint64, events []reg.Event) []reg.Event {
	if l, ok := s.loose[cookie]; ok {
		if ended, err := s.Library.Ended(l.command.event); ended {
			events = s.endOne(cookie, err, events)
		}
		return events
	}
	there := false
	i := q.index(func(c command) bool {
		there = there || c.cookie == cookie
		return there && c.event != 0
	})
	if i < 0 {
		return events
	}
	if ended, err := s.Library.Ended(q.commands[i].event); ended {
		events = s.endFirst(q, i+1, err, events)
	}
	return events
}

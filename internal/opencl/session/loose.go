package session

import (
	"sync"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// The commands of an out-of-order queue end in any order, and there may be thousands. So the
// platform tells of each end, in a thread of its own (noteEnd), and the session sends the
// events: the goroutine of Run while it polls, and else that of sendLoose.

// looseCommand is a command of an out-of-order queue.
type looseCommand struct {
	queue   *queue
	command command
}

// ends are commands that have ended.
type ends struct {
	mu   sync.Mutex // innermost: the platform may hold locks of its own
	list []ending
}

type ending struct {
	cookie uint64
	err    error
}

func (e *ends) take() []ending {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.list
	e.list = nil
	return list
}

// noteEnd notes the end of a command. It runs in a thread of the platform, or in a call that
// the session makes with its mutex.
func (s *Session) noteEnd(cookie uintptr, err error) {
	s.ends.mu.Lock()
	s.ends.list = append(s.ends.list, ending{uint64(cookie), err})
	s.ends.mu.Unlock()
	s.poke()
}

func (s *Session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// addLoose keeps a command until its end.
func (s *Session) addLoose(q *queue, c command) error {
	q.loose++
	s.loose[c.cookie] = looseCommand{q, c}
	if err := s.Library.Notify(c.event, uintptr(c.cookie)); err != nil {
		q.loose--
		delete(s.loose, c.cookie)
		delete(s.pending, c.cookie)
		s.markEnd(c.cookie)
		if c.gate != nil { // the platform will not tell of its end, so it has no turn
			_ = s.Library.SetUserEvent(c.gate.event)
			s.endTurn(c.gate, [4]uint64{})
		}
		return err
	}
	return nil
}

// sendLoose sends events while the goroutine of Run sleeps.
func (s *Session) sendLoose() {
	for range s.wake {
		s.mu.Lock()
		var err error
		if s.asleep {
			if _, err = s.endLoose(); err == nil {
				err = s.askTurn()
			}
		}
		s.mu.Unlock()
		if err != nil {
			return // without the connection, Run ends as well
		}
	}
}

// endLoose sends the events of the commands that have ended, and reports whether there
// were any.
func (s *Session) endLoose() (bool, error) {
	if len(s.loose) == 0 {
		return false, nil
	}
	ends := s.ends.take()
	var events []reg.Event
	for _, e := range ends {
		events = s.endOne(e.cookie, e.err, events)
		if len(events) >= maxBatch {
			if err := s.sendAll(events); err != nil {
				return false, err
			}
			events = events[:0]
		}
	}
	return len(ends) > 0, s.sendAll(events)
}

// endOne ends a command of an out-of-order queue, unless it is gone, and appends its event.
func (s *Session) endOne(cookie uint64, err error, events []reg.Event) []reg.Event {
	l, ok := s.loose[cookie]
	if !ok {
		return events
	}
	delete(s.loose, cookie)
	events = append(s.endAfter(l.command, events), s.end(l.queue, l.command, err))
	l.queue.loose--
	s.retire(l.queue)
	return events
}

// retire releases an out-of-order queue that has been released and has no command.
func (s *Session) retire(q *queue) {
	if !q.ordered && q.released && q.loose == 0 {
		_ = s.Library.Release(q.queue)
	}
}

package session

import (
	"errors"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// said keeps what a session says to the box.
type said struct{ list []wire.Message }

func (s *said) Send(p []byte) error {
	for len(p) > 0 {
		m, err := wire.Parse(p[:wire.MessageSize])
		if err != nil {
			return err
		}
		s.list, p = append(s.list, m), p[wire.MessageSize:]
	}
	return nil
}

func (s *said) Receive([]byte, bool) (int, error) { return 0, errors.New("the box says nothing") }

// A command asks for a turn when it waits for nothing else, one at a time, and the end of one
// and the next one are said together.
func TestTurnsAreNotSpentOnWaiting(t *testing.T) {
	box := &said{}
	s := &Session{Config: Config{Turns: box}, pending: map[uint64]enqueued{}}
	ordered, loose := &queue{ordered: true}, &queue{}
	enqueue := func(cookie uint64, q *queue, gated bool, waits ...uint64) *gate {
		s.pending[cookie] = enqueued{1, q}
		g := &gate{cookie: cookie, queue: q, waits: waits, launch: wire.Message{Type: wire.Launch}}
		if gated {
			s.turns.waiting = append(s.turns.waiting, g)
		}
		q.commands = append(q.commands, command{cookie: cookie})
		s.turns.changed = true
		return g
	}
	end := func(cookie uint64) {
		delete(s.pending, cookie)
		ordered.commands = slices.DeleteFunc(ordered.commands, func(c command) bool { return c.cookie == cookie })
		s.turns.changed = true
	}
	asks := func(want uint64) {
		t.Helper()
		if err := s.askTurn(); err != nil {
			t.Fatal(err)
		}
		var got uint64
		if s.turns.asked != nil {
			got = s.turns.asked.cookie
		}
		if got != want {
			t.Fatalf("packet %d asks for the turn, want %d", got, want)
		}
	}
	enqueue(1, ordered, false)           // a transfer
	second := enqueue(2, ordered, true)  // behind it
	enqueue(3, ordered, true)            // behind both
	fourth := enqueue(4, loose, true, 1) // waits for the transfer
	asks(0)
	fifth := enqueue(5, loose, true)
	asks(5)
	end(1)
	asks(5)
	s.turns.asked = nil // 5 has ended
	end(5)
	asks(2)
	s.turns.asked = nil
	asks(4) // 3 is behind 2, which the session believes to run
	s.turns.asked = nil
	end(2)
	asks(3)
	for i, m := range box.list {
		if m.Type != wire.Launch || m.ID != uint64(i+1) {
			t.Errorf("message %d: %+v", i, m)
		}
	}
	if len(box.list) != 4 || second.launch.ID != 2 || fourth.launch.ID != 3 || fifth.launch.ID != 1 {
		t.Errorf("%d messages", len(box.list))
	}
}

// The size of a launch is that of its work-groups, whatever a tenant asks for.
func TestSizeOfALaunch(t *testing.T) {
	for _, c := range []struct {
		name          string
		global, local []uintptr
		groups, items uint64
	}{
		{"chosen by the platform", []uintptr{1000, 3}, nil, 12, workGroup},
		{"whole groups", []uintptr{64, 8}, []uintptr{16, 4}, 8, 64},
		{"a rest", []uintptr{65}, []uintptr{16}, 5, 16},
		{"nothing", []uintptr{0}, []uintptr{0}, 1, 1},
		{"as much as there is", []uintptr{^uintptr(0), ^uintptr(0), ^uintptr(0)}, []uintptr{1, 1, 1}, 1 << 60, 1},
		{"the largest", []uintptr{^uintptr(0)}, []uintptr{2}, 1 << 20, 2},
		{"groups of any size", []uintptr{1, 1, 1}, []uintptr{^uintptr(0), ^uintptr(0), ^uintptr(0)}, 1, 1 << 20},
	} {
		g := &gate{}
		g.describe(launch{global: c.global, local: c.local})
		if g.launch.Arg[0] != c.groups || g.launch.Arg[1] != c.items {
			t.Errorf("%s: %d groups of %d, want %d of %d", c.name, g.launch.Arg[0], g.launch.Arg[1], c.groups, c.items)
		}
	}
}

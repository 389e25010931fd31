package session

import (
	"errors"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// said keeps what a session says to the box.
type said struct {
	list []wire.Message
	sent int // packets
}

func (s *said) Send(p []byte) error {
	s.sent++
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

// asker is a session without a platform.
type asker struct {
	*Session
	t   *testing.T
	box *said
}

func newAsker(t *testing.T) *asker {
	box := &said{}
	return &asker{&Session{Config: Config{Turns: box}, pending: map[uint64]enqueued{}}, t, box}
}

// enqueue enqueues a command with a gate that has a key, and its cookie as its blocks.
func (s *asker) enqueue(cookie uint64, q *queue, key uint64, waits ...uint64) *gate {
	g := &gate{cookie: cookie, queue: q, waits: waits, blocks: cookie, key: key}
	s.turns.waiting = append(s.turns.waiting, g)
	s.ungated(cookie, q)
	return g
}

func (s *asker) ungated(cookie uint64, q *queue) {
	s.pending[cookie] = enqueued{event: 1, queue: q}
	q.commands = append(q.commands, command{cookie: cookie})
	s.turns.changed = true
}

// end ends a command that ran for some time.
func (s *asker) end(g *gate, ran uint64) {
	s.gone(g.cookie, g.queue)
	s.turns.end(g, ran)
}

func (s *asker) gone(cookie uint64, q *queue) {
	delete(s.pending, cookie)
	q.commands = slices.DeleteFunc(q.commands, func(c command) bool { return c.cookie == cookie })
	s.turns.changed = true
}

// asks wants the turn to be asked for, or to have come, for the commands of some cookies.
func (s *asker) asks(want ...uint64) {
	s.t.Helper()
	if err := s.askTurn(); err != nil {
		s.t.Fatal(err)
	}
	var got []uint64
	if s.turns.asked != nil {
		for _, g := range s.turns.asked.gates {
			got = append(got, g.cookie)
		}
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("the turn is for the packets %v, want %v", got, want)
	}
}

// A command asks for a turn when it waits for nothing else, and the end of one turn and the next
// one are said together.
func TestTurnsAreNotSpentOnWaiting(t *testing.T) {
	s := newAsker(t)
	ordered, loose := &queue{ordered: true}, &queue{}
	s.ungated(1, ordered)               // a transfer
	second := s.enqueue(2, ordered, 0)  // behind it
	third := s.enqueue(3, ordered, 0)   // behind both
	fourth := s.enqueue(4, loose, 0, 1) // waits for the transfer
	s.asks()
	fifth := s.enqueue(5, loose, 0)
	s.asks(5)
	s.gone(1, ordered)
	s.asks(5)
	s.end(fifth, 7)
	s.asks(2)
	s.end(second, 0)
	s.asks(3)
	s.end(third, 0)
	s.asks(4)
	s.end(fourth, 0)
	s.asks()
	var want []wire.Message
	for i, cookie := range []uint64{5, 2, 3, 4} {
		want = append(want, wire.Message{Type: wire.Launch, ID: uint64(i + 1), Arg: [wire.Args]uint64{cookie, cookie, 1}})
		want = append(want, wire.Message{Type: wire.Done, ID: uint64(i + 1)})
	}
	want[1].Arg[0] = 7
	if !slices.Equal(s.box.list, want) {
		t.Errorf("the session says %+v, want %+v", s.box.list, want)
	}
	if n := s.box.sent; n != 5 {
		t.Errorf("%d packets, want one for the first turn and one for each end", n)
	}
}

// learn lets a command of each key run for its time.
func (s *asker) learn(q *queue, known map[uint64]uint64) {
	s.t.Helper()
	cookie := uint64(1000)
	for key, ran := range known {
		cookie++
		g := s.enqueue(cookie, q, key)
		s.asks(cookie)
		s.end(g, ran)
	}
	s.asks()
	s.box.list = nil
}

// A turn is for the commands that wait for nothing but each other, up to its time. Those that
// take a time that is not known have a turn each.
func TestTurnOfSeveralCommands(t *testing.T) {
	const short, long, unknown = 1, 2, 3
	s := newAsker(t)
	ordered, loose := &queue{ordered: true}, &queue{}
	s.learn(loose, map[uint64]uint64{short: maxTurn / 5, long: maxTurn})
	chain := []*gate{
		s.enqueue(10, ordered, short), s.enqueue(11, ordered, short),
		s.enqueue(12, loose, short, 11), s.enqueue(13, loose, short, 14),
	}
	s.ungated(14, ordered)
	behind := s.enqueue(15, ordered, short)
	s.asks(10, 11, 12)
	s.end(chain[1], maxTurn/5) // whatever order the platform tells
	s.end(chain[0], maxTurn/5)
	s.asks(12)
	if n := len(s.box.list); n != 1 {
		t.Fatalf("%d messages before the end of the turn", n)
	}
	s.gone(14, ordered)
	s.end(chain[2], maxTurn/5)
	s.asks(13, 15)
	if m := s.box.list[0]; m.Arg != [wire.Args]uint64{33, 12, 3, 3 * maxTurn / 5} {
		t.Errorf("the first turn is %+v", m)
	}
	if m := s.box.list[1]; m.Type != wire.Done || m.Arg[0] != 3*maxTurn/5 {
		t.Errorf("its end is %+v", m)
	}
	s.end(chain[3], 0)
	s.end(behind, 0)

	var gates []*gate
	for i, key := range []uint64{short, short, short, short, short, short, long, short, unknown, short} {
		gates = append(gates, s.enqueue(20+uint64(i), ordered, key))
	}
	for _, turn := range [][]uint64{{20, 21, 22, 23, 24}, {25}, {26}, {27}, {28}, {29}} {
		s.asks(turn...)
		for _, cookie := range turn {
			s.end(gates[cookie-20], 0)
		}
	}
	s.asks()
}

// A turn has a bounded number of commands, of a bounded number that were considered.
func TestTurnIsBounded(t *testing.T) {
	s := newAsker(t)
	ordered, loose := &queue{ordered: true}, &queue{}
	s.learn(ordered, map[uint64]uint64{1: 1})
	for i := range uint64(maxGates + 1) {
		s.enqueue(1+i, ordered, 1)
	}
	if got := len(s.nextTurn().gates); got != maxGates {
		t.Errorf("%d commands in a turn", got)
	}
	s.turns.waiting = nil
	s.enqueue(100, loose, 1)
	s.ungated(101, ordered)
	for i := range uint64(maxLook) {
		s.enqueue(200+i, loose, 1, 101)
	}
	s.enqueue(999, loose, 1)
	if got := len(s.nextTurn().gates); got != 1 {
		t.Errorf("%d commands in a turn: the last one is behind %d others", got, maxLook)
	}
}

// A command that takes longer than others of its key counts for that long, and less with each
// that takes less.
func TestTimesOfCommands(t *testing.T) {
	var k times
	for _, ran := range []uint64{0, 80, 800, 80} {
		k.note(5, ran)
	}
	if k[5] != 800-720/8 {
		t.Errorf("%d, want 710", k[5])
	}
	k.note(0, 3)
	for i := range uint64(2 * maxTimes) {
		k.note(i, 1)
	}
	if len(k) != maxTimes || k[0] != 0 {
		t.Errorf("%d keys, %d of none", len(k), k[0])
	}
}

// The size of a launch is that of its work-groups, whatever a tenant asks for.
func TestSizeOfALaunch(t *testing.T) {
	for _, c := range []struct {
		name          string
		global, local []uintptr
		groups        uint64
	}{
		{"chosen by the platform", []uintptr{1000, 3}, nil, 12},
		{"whole groups", []uintptr{64, 8}, []uintptr{16, 4}, 8},
		{"a rest", []uintptr{65}, []uintptr{16}, 5},
		{"nothing", []uintptr{0}, []uintptr{0}, 1},
		{"as much as there is", []uintptr{^uintptr(0), ^uintptr(0), ^uintptr(0)}, []uintptr{1, 1, 1}, 1 << 60},
		{"the largest", []uintptr{^uintptr(0)}, []uintptr{2}, 1 << 20},
		{"groups of any size", []uintptr{1, 1, 1}, []uintptr{^uintptr(0), ^uintptr(0), ^uintptr(0)}, 1},
	} {
		g := &gate{}
		g.describe(launch{global: c.global, local: c.local})
		if g.blocks != c.groups {
			t.Errorf("%s: %d groups, want %d", c.name, g.blocks, c.groups)
		}
	}
}

package opencl

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// newTalk returns an engine with a process that says what the test wants.
func newTalk(t *testing.T) (*engine, *process) {
	t.Helper()
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20, most: 1 << 20, turns: true}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	p := &process{engine: e, context: e.context}
	other, err := p.connectTurns()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other[0].Close(); err != nil {
			t.Error(err)
		}
		p.endTalk()
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	return e, p
}

func launch(id uint64) wire.Message {
	return wire.Message{Type: wire.Launch, ID: id, Arg: [wire.Args]uint64{7, 3, 4, 99}}
}

func done(id uint64, ran time.Duration) wire.Message {
	return wire.Message{Type: wire.Done, ID: id, Arg: [wire.Args]uint64{uint64(ran)}}
}

// say has the process send messages in one datagram.
func (p *process) say(list ...wire.Message) error {
	var b []byte
	for _, m := range list {
		b = m.Append(b)
	}
	return p.takeMessages(b)
}

// One message ends a turn and asks for the next one, which is there when the end is told.
func TestTurnsFollowEachOther(t *testing.T) {
	e, p := newTalk(t)
	if err := p.say(launch(1)); err != nil {
		t.Fatal(err)
	}
	first, ok := e.nextTurn()
	if !ok || first.Blocks() != 7 || first.Widest() != 3 || first.Cost() != 99 {
		t.Fatalf("turn %+v, %t", first, ok)
	}
	if _, ok := e.nextTurn(); ok {
		t.Error("a turn was given out twice")
	}
	var ends []time.Duration
	var next *turn
	if !first.Begin(func(took time.Duration) {
		ends = append(ends, took)
		next, _ = e.nextTurn()
	}) {
		t.Fatal("the turn does not begin")
	}
	if err := p.say(done(1, time.Nanosecond), launch(2)); err != nil {
		t.Fatal(err)
	}
	if len(ends) != 1 || next == nil || next.id != 2 {
		t.Fatalf("ends %v, next %+v", ends, next)
	}
	p.endTalk() // the process ends before the second turn begins
	if next.Begin(func(time.Duration) { t.Error("the end of a turn that did not begin") }) {
		t.Error("a turn of an ended process begins")
	}
}

// The time of a turn lies between half of what it kept others waiting for, and that.
func TestTurnIsPaidFor(t *testing.T) {
	e, p := newTalk(t)
	for i, says := range []time.Duration{0, time.Nanosecond, time.Hour, 1<<63 - 1} {
		id := uint64(i + 1)
		if err := p.say(launch(id)); err != nil {
			t.Fatal(err)
		}
		turn, _ := e.nextTurn()
		var took time.Duration
		if !turn.Begin(func(d time.Duration) { took = d }) {
			t.Fatal("the turn does not begin")
		}
		const held = time.Minute
		turn.began = turn.began.Add(-held)
		if err := p.say(done(id, says)); err != nil {
			t.Fatal(err)
		}
		want := held / 2
		if says > held {
			want = held
		}
		if took < want || took > want+held/10 {
			t.Errorf("a turn of %v for which the process says %v counts %v", held, says, took)
		}
	}
}

// The turn of a process that ends is over, once.
func TestTurnOfAProcessThatEnds(t *testing.T) {
	e, p := newTalk(t)
	if err := p.say(launch(1)); err != nil {
		t.Fatal(err)
	}
	turn, _ := e.nextTurn()
	n := 0
	if !turn.Begin(func(time.Duration) { n++ }) {
		t.Fatal("the turn does not begin")
	}
	p.endTalk()
	if n != 1 {
		t.Errorf("the turn ended %d times", n)
	}
	if err := p.say(done(1, 0)); err == nil {
		t.Error("it may end again")
	}
	if n != 1 {
		t.Errorf("the turn ended %d times", n)
	}
}

// The box bounds the sizes that a process gives for its turns.
func TestSizeOfATurn(t *testing.T) {
	e, p := newTalk(t)
	const most = 1<<64 - 1
	if err := p.say(wire.Message{Type: wire.Launch, ID: 1, Arg: [wire.Args]uint64{most, most, most, most}}); err != nil {
		t.Fatal(err)
	}
	turn, _ := e.nextTurn()
	if turn.Blocks() != 1<<40 || turn.Widest() != 1<<40 || turn.Cost() != time.Hour {
		t.Errorf("%d blocks, %d of a kernel, %v", turn.Blocks(), turn.Widest(), turn.Cost())
	}
	p.turn = nil
	if err := p.say(wire.Message{Type: wire.Launch, ID: 2, Arg: [wire.Args]uint64{2, 3}}); err != nil {
		t.Fatal(err)
	}
	if turn, _ = e.nextTurn(); turn.Widest() != 2 || turn.Cost() != 0 {
		t.Errorf("%d blocks of a kernel of 2, %v", turn.Widest(), turn.Cost())
	}
}

// A process that breaks the rules is found out, and gets no second turn.
func TestWrongTurns(t *testing.T) {
	for name, say := range map[string][]byte{
		"two turns":        launch(2).Append(launch(1).Append(nil)),
		"an end of none":   done(1, 0).Append(nil),
		"another's end":    done(2, 0).Append(launch(1).Append(nil)),
		"a part":           launch(1).Append(nil)[:wire.MessageSize-1],
		"more":             append(launch(1).Append(nil), 0),
		"the box's permit": wire.Message{Type: wire.Permit, ID: 1}.Append(nil),
		"more memory":      wire.Message{Type: wire.Granted, Bytes: 1 << 40}.Append(nil),
		"a request":        wire.Message{Type: wire.Allocate, Bytes: 1}.Append(nil),
		"zeros":            make([]byte, wire.MessageSize),
	} {
		e, p := newTalk(t)
		if err := p.takeMessages(say); err == nil {
			t.Errorf("%s: accepted", name)
		}
		e.nextTurn()
		if _, ok := e.nextTurn(); ok {
			t.Errorf("%s: two turns", name)
		}
	}
}

func FuzzTurns(f *testing.F) {
	for _, m := range []wire.Message{launch(1), done(1, time.Second), {Type: wire.Permit}, {Type: wire.Granted, Bytes: 5}} {
		f.Add(m.Append(nil), byte(0))
		f.Add(slices.Concat(done(1, 1).Append(nil), m.Append(nil)), byte(1))
	}
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20, turns: true}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, begun byte) {
		p := &process{engine: e, context: e.context}
		other, err := p.connectTurns()
		if err != nil {
			t.Fatal(err)
		}
		ends, begins := 0, 0
		if p.say(launch(1)) != nil {
			t.Fatal("a launch is refused")
		}
		if turn, ok := e.nextTurn(); ok && begun&1 != 0 && turn.Begin(func(time.Duration) { ends++ }) {
			begins++
		}
		_ = p.takeMessages(b) // an error ends the process
		if turn, ok := e.nextTurn(); ok && (turn.blocks < turn.widest || turn.widest < 1 || turn.cost < 0) {
			t.Errorf("turn %+v", turn)
		}
		p.endTalk()
		if err := other[0].Close(); err != nil {
			t.Fatal(err)
		}
		if ends != begins {
			t.Errorf("%d turns of %d ended", ends, begins)
		}
	})
}

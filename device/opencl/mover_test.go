package opencl

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/move"
)

// newMoving returns an engine whose process is the test.
func newMoving(t testing.TB) (*engine, *process) {
	t.Helper()
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// No process has this number.
	p := &process{engine: e, ready: true, cmd: &exec.Cmd{Process: &os.Process{Pid: 1 << 30}}}
	others, err := p.connectMoves()
	if err != nil {
		t.Fatal(err)
	}
	channel, err := p.connect()
	if err != nil {
		t.Fatal(err)
	}
	e.process = p
	e.mu.Lock()
	e.wanted, e.state, p.context = true, reg.ComputeReady, e.context
	e.mu.Unlock()
	t.Cleanup(func() {
		e.process = nil
		err := errors.Join(others[0].Close(), others[1].Close(), channel[0].Close(), channel[1].Close(), p.disconnect(), p.moves.Close(), unix.Munmap(p.ring), e.close())
		if err != nil {
			t.Error(err)
		}
	})
	return e, p
}

// A process that counts what cannot be, or speaks out of turn, is ended; an answer from before
// does not count.
func TestMoverIsNotFooled(t *testing.T) {
	e, p := newMoving(t)
	e.Track(true)
	buf := make([]byte, 4096)
	if n, later := e.Save(buf); n != frameHeader || !later || binary.LittleEndian.Uint32(buf) != frameStart {
		t.Fatalf("%d %v", n, later)
	}
	if e.Changed() < unknownLeft {
		t.Error("a context whose process has said nothing has not changed")
	}
	now := e.move.generation
	for _, m := range []move.Message{
		{Type: move.Put, Generation: now, Count: move.RingSize + 8},
		{Type: move.Put, Generation: now, Count: 7},
		{Type: move.Taken, Generation: now, Count: 0},
		{Type: move.Save, Generation: now},
	} {
		if e.takeMove(p, m) == nil {
			t.Errorf("%+v was taken", m)
		}
	}
	if err := e.takeMove(p, move.Message{Type: move.Passed, Generation: now - 1, Count: 1 << 40}); err != nil || !e.move.passing {
		t.Errorf("an answer from before: %v", err)
	}
	if err := e.takeMove(p, move.Message{Type: move.Passed, Generation: now, Left: 1 << 63}); err != nil {
		t.Fatal(err)
	}
	if n, later := e.Save(buf); n != 0 || !later || !e.move.passing {
		t.Errorf("no pass over what has changed: %d %v", n, later)
	}
}

// A process that cannot save its context says why, and the next move asks it again.
func TestContextCannotBeSaved(t *testing.T) {
	e, p := newMoving(t)
	e.Track(true)
	e.Save(make([]byte, 4096))
	if err := e.Movable(); err != nil {
		t.Fatal(err)
	}
	if err := e.takeMove(p, move.Message{Type: move.Loaded, Generation: e.move.generation, Text: "no binary"}); err != nil {
		t.Fatal(err)
	}
	if err := e.Movable(); err == nil || !strings.Contains(err.Error(), "no binary") {
		t.Errorf("a context that cannot be saved: %v", err)
	}
	e.Track(false)
	if err := e.Movable(); err != nil {
		t.Errorf("after the move: %v", err)
	}
}

// A full ring makes the target busy, and what comes then is not lost.
func TestTargetIsBusy(t *testing.T) {
	e, p := newMoving(t)
	p.context = noContext
	if err := e.Load(0, appendFrame(nil, frameStart, 0)); err != nil {
		t.Fatal(err)
	}
	at, piece := uint64(frameHeader), append(appendFrame(nil, frameData, 32<<10), make([]byte, 32<<10)...)
	for {
		err := e.Load(at, piece)
		if errors.Is(err, device.ErrBusy) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if at += uint64(len(piece)); at > 2*move.RingSize {
			t.Fatal("the target takes without end")
		}
	}
	if e.Settled() {
		t.Error("a full ring is settled")
	}
	if err := e.Load(at+8, piece); err == nil || errors.Is(err, device.ErrBusy) {
		t.Errorf("a gap: %v", err)
	}
	put, _ := e.move.ring.Count()
	if err := e.takeMove(p, move.Message{Type: move.Taken, Generation: e.move.generation, Count: put}); err != nil {
		t.Fatal(err)
	}
	if err := e.Load(at, piece); err != nil {
		t.Error(err)
	}
}

// The box counts right and does not grow after any message of a process and any piece of a stream.
func FuzzMoves(f *testing.F) {
	e, p := newMoving(f)
	f.Add(move.Message{Type: move.Put, Count: 64, Left: 1}.Append(nil), appendFrame(nil, frameStart, 0), true)
	f.Add(move.Message{Type: move.Taken, Count: 8}.Append(nil), append(appendFrame(appendFrame(nil, frameStart, 0), frameData, 16), make([]byte, 16)...), false)
	f.Add(move.Message{Type: move.Loaded, Text: "x"}.Append(nil), appendFrame(nil, frameStop, 0), false)
	f.Fuzz(func(t *testing.T, message, stream []byte, source bool) {
		e.mu.Lock()
		e.move = mover{generation: e.move.generation + 1}
		e.wanted, e.state, p.context, p.killed = source, reg.ComputeReady, noContext, false
		if source {
			p.context = e.context
		}
		e.mu.Unlock()
		buf := make([]byte, 256)
		if source {
			e.Track(true)
			e.Save(buf)
		}
		for at := 0; at < len(stream); at += 24 {
			_ = e.Load(e.move.position, stream[at:min(len(stream), at+24)])
		}
		if m, err := move.Parse(message); err == nil {
			m.Generation = e.move.generation
			e.mu.Lock()
			_ = e.takeMove(p, m)
			e.mu.Unlock()
		}
		for range 4 {
			if n, _ := e.Save(buf); n > len(buf) || n%move.Align != 0 {
				t.Fatalf("a piece of %d bytes", n)
			}
		}
		if r := &e.move.ring; r.Memory != nil && (r.Ready() < 0 || r.Room() < 0) {
			t.Errorf("%d bytes in the ring", r.Ready())
		}
		if len(e.move.stash) > maxStash {
			t.Errorf("%d bytes wait", len(e.move.stash))
		}
		e.Loaded()
		e.Settled()
	})
}

package opencl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/move"
)

// A context moves as a stream of bytes (docs/migration.md): the process of the source writes
// what makes its objects and what is in them, and the process of the target makes them again.
// The box carries the bytes, and cuts them into frames, because a guest may end its context and
// begin another one meanwhile:
//
//	bytes 0-3 the type, 4-7 the number of bytes that follow
//
// The processes may lie: one of them to its own tenant only, whose objects they are.

// Types of frames.
const (
	frameStart = 1 // a new context begins; the former one has ended
	frameStop  = 2 // there is no context
	frameData  = 3 // bytes of the process
)

const frameHeader = 8

// unknownLeft counts as changed until the process has said how much has. It keeps the owner
// from believing that little is left.
const unknownLeft = 1 << 30

// maxStash bounds the bytes of a stream that wait for the process of the target.
const maxStash = 256 << 10

// mover is the state of a move, to or from this engine. The engine's mu guards it.
type mover struct {
	generation uint32 // of the conversation with a process
	told       uint64 // bytes of the ring that the process was told of: taken, or put

	ring move.Ring

	// Source.
	tracking bool
	from     *process // that saves; nil: none
	context  uint64   // that the stream has; 0: none
	left     uint64
	passing  bool  // between Pass and Passed
	rest     bool  // the next pass is the last one
	last     bool  // the last pass was asked for
	complete bool  // and is over
	lost     error // why the process cannot save its context; nil: it can

	// Target.
	position uint64 // of the stream
	stash    []byte // not handled
	data     int    // bytes that are left of the frame
	to       *process
	started  bool
	ended    bool // End was sent
	loaded   bool
	err      error
}

// Movable implements gpu.Mover.
func (e *engine) Movable() error {
	if e.limits.turns {
		return errors.New("a part of an OpenCL device cannot move")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.move.lost
}

// Identity implements gpu.Mover.
func (e *engine) Identity() string { return e.identity }

// Track implements gpu.Mover.
func (e *engine) Track(on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	if m.from != nil {
		m.tell(m.from, move.Message{Type: move.Stop})
	}
	*m = mover{generation: m.generation + 1, tracking: on}
}

// tell sends a message of the current generation. A process whose socket is full has not
// followed the rules, and the owner's time limit ends the move.
func (m *mover) tell(p *process, msg move.Message) {
	msg.Generation = m.generation
	sendNow(p.moves, msg.Append(nil))
}

// begin begins a conversation with a process, by its first message.
func (m *mover) begin(p *process, first move.Type) {
	m.generation++
	m.ring, m.told = move.Ring{Memory: p.ring}, 0
	m.tell(p, move.Message{Type: first})
}

// Changed implements gpu.Mover.
func (e *engine) Changed() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	if e.current() != m.context || m.from == nil && e.wanted {
		return unknownLeft
	}
	return m.left + uint64(m.ring.Ready())
}

// current returns the context whose objects are to be in the stream; 0: there is none.
func (e *engine) current() uint64 {
	if !e.wanted {
		return 0
	}
	return e.context
}

// Rest implements gpu.Mover.
func (e *engine) Rest() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	if e.wanted && (e.state != reg.ComputeReady || e.inFlight.Load() > 0) {
		return false
	}
	m.rest = true
	return true
}

// Save implements gpu.Mover.
func (e *engine) Save(p []byte) (n int, later bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	if now := e.current(); now != m.context && m.tracking {
		return e.follow(p, now)
	}
	switch {
	case m.from == nil:
		return 0, false
	case m.ring.Ready() > 0:
		return m.take(p), true
	case m.passing:
		return 0, true
	case m.complete:
		return 0, false
	case m.left == 0 && !m.rest:
		return 0, false
	}
	pass := move.Message{Type: move.Pass}
	if m.rest {
		m.last, pass.Count = true, 1
	}
	m.passing = true
	m.tell(m.from, pass)
	return 0, true
}

// follow puts the end of the former context, or the start of the present one, into the stream.
func (e *engine) follow(p []byte, now uint64) (n int, later bool) {
	m := &e.move
	if now == 0 {
		m.context, m.from = 0, nil
		return len(appendFrame(p[:0], frameStop, 0)), true
	}
	if e.process == nil || e.process.context != now || !e.process.ready {
		return 0, e.state == reg.ComputeStarting && m.rest
	}
	m.context, m.from = now, e.process
	m.passing, m.last, m.complete, m.lost, m.left = true, false, false, nil, unknownLeft // until the first Passed
	m.begin(m.from, move.Save)
	return len(appendFrame(p[:0], frameStart, 0)), true
}

func appendFrame(b []byte, kind, n uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, kind), n)
}

// take fills p with a frame of the ring's bytes.
func (m *mover) take(p []byte) int {
	n := min(len(p)-frameHeader, m.ring.Ready()) &^ (move.Align - 1)
	appendFrame(p[:0], frameData, uint32(n))
	m.ring.Take(p[frameHeader:][:n])
	if _, taken := m.ring.Count(); taken-m.told >= move.RingSize/8 || m.ring.Ready() == 0 {
		m.told = taken
		m.tell(m.from, move.Message{Type: move.Taken, Count: taken})
	}
	return frameHeader + n
}

// Load implements gpu.Mover.
func (e *engine) Load(at uint64, p []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	e.drain()
	switch {
	case m.err != nil:
		return m.err
	case at != m.position:
		return fmt.Errorf("opencl: the stream of the other engine has a gap at %d", m.position)
	case len(m.stash)+len(p) > maxStash:
		return device.ErrBusy
	}
	m.position += uint64(len(p))
	m.stash = append(m.stash, p...)
	e.drain()
	return m.err
}

// drain handles the bytes of the stream as far as the process takes them.
func (e *engine) drain() {
	m := &e.move
	for m.err == nil {
		if m.data > 0 {
			n := min(m.data, len(m.stash))
			if n == 0 || !e.loader() {
				return
			}
			if n = m.ring.Put(m.stash[:n]); n == 0 {
				return
			}
			m.data -= n
			m.stash = m.stash[n:]
			m.offer()
			continue
		}
		if len(m.stash) < frameHeader {
			return
		}
		kind, n := binary.LittleEndian.Uint32(m.stash), binary.LittleEndian.Uint32(m.stash[4:])
		m.stash = m.stash[frameHeader:]
		switch {
		case kind == frameStart && n == 0:
			e.begin()
			m.to, m.started, m.loaded = nil, true, false
		case kind == frameStop && n == 0:
			e.change(false, reg.ComputeOff)
			m.to, m.started = nil, false
		case kind == frameData && m.started && n < 1<<24 && n%move.Align == 0:
			m.data = int(n)
		default:
			m.err = errors.New("opencl: the stream of the other engine is damaged")
		}
	}
}

// offer tells the process of the target of bytes in the ring: of many at once, or when it has
// taken all that it knows of. So there are few messages on the way, and none finds a full socket.
func (m *mover) offer() {
	put, taken := m.ring.Count()
	if put > m.told && put%move.Align == 0 && (taken == m.told || put-m.told >= move.RingSize/8) {
		m.told = put
		m.tell(m.to, move.Message{Type: move.Put, Count: put})
	}
}

// loader reports whether the process of the context takes objects, and tells it to begin.
func (e *engine) loader() bool {
	m, p := &e.move, e.process
	switch {
	case m.to != nil:
		return true
	case !e.wanted: // it has failed, or was ended
		m.err = errors.New("opencl: the engine ended while it took over the context")
		return false
	case p == nil || p.context != e.context || p.killed || !p.ready:
		return false
	}
	m.to = p
	m.begin(p, move.Load)
	return true
}

// Settled implements gpu.Mover. A stream that is wrong ends elsewhere.
func (e *engine) Settled() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	e.drain()
	return m.err != nil || len(m.stash) == 0 && m.data == 0 && (!m.started || e.loader() && m.ring.Ready() == 0)
}

// Loaded implements gpu.Mover.
func (e *engine) Loaded() (started, ok bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := &e.move
	e.drain()
	switch {
	case m.err != nil:
		return false, false, m.err
	case !m.started && len(m.stash) == 0 && m.data == 0:
		return false, true, nil
	case m.data > len(m.stash), m.data == 0 && len(m.stash) > 0:
		m.err = errors.New("opencl: the stream of the other engine ends early")
		return true, false, m.err
	case !e.loader(), m.data > 0, m.ring.Ready() > 0:
		return true, false, m.err
	case !m.ended:
		m.ended = true
		m.tell(m.to, move.Message{Type: move.End})
	}
	return true, m.loaded, nil
}

// forgetMove ends the move of a process that has ended. Its ring goes with it.
func (e *engine) forgetMove(p *process) {
	e.mu.Lock()
	m, notify := &e.move, func() {}
	if m.from == p {
		m.from, m.ring = nil, move.Ring{}
	}
	if m.to == p {
		m.to, m.ring = nil, move.Ring{}
		m.err = errors.New("opencl: the engine ended while it took over the context")
		notify = e.notify
	}
	e.mu.Unlock()
	notify()
}

// connectMoves makes the socket and the ring for moves, and returns the process's ends.
func (p *process) connectMoves() (others []*os.File, err error) {
	file, err := newMemory("moves", move.RingSize)
	if err != nil {
		return nil, err
	}
	ring, err := unix.Mmap(int(file.Fd()), 0, move.RingSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map the memory for moves: %w", err), file.Close())
	}
	conn, other, err := p.engine.connectTalk("moves")
	if err != nil {
		return nil, errors.Join(err, file.Close(), unix.Munmap(ring))
	}
	p.moves, p.ring = conn, ring
	return []*os.File{other, file}, nil
}

// takeMoves takes what a process says of moves until its socket is closed. A process that
// breaks the rules is ended.
func (p *process) takeMoves() {
	b := make([]byte, move.MaxMessage+1)
	for {
		n, err := p.moves.Read(b)
		if err != nil || n == 0 {
			return
		}
		m, err := move.Parse(b[:n])
		e := p.engine
		e.mu.Lock()
		if err == nil {
			err = e.takeMove(p, m)
		}
		if err != nil && !p.reaped {
			p.kill()
		}
		notify := e.notify
		e.mu.Unlock()
		if err != nil {
			e.log.Warn("the OpenCL engine is ended", "err", err)
			return
		}
		notify()
	}
}

// takeMove takes a message. The caller holds mu.
func (e *engine) takeMove(p *process, msg move.Message) error {
	m := &e.move
	if msg.Generation != m.generation || p != m.from && p != m.to {
		return nil
	}
	saving := p == m.from
	switch {
	case msg.Type == move.Put && saving:
		m.left = min(msg.Left, unknownLeft<<10)
		return m.ring.SetPut(msg.Count)
	case msg.Type == move.Changed && saving:
		m.left = min(msg.Left, unknownLeft<<10)
		return nil
	case msg.Type == move.Loaded && saving:
		m.lost = fmt.Errorf("the OpenCL engine cannot save its context: %.200q", msg.Text)
		return nil
	case msg.Type == move.Passed && saving:
		m.left, m.passing, m.complete = min(msg.Left, unknownLeft<<10), false, m.last
		return m.ring.SetPut(msg.Count)
	case msg.Type == move.Taken && !saving:
		if err := m.ring.SetTaken(msg.Count); err != nil {
			return err
		}
		e.drain()
		m.offer()
		return nil
	case msg.Type == move.Loaded && !saving:
		m.loaded = msg.Text == ""
		if !m.loaded && m.err == nil {
			m.err = fmt.Errorf("opencl: the engine cannot make the objects of the other one: %.200q", msg.Text)
		}
		return nil
	}
	return fmt.Errorf("the process sent the message %d about a move out of turn", msg.Type)
}

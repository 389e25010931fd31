package session

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
	"github.com/dxpu-project/dxpu/internal/opencl/move"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// A context moves as a stream of records, each a packet header with a body: the packets that make
// the objects, in the order in which they were made, and what is in their memory. Objects have
// numbers in the stream instead of handles, because an object may live longer than its handle; the
// last record has the handles. The target executes the records as they come (load.go).
//
//	Op                body                          Queue    others
//	PacketQueue ... Kernel, Release, Constant   as the packet's, with numbers
//	PacketProgram     text                          number   Flags: source, IL or binary
//	PacketCompile     source                        number   of a program that was compiled
//	PacketBuild       options                       number   Flags: recordFailed
//	PacketWrite       data                          number   Out: offset
//	PacketWriteImage  origin and region, data       number
//	PacketOutput      text
//	recordEnd         failed packets (8 each); handle and number (4 each) of each object
//
// Room is the size of text or data, which end a record and are padded to 8 bytes.
const (
	recordEnd    reg.PacketOp = 0
	recordFailed uint16       = 1 // the build failed
)

// pieceSize bounds the memory that one record copies, in bytes, but for a row of an image.
const pieceSize = 1 << 20

// errInterrupted means that the box has something else to say than that it takes bytes.
var errInterrupted = errors.New("the box ended the pass")

// mover is the goroutine that speaks with the box about moves.
type mover struct {
	s          *Session
	ring       move.Ring
	generation uint32
	queue      cl.Queue      // of copies; 0: not made yet
	next       *move.Message // received, and not handled
	out        []byte        // records that are not in the ring
	sent       map[uint32]sentObject
	piece      []byte
	loader     loader
}

// sentObject is an object that the stream has.
type sentObject struct{ version uint32 }

// takeMoves follows what the box says until the end of the connection.
func (s *Session) takeMoves() {
	m := &mover{s: s, ring: move.Ring{Memory: s.Ring}}
	for {
		msg, err := m.receive(true)
		if err == nil {
			err = m.handle(msg)
		}
		if err != nil && !errors.Is(err, errInterrupted) {
			return // Run ends as well
		}
	}
}

func (m *mover) receive(block bool) (move.Message, error) {
	if msg := m.next; msg != nil {
		m.next = nil
		return *msg, nil
	}
	var b [move.MaxMessage]byte
	n, err := m.s.Moves.Receive(b[:], block)
	if err != nil {
		return move.Message{}, err
	}
	return move.Parse(b[:n])
}

// say sends a message to the box.
func (s *Session) say(msg move.Message) error { return s.Moves.Send(msg.Append(nil)) }

func (m *mover) say(t move.Type, left uint64) error {
	put, _ := m.ring.Count()
	return m.s.say(move.Message{Type: t, Generation: m.generation, Count: put, Left: left})
}

// handle does what the box says. An error is one of the connection.
func (m *mover) handle(msg move.Message) error {
	if msg.Type == move.Save || msg.Type == move.Load {
		m.generation = msg.Generation
		m.ring.Reset()
		m.out, m.sent, m.loader = nil, map[uint32]sentObject{}, loader{}
	}
	if msg.Generation != m.generation && msg.Type != move.Stop {
		return nil
	}
	switch msg.Type {
	case move.Save:
		m.s.mu.Lock()
		m.s.startTracking(m.generation)
		left := m.s.track.left
		m.s.mu.Unlock()
		return m.say(move.Passed, left)
	case move.Stop:
		m.s.mu.Lock()
		m.s.stopTracking()
		m.s.mu.Unlock()
		m.out, m.sent, m.piece = nil, nil, nil
		return nil
	case move.Pass:
		err := m.pass(msg.Count == 1)
		if err != nil && !errors.Is(err, errInterrupted) {
			return m.s.say(move.Message{Type: move.Loaded, Generation: m.generation, Text: err.Error()})
		}
		return err
	case move.Taken:
		return m.ring.SetTaken(msg.Count)
	case move.Put:
		if err := m.ring.SetPut(msg.Count); err != nil {
			return err
		}
		return m.load()
	case move.End:
		return m.loaded()
	}
	return nil
}

// pass puts what has changed into the ring.
func (m *mover) pass(last bool) error {
	s := m.s
	if err := m.makeQueue(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.track == nil {
		s.mu.Unlock()
		return nil
	}
	if s.shared > 0 {
		s.mu.Unlock()
		return errShared
	}
	s.track.told = false
	m.addObjects(last)
	roots := slices.SortedFunc(maps.Keys(s.roots()), func(a, b *buffer) int { return cmp.Compare(a.number, b.number) })
	s.mu.Unlock()
	if err := m.flush(); err != nil {
		return err
	}
	for _, root := range roots {
		copyPart := m.copyBuffer
		if root.image != nil {
			copyPart = m.copyImage
		}
		for more := true; more; {
			var err error
			if more, err = copyPart(root); err != nil {
				return err
			}
		}
	}
	if last {
		m.addEnd()
	}
	if err := m.flush(); err != nil {
		return err
	}
	s.mu.Lock()
	left := uint64(0)
	if s.track != nil {
		left = s.track.left
	}
	s.mu.Unlock()
	return m.say(move.Passed, left)
}

// makeQueue makes the command queue of copies.
func (m *mover) makeQueue() (err error) {
	if m.queue == 0 {
		m.s.mu.Lock()
		defer m.s.mu.Unlock()
		m.queue, err = m.s.Library.NewQueue(m.s.context, m.s.Device, false, true)
	}
	if m.piece == nil {
		m.piece = make([]byte, pieceSize)
	}
	return err
}

// flush puts the records into the ring.
func (m *mover) flush() error {
	for {
		switch err := m.taken(false); {
		case errors.Is(err, reader.ErrNothing):
		case err != nil:
			return err
		default:
			continue
		}
		break
	}
	for len(m.out) > 0 {
		n := m.ring.Put(m.out)
		m.out = m.out[n:]
		if n > 0 {
			if err := m.tellPut(); err != nil {
				return err
			}
		}
		if len(m.out) == 0 {
			break
		}
		if err := m.taken(true); err != nil {
			return err
		}
	}
	m.out = m.out[:0]
	return nil
}

// taken takes a message of the box that it has taken bytes. Without block it returns
// reader.ErrNothing if there is none. It leaves another message to handle.
func (m *mover) taken(block bool) error {
	msg, err := m.receive(block)
	switch {
	case err != nil:
		return err
	case msg.Generation != m.generation && msg.Type == move.Taken:
		return nil
	case msg.Type == move.Taken:
		return m.ring.SetTaken(msg.Count)
	}
	m.next = &msg
	return errInterrupted
}

func (m *mover) tellPut() error {
	m.s.mu.Lock()
	left := uint64(0)
	if m.s.track != nil {
		left = m.s.track.left
	}
	m.s.mu.Unlock()
	return m.say(move.Put, left+uint64(len(m.out)))
}

// add appends a record: its body, and text or data.
func (m *mover) add(h reg.PacketHeader, body, data []byte) {
	padding := -len(data) & 7
	h.Size, h.Room = uint32(reg.PacketHeaderSize+len(body)+len(data)+padding), uint32(len(data))
	m.out = h.Append(m.out)
	m.out = append(append(m.out, body...), data...)
	m.out = append(m.out, make([]byte, padding)...)
}

// numbered is an object of the stream.
type numbered interface{ born() uint32 }

// live returns the objects, those without a handle too, that others need, by number.
func (s *Session) live() map[uint32]numbered {
	all := map[uint32]numbered{}
	for _, o := range s.objects {
		o := o.(numbered)
		for o != nil {
			all[o.born()] = o
			o = needs(o)
		}
	}
	return all
}

// needs returns the object in which, or of which, an object was made, or nil.
func needs(o numbered) numbered {
	var in *buffer
	switch o := o.(type) {
	case *kernel:
		return o.of
	case *buffer:
		in = o.parent
	case *image:
		in = o.parent
	}
	switch {
	case in == nil:
		return nil
	case in.image != nil:
		return in.image
	}
	return in
}

// addObjects appends what has changed of the objects since the last pass. The caller holds the
// session's mutex.
func (m *mover) addObjects(last bool) {
	live := m.s.live()
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(m.sent))) {
		if live[number] == nil {
			m.add(reg.PacketHeader{Op: reg.PacketRelease}, words(number, 0), nil)
			delete(m.sent, number)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(live)) {
		o := live[number]
		p, isProgram := o.(*program)
		old, sent := m.sent[number]
		switch {
		case isProgram && p.busy && !last, sent && (!isProgram || old.version == p.version):
			continue
		case isProgram:
			m.addProgram(p, sent)
			m.sent[number] = sentObject{p.version}
			continue
		case needs(o) != nil && !m.has(needs(o)):
			continue // with its program, when that has been built
		}
		op, body := creation(o)
		m.add(reg.PacketHeader{Op: op}, body, nil)
		m.sent[number] = sentObject{}
	}
}

func (m *mover) has(o numbered) bool {
	_, ok := m.sent[o.born()]
	return ok
}

func words(values ...uint32) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// creation returns the packet that makes an object, with numbers for handles.
func creation(o numbered) (reg.PacketOp, []byte) {
	le, of := binary.LittleEndian, uint32(0)
	if in := needs(o); in != nil {
		of = in.born()
	}
	patched := func(body []byte) []byte {
		b := bytes.Clone(body)
		le.PutUint32(b, o.born())
		return b
	}
	switch o := o.(type) {
	case *queue:
		return reg.PacketQueue, words(o.number, o.flags)
	case *image:
		b := patched(o.body)
		le.PutUint32(b[4:], of)
		return reg.PacketImage, b
	case *sampler:
		return reg.PacketSampler, patched(o.body)
	case *kernel:
		b := words(o.number, of, uint32(len(o.name)), 0)
		return reg.PacketKernel, append(append(b, o.name...), make([]byte, -len(o.name)&7)...)
	case *buffer:
		b := words(o.number, of)
		if of == 0 {
			return reg.PacketBuffer, le.AppendUint64(le.AppendUint64(b, o.flags), o.size)
		}
		return reg.PacketSubBuffer, le.AppendUint64(le.AppendUint64(le.AppendUint64(b, o.flags), o.origin), o.size)
	}
	return reg.PacketRelease, words(0, 0) // there is no other kind
}

// executable is the type of a program's binary that has kernels.
const executable = 4

// addProgram appends a program, and how it was built. The target compiles a source again, so
// that the program is the same in all that a tenant may ask later.
func (m *mover) addProgram(p *program, sent bool) {
	kind, text, source, build := p.kind, p.text, p.source, p.state == programBuilt || p.state == programFailed
	if p.state == programMade {
		if b, err := m.s.Library.Binary(p.program, reg.MaxProgramText); err == nil {
			if kind == reg.ProgramSource && text != nil {
				source = text
			}
			kind, text = reg.ProgramBinary, b
			t := m.s.Library.BinaryType(p.program, m.s.Device)
			build = len(t) >= 4 && binary.LittleEndian.Uint32(t) == executable
		}
	}
	if len(text) == 0 { // of a link that failed
		kind, text = reg.ProgramSource, []byte("\n")
	}
	remade := sent && p.state == programMade
	if remade {
		m.add(reg.PacketHeader{Op: reg.PacketRelease}, words(p.number, 0), nil)
	}
	if !sent || remade {
		m.add(reg.PacketHeader{Op: reg.PacketProgram, Queue: p.number, Flags: uint16(kind)}, nil, text)
		if source != nil {
			m.add(reg.PacketHeader{Op: reg.PacketCompile, Queue: p.number}, nil, source)
		}
	}
	if !build {
		m.addConstants(p, p.set)
		return
	}
	m.addConstants(p, p.built)
	h := reg.PacketHeader{Op: reg.PacketBuild, Queue: p.number}
	options := p.options
	if p.state == programMade {
		options = argInfo
	}
	if p.state == programFailed {
		h.Flags = recordFailed
	}
	m.add(h, nil, []byte(options))
	m.addConstants(p, p.set)
}

// addEnd appends what kernels have printed, the packets that failed, and the handles.
func (m *mover) addEnd() {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.printed = append(s.printed, s.Output(reg.MaxOutput-min(reg.MaxOutput, len(s.printed)))...)
	m.add(reg.PacketHeader{Op: reg.PacketOutput}, nil, s.printed)
	var handles []byte
	for _, handle := range slices.Sorted(maps.Keys(s.objects)) {
		handles = append(handles, words(handle, s.objects[handle].(numbered).born())...)
	}
	m.add(reg.PacketHeader{Op: recordEnd}, s.failed.words(), handles)
}

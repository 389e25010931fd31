package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
	"github.com/dxpu-project/dxpu/internal/opencl/move"
)

// loader makes the objects of another device's context.
type loader struct {
	record []byte // as much as there is
	told   uint64 // bytes that the box knows were taken
	ended  bool   // recordEnd has come
	failed error
}

// maxRecord bounds a record, in bytes: its text, or an image's row.
const maxRecord = reg.MaxProgramText + 1<<10

var errRecord = errors.New("a record of the context is damaged")

// load takes what is in the ring. An error is one of the connection.
func (m *mover) load() error {
	l := &m.loader
	for m.ring.Ready() > 0 {
		want := reg.PacketHeaderSize
		if len(l.record) >= reg.PacketHeaderSize {
			want = int(binary.LittleEndian.Uint32(l.record))
		}
		if want < reg.PacketHeaderSize || want > maxRecord || want%move.Align != 0 {
			l.fail(errRecord)
		}
		if l.failed != nil {
			want = len(l.record) + m.ring.Ready()
		}
		have := len(l.record)
		n := min(want-have, m.ring.Ready())
		l.record = append(l.record, make([]byte, n)...)
		m.ring.Take(l.record[have:])
		switch size := binary.LittleEndian.Uint32(append(l.record[:len(l.record):len(l.record)], 0, 0, 0, 0)); {
		case l.failed != nil:
			l.record = l.record[:0]
		case len(l.record) >= reg.PacketHeaderSize && len(l.record) == int(size):
			l.fail(m.execute(l.record))
			l.record = l.record[:0]
		}
		if _, taken := m.ring.Count(); taken-l.told >= move.RingSize/8 || m.ring.Ready() == 0 {
			l.told = taken // all of it was executed
			if err := m.s.say(move.Message{Type: move.Taken, Generation: m.generation, Count: taken}); err != nil {
				return err
			}
		}
	}
	return nil
}

// fail notes the first error.
func (l *loader) fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
}

// loaded tells the box whether the context is in place.
func (m *mover) loaded() error {
	l := &m.loader
	if !l.ended || len(l.record) > 0 {
		l.fail(errors.New("the context is incomplete"))
	}
	answer := move.Message{Type: move.Loaded, Generation: m.generation}
	if l.failed != nil {
		answer.Text = l.failed.Error()
	}
	return m.s.say(answer)
}

// execute executes a record.
func (m *mover) execute(record []byte) error {
	if err := m.makeQueue(); err != nil {
		return err
	}
	h, n, err := reg.ParsePacketHeader(record)
	if err != nil {
		return err
	}
	body := record[n:]
	padded := (int(h.Room) + 7) &^ 7
	if m.loader.ended || padded < 0 || padded > len(body) {
		return errRecord
	}
	data := body[len(body)-padded:][:h.Room]
	body = body[:len(body)-padded]
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch h.Op {
	case reg.PacketQueue, reg.PacketBuffer, reg.PacketSubBuffer, reg.PacketImage, reg.PacketSampler, reg.PacketKernel, reg.PacketRelease, reg.PacketConstant:
		err = s.control(h, &cursor{b: body}).err
	case reg.PacketProgram:
		if err = s.free(h.Queue, &cursor{}); err == nil {
			err = s.makeProgram(h.Queue, uint32(h.Flags), append([]byte(nil), data...))
		}
	case reg.PacketCompile:
		err = s.keepSource(h.Queue, data)
	case reg.PacketBuild:
		err = s.rebuild(h, string(data))
	case reg.PacketWrite:
		err = m.fillBuffer(h, data)
	case reg.PacketWriteImage:
		err = m.fillImage(h, body, data)
	case reg.PacketOutput:
		s.printed = append([]byte(nil), data...)
	case recordEnd:
		m.loader.ended = true
		if err = s.failed.take(body); err == nil {
			err = s.rename(data)
		}
	default:
		err = errRecord
	}
	if err != nil {
		return fmt.Errorf("object %d: operation %d: %w", h.Queue, h.Op, err)
	}
	return nil
}

// keepSource keeps the source of a compiled program, which the tenant may compile again.
func (s *Session) keepSource(number uint32, source []byte) error {
	p, err := object[*program](s, number, cl.InvalidProgram)
	if err == nil && len(source) == 0 {
		err = errRecord
	}
	if err == nil {
		p.source = bytes.Clone(source)
	}
	return err
}

// rebuild builds a program again, as it was built.
func (s *Session) rebuild(h reg.PacketHeader, options string) error {
	p, err := object[*program](s, h.Queue, cl.InvalidProgram)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(options, argInfo) { // without it, the kinds of arguments are not known
		return errRecord
	}
	if err := s.remake(p); err != nil { // it came before it was built
		return err
	}
	p.options = options
	p.take()
	err = s.Library.Build(p.program, s.Device, options)
	p.end(programBuilt, err)
	if h.Flags&recordFailed != 0 {
		return nil // with the same messages
	}
	return err
}

func (m *mover) fillBuffer(h reg.PacketHeader, data []byte) error {
	b, err := m.s.buffer(h.Queue, h.Out, uint64(len(data)))
	if err != nil {
		return err
	}
	m.s.mark(b, h.Out, uint64(len(data)))
	return m.wait(m.s.Library.Write(m.queue, b.mem, h.Out, data, nil))
}

func (m *mover) fillImage(h reg.PacketHeader, body, data []byte) error {
	c := &cursor{b: body}
	origin, region := c.three(), c.three()
	i, n, err := m.s.pixels(h.Queue, origin, region)
	if err != nil {
		return err
	}
	if c.bad || n != uint64(len(data)) {
		return errRecord
	}
	m.s.mark(i.buffer, 0, i.size)
	return m.wait(m.s.Library.WriteImage(m.queue, i.mem, origin, region, data, nil))
}

// rename gives the objects, which have numbers, their handles. Those without a handle are
// released: others use them.
func (s *Session) rename(pairs []byte) error {
	le, named, kept := binary.LittleEndian, map[uint32]any{}, map[uint32]bool{}
	for ; len(pairs) >= 8; pairs = pairs[8:] {
		handle, number := le.Uint32(pairs), le.Uint32(pairs[4:])
		o, ok := s.objects[number]
		if _, taken := named[handle]; !ok || taken || kept[number] || handle == 0 {
			return errRecord
		}
		named[handle], kept[number] = o, true
	}
	for number := range s.objects {
		if !kept[number] {
			if err := s.release(&cursor{b: words(number, 0)}); err != nil {
				return err
			}
		}
	}
	s.objects = named
	return nil
}

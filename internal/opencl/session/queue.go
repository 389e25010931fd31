package session

import (
	"bytes"
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// start enqueues the command of a packet. It returns no event for a quiet command.
func (s *Session) start(q *queue, h reg.PacketHeader, c *cursor, out *command) (cl.Event, error) {
	switch h.Op {
	case reg.PacketWrite, reg.PacketRead:
		return s.transfer(q, h, c, out)
	case reg.PacketWriteRect, reg.PacketReadRect:
		return s.transferRect(q, h, c, out)
	case reg.PacketCopy:
		return s.copy(q, c)
	case reg.PacketCopyRect:
		return s.copyRect(q, c)
	case reg.PacketFill:
		return s.fill(q, c)
	case reg.PacketNDRange:
		return s.run(q, h, c)
	case reg.PacketMarker:
		wait, err := s.waits(q, c)
		if err != nil {
			return 0, err
		}
		if h.Flags&reg.MarkerBarrier != 0 {
			return s.Library.Barrier(q.queue, wait)
		}
		return s.Library.Marker(q.queue, wait)
	}
	return s.startImage(q, h, c, out)
}

// waits reads the list of packets that a command of a queue waits for, and finishes reading.
// A packet that is not pending is complete. After one that failed, a command does not start.
func (s *Session) waits(q *queue, c *cursor) ([]cl.Event, error) {
	cookies, must := c.waits()
	if s.failed.any(cookies[:must]) {
		return nil, cl.FailedWait
	}
	var list []cl.Event
	for _, cookie := range cookies {
		e, err := s.eventOf(cookie, q)
		if err != nil {
			return nil, err
		}
		if e != 0 {
			list = append(list, e)
			s.after = append(s.after, cookie)
		}
		if g := s.turns.opening; g != nil {
			g.waits = append(g.waits, cookie)
		}
	}
	if g := s.turns.opening; g != nil {
		list = append(list, g.event)
	}
	if c.bad {
		return nil, cl.InvalidValue
	}
	return list, nil
}

// buffer returns a buffer in which n bytes at offset lie.
func (s *Session) buffer(handle uint32, offset, n uint64) (*buffer, error) {
	b, err := object[*buffer](s, handle, cl.InvalidMemObject)
	if err != nil {
		return nil, err
	}
	if n == 0 || n > b.size || offset > b.size-n {
		return nil, cl.InvalidValue
	}
	return b, nil
}

func (s *Session) transfer(q *queue, h reg.PacketHeader, c *cursor, out *command) (cl.Event, error) {
	handle := c.u32()
	c.u32()
	offset, n, at := c.u64(), c.u64(), c.u64()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	b, err := s.buffer(handle, offset, n)
	if err != nil {
		return 0, err
	}
	if h.Op == reg.PacketWrite {
		w, ok := s.window(at, n)
		if !ok {
			return 0, cl.InvalidValue
		}
		s.mark(b, offset, n)
		return s.Library.Write(q.queue, b.mem, offset, w, wait)
	}
	w, ok := s.window(h.Out, n)
	if !ok || n > uint64(h.Room) {
		return 0, cl.InvalidValue
	}
	out.out, out.length = h.Out, uint32(n)
	return s.Library.Read(q.queue, b.mem, offset, w, wait)
}

// volume returns the bytes of a region.
func volume(region [3]uintptr) (uint64, bool) {
	n := uint64(1)
	for _, v := range region {
		if v == 0 || uint64(v) > 1<<40/n {
			return 0, false
		}
		n *= uint64(v)
	}
	return n, true
}

func (s *Session) transferRect(q *queue, h reg.PacketHeader, c *cursor, out *command) (cl.Event, error) {
	handle := c.u32()
	c.u32()
	r, region, at := c.rect(), c.three(), c.u64()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	b, err := object[*buffer](s, handle, cl.InvalidMemObject)
	if err != nil {
		return 0, err
	}
	n, ok := volume(region)
	if !ok || !within(r, region, b.size) {
		return 0, cl.InvalidValue
	}
	if h.Op == reg.PacketWriteRect {
		w, ok := s.window(at, n)
		if !ok {
			return 0, cl.InvalidValue
		}
		s.mark(b, 0, b.size)
		return s.Library.WriteRect(q.queue, b.mem, r, region, w, wait)
	}
	w, ok := s.window(h.Out, n)
	if !ok || n > uint64(h.Room) {
		return 0, cl.InvalidValue
	}
	out.out, out.length = h.Out, uint32(n)
	return s.Library.ReadRect(q.queue, b.mem, r, region, w, wait)
}

// within reports whether a box lies inside a buffer. The platform checks it too, but
// not every platform checks it well.
func within(r cl.Rect, region [3]uintptr, size uint64) bool {
	row, slice := uint64(r.RowPitch), uint64(r.Slice)
	if row == 0 {
		row = uint64(region[0])
	}
	if slice == 0 && row <= 1<<40 {
		slice = row * uint64(region[1])
	}
	end := uint64(region[0])
	for _, term := range [...][2]uint64{
		{uint64(r.Origin[0]), 1},
		{uint64(r.Origin[1]), row},
		{uint64(region[1]) - 1, row},
		{uint64(r.Origin[2]), slice},
		{uint64(region[2]) - 1, slice},
	} {
		if term[0] > 1<<40 || term[1] > 1<<40 || term[1] != 0 && term[0] > 1<<48/term[1] {
			return false
		}
		end += term[0] * term[1]
	}
	return end <= size
}

func (s *Session) copy(q *queue, c *cursor) (cl.Event, error) {
	from, to := c.u32(), c.u32()
	fromOffset, toOffset, n := c.u64(), c.u64(), c.u64()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	a, err := s.buffer(from, fromOffset, n)
	if err != nil {
		return 0, err
	}
	b, err := s.buffer(to, toOffset, n)
	if err != nil {
		return 0, err
	}
	s.turns.move(reg.PacketCopy, n)
	s.mark(b, toOffset, n)
	return s.Library.Copy(q.queue, a.mem, b.mem, fromOffset, toOffset, n, wait)
}

func (s *Session) copyRect(q *queue, c *cursor) (cl.Event, error) {
	source, target := c.u32(), c.u32()
	ra, rb, region := c.rect(), c.rect(), c.three()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	a, err := object[*buffer](s, source, cl.InvalidMemObject)
	if err != nil {
		return 0, err
	}
	b, err := object[*buffer](s, target, cl.InvalidMemObject)
	if err != nil {
		return 0, err
	}
	if _, ok := volume(region); !ok || !within(ra, region, a.size) || !within(rb, region, b.size) {
		return 0, cl.InvalidValue
	}
	s.mark(b, 0, b.size)
	from, to := a.whole(), b.whole()
	// A copy within one buffer has the same pitches on both sides.
	if from.mem == to.mem && (ra.RowPitch != rb.RowPitch || ra.Slice != rb.Slice) {
		from, to = position{mem: a.mem}, position{mem: b.mem}
	}
	ra.Origin[0] += from.offset
	rb.Origin[0] += to.offset
	return s.Library.CopyRect(q.queue, from.mem, to.mem, ra, rb, region, wait)
}

func (s *Session) fill(q *queue, c *cursor) (cl.Event, error) {
	handle, size := c.u32(), c.count(reg.MaxPattern)
	offset, n := c.u64(), c.u64()
	pattern := c.padded(size)
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	b, err := s.buffer(handle, offset, n)
	if err != nil {
		return 0, err
	}
	if size == 0 || size&(size-1) != 0 || offset%uint64(size) != 0 || n%uint64(size) != 0 {
		return 0, cl.InvalidValue
	}
	s.turns.move(reg.PacketFill, n)
	s.mark(b, offset, n)
	return s.Library.Fill(q.queue, b.mem, pattern, offset, n, wait)
}

// run sets the arguments that changed and enqueues a kernel.
func (s *Session) run(q *queue, h reg.PacketHeader, c *cursor) (cl.Event, error) {
	l := c.launch(h.Flags)
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	k, err := object[*kernel](s, l.kernel, cl.InvalidKernel)
	switch {
	case err != nil:
		return 0, err
	case len(l.args) != len(k.args):
		return 0, cl.InvalidArgIndex
	case len(l.global) == 0:
		return 0, cl.InvalidWorkDimension
	}
	if g := s.turns.opening; g != nil {
		g.describe(l)
	}
	for i, a := range l.args {
		if err := s.setArg(k, i, a); err != nil {
			return 0, err
		}
	}
	if err := s.useShared(k, l.shared); err != nil {
		return 0, err
	}
	for i, a := range l.args {
		if !k.reads[i] {
			s.markArg(a)
		}
	}
	return s.Library.NDRange(q.queue, k.kernel, l.offset, l.global, l.local, wait, s.quiet(q))
}

// maxLocal bounds the local memory of an argument; the platform has less.
const maxLocal = 1 << 30

// handleSize is the size of a handle of the platform.
const handleSize = 8

// fits reports whether a kernel takes an argument of a kind. The platform follows the
// bytes of a handle as a pointer: they must not come from a packet, and those of a
// buffer must not go to a program.
func fits(class cl.ArgClass, a argument) bool {
	switch class {
	case cl.ArgUnknown:
		return a.kind != reg.ArgSVM && (a.kind != reg.ArgValue || a.size != handleSize)
	case cl.ArgPlain:
		return a.kind == reg.ArgValue
	case cl.ArgMemory:
		return a.kind == reg.ArgBuffer || a.kind == reg.ArgSVM
	case cl.ArgLocal:
		return a.kind == reg.ArgLocal
	case cl.ArgImage:
		return a.kind == reg.ArgImage
	case cl.ArgSampler:
		return a.kind == reg.ArgSampler
	case cl.ArgHandle:
	}
	return false
}

// argHandle returns the handle of the platform for that of an argument, and the serial number
// of the object: 0 for a null pointer.
func (s *Session) argHandle(a argument) (h uintptr, serial uint64, err error) {
	if len(a.value) != 4 {
		return 0, 0, cl.InvalidArgSize
	}
	handle := binary.LittleEndian.Uint32(a.value)
	switch o := s.objects[handle].(type) {
	case *buffer:
		if a.kind == reg.ArgBuffer {
			return uintptr(o.mem), o.serial, nil
		}
	case *image:
		if a.kind == reg.ArgImage {
			return uintptr(o.mem), o.serial, nil
		}
	case *sampler:
		if a.kind == reg.ArgSampler {
			return uintptr(o.sampler), o.serial, nil
		}
	case nil:
		if handle == 0 && a.kind == reg.ArgBuffer {
			return 0, 0, nil
		}
	}
	return 0, 0, cl.InvalidArgValue
}

// setArg sets an argument if it differs from the last value.
func (s *Session) setArg(k *kernel, i int, a argument) error {
	value, size, serial, address := a.value, int(a.size), uint64(0), uintptr(0)
	if !fits(k.class[i], a) {
		return cl.InvalidArgValue
	}
	switch a.kind {
	case reg.ArgValue:
	case reg.ArgBuffer, reg.ArgImage, reg.ArgSampler:
		h, number, err := s.argHandle(a)
		if err != nil {
			return err
		}
		serial = number
		value, size = binary.LittleEndian.AppendUint64(nil, uint64(h)), handleSize
	case reg.ArgSVM:
		b, p, err := s.sharedArg(a)
		if err != nil {
			return err
		}
		serial, address = b.serial, p
		value = binary.LittleEndian.AppendUint64(nil, uint64(p))
	case reg.ArgLocal:
		if size == 0 || size > maxLocal {
			return cl.InvalidArgSize
		}
		value = nil
	default:
		return cl.InvalidArgValue
	}
	// The form in which the argument is remembered: kind, size, buffer, value.
	seen := binary.LittleEndian.AppendUint32(s.scratch[:0], a.kind)
	seen = binary.LittleEndian.AppendUint32(seen, uint32(size))
	seen = binary.LittleEndian.AppendUint64(seen, serial)
	seen = append(seen, value...)
	s.scratch = seen
	if bytes.Equal(k.args[i], seen) {
		return nil
	}
	k.args[i] = nil
	set := func() error { return s.Library.SetArg(k.kernel, i, size, value) }
	if address != 0 {
		set = func() error { return s.Library.SetArgSVM(k.kernel, i, address) }
	}
	if err := set(); err != nil {
		return err
	}
	k.args[i] = bytes.Clone(seen)
	return nil
}

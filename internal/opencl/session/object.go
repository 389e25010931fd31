package session

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// buffer is a cl.Mem. Its bytes count until the last sub-buffer is released too.
type buffer struct {
	birth
	mem    cl.Mem
	flags  uint64
	origin uint64  // of a sub-buffer
	image  *image  // whose memory it is; nil: of a buffer
	shared *shared // its place in shared virtual memory; nil: it is in none, or a part of one that is
	over   bool    // it is such a part
	blocks         // of one without parent
	serial uint64  // of this session: the platform uses the value of a handle again
	size   uint64
	parent *buffer // of a sub-buffer
	users  int     // itself, and its sub-buffers
}

// position is a place in a buffer of the platform.
type position struct {
	mem    cl.Mem
	offset uintptr
}

// whole returns the position of a buffer in the one that it is a part of. PoCL 3.1 faults when a copy of
// a box, or between an image and a buffer, names a part.
func (b *buffer) whole() position {
	if b.parent == nil || b.over {
		return position{b.mem, 0}
	}
	in := b.parent.whole()
	return position{in.mem, in.offset + uintptr(b.origin)}
}

type program struct {
	birth
	program cl.Program
	kind    uint32 // of text
	text    []byte // nil: the program was linked
	source  []byte // of a compiled program that has moved here as a binary
	options string // of the last build
	constants
	state     programState
	described cl.Program // see describer
	busy      bool       // a task that changes it is under way
	users     int        // tasks that read it, as a header or a part of a link
	version   uint32     // rises with each task that ends
}

type kernel struct {
	birth
	of     *program
	name   string
	kernel cl.Kernel
	args   [][]byte // as last set, to set only those that differ
	class  []cl.ArgClass
	reads  []bool   // it does not write to the memory of the argument
	shared []uint64 // numbers of the buffers that it uses beside the arguments, as last set
}

// object returns the object of a handle. missing is the error for no such object.
func object[T any](s *Session, handle uint32, missing error) (o T, err error) {
	o, ok := s.objects[handle].(T)
	if !ok {
		return o, missing
	}
	return o, nil
}

// free reports whether a handle can be given to a new object.
func (s *Session) free(handle uint32, c *cursor) error {
	_, taken := s.objects[handle]
	switch {
	case c.bad || handle == 0 || taken:
		return cl.InvalidValue
	case len(s.objects)+len(s.released.list) >= reg.MaxObjects:
		return cl.OutOfResources
	}
	return nil
}

func (s *Session) release(c *cursor) error {
	handle := c.u32()
	c.u32()
	if c.bad {
		return cl.InvalidValue
	}
	switch o := s.objects[handle].(type) {
	case *queue:
		s.releaseQueue(o)
	case *buffer:
		if err := s.Library.Release(o.mem); err != nil {
			return err
		}
		s.drop(o)
	case *image:
		if err := s.Library.Release(o.mem); err != nil {
			return err
		}
		s.drop(o.buffer)
	case *sampler:
		s.releaseLater(o.sampler)
	case *program:
		if o.busy || o.users > 0 {
			return cl.InvalidOperation
		}
		if err := s.Library.Release(o.program); err != nil {
			return err
		}
		if o.described != 0 {
			_ = s.Library.Release(o.described)
		}
	case *kernel:
		if err := s.Library.Release(o.kernel); err != nil {
			return err
		}
	default:
		return cl.InvalidValue
	}
	delete(s.objects, handle)
	return nil
}

// drop ends a use of a buffer or of an image's memory.
func (s *Session) drop(b *buffer) {
	if b.users--; b.users > 0 {
		return
	}
	if b.parent != nil {
		s.drop(b.parent)
		return
	}
	if b.shared != nil {
		s.releaseLater(b.shared)
		return
	}
	s.used -= b.size
}

// bufferFlags are the flags of a buffer that do not concern host memory: read, write
// and the host's access.
const bufferFlags = 1<<0 | 1<<1 | 1<<2 | 1<<7 | 1<<8 | 1<<9

func (s *Session) newBuffer(c *cursor) error {
	handle := c.u32()
	c.u32()
	flags, size := c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return err
	}
	switch {
	case size == 0:
		return cl.InvalidBufferSize
	case size > s.Memory-min(s.used, s.Memory):
		return cl.MemAllocationFailure
	}
	m, err := s.Library.NewBuffer(s.context, flags&bufferFlags, size)
	if err != nil {
		return err
	}
	s.used += size
	s.serial++
	s.objects[handle] = &buffer{birth: s.birth(), mem: m, flags: flags, serial: s.serial, size: size, users: 1}
	return nil
}

func (s *Session) newSubBuffer(c *cursor) error {
	handle, of := c.u32(), c.u32()
	flags, origin, size := c.u64(), c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return err
	}
	parent, err := object[*buffer](s, of, cl.InvalidMemObject)
	if err != nil {
		return err
	}
	if parent.parent != nil && !parent.over || size == 0 || size > parent.size || origin > parent.size-size {
		return cl.InvalidValue
	}
	m, err := s.Library.NewSubBuffer(parent.mem, flags&bufferFlags, origin, size)
	if err != nil {
		return err
	}
	parent.users++
	s.serial++
	s.objects[handle] = &buffer{birth: s.birth(), mem: m, flags: flags, origin: origin, serial: s.serial, size: size, parent: parent, users: 1}
	return nil
}

// text copies a text out of VRAM.
func (s *Session) text(at, n uint64) ([]byte, error) {
	w, ok := s.window(at, n)
	if !ok || n > reg.MaxProgramText {
		return nil, cl.InvalidValue
	}
	return append([]byte(nil), w...), nil
}

func (s *Session) newProgram(c *cursor) error {
	handle, kind := c.u32(), c.u32()
	at, n := c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return err
	}
	text, err := s.text(at, n)
	if err != nil {
		return err
	}
	return s.makeProgram(handle, kind, text)
}

// makeProgram makes a program of a text, which it keeps.
func (s *Session) makeProgram(handle, kind uint32, text []byte) (err error) {
	var p cl.Program
	switch {
	case len(text) == 0:
		err = cl.InvalidValue
	case kind == reg.ProgramSource:
		p, err = s.Library.NewProgram(s.context, text)
	case kind == reg.ProgramIL:
		p, err = s.Library.NewProgramIL(s.context, text)
	case kind == reg.ProgramBinary:
		p, err = s.Library.NewProgramBinary(s.context, s.Device, text)
	default:
		err = cl.InvalidValue
	}
	if err != nil {
		return err
	}
	s.objects[handle] = &program{birth: s.birth(), program: p, kind: kind, text: text}
	return nil
}

// programInfo returns the size of a text or binary (8), and as much of it as there is
// room for.
func (s *Session) programInfo(h reg.PacketHeader, c *cursor) result {
	handle, what := c.u32(), c.u32()
	p, err := object[*program](s, handle, cl.InvalidProgram)
	if err == nil && (c.bad || p.busy || h.Room < 8) {
		err = cl.InvalidOperation
	}
	if err != nil {
		return result{err: err}
	}
	var text []byte
	switch what {
	case reg.ProgramLog:
		text = s.Library.BuildLog(p.program, s.Device)
	case reg.ProgramKernels:
		text, err = s.Library.KernelNames(p.program)
	case reg.ProgramBytes:
		text, err = s.Library.Binary(p.program, uint64(len(s.VRAM)))
	case reg.ProgramType:
		text = s.Library.BinaryType(p.program, s.Device)
	default:
		err = cl.InvalidValue
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	return result{append(out, text[:min(len(text), int(h.Room)-8)]...), err}
}

// newKernel makes a kernel and returns the number of its arguments (8), and properties.
func (s *Session) newKernel(c *cursor) result {
	handle, of := c.u32(), c.u32()
	n := c.u32()
	c.u32()
	name := string(c.padded(n))
	if err := s.free(handle, c); err != nil {
		return result{err: err}
	}
	p, err := object[*program](s, of, cl.InvalidProgram)
	if err == nil && p.busy {
		err = cl.InvalidOperation
	}
	if err != nil {
		return result{err: err}
	}
	k, err := s.Library.NewKernel(p.program, name)
	if err != nil {
		return result{err: err}
	}
	args, err := s.Library.NumArgs(k)
	if err != nil || args > reg.MaxArgs {
		_ = s.Library.Release(k)
		return result{err: cl.OutOfResources}
	}
	described := k
	if p.described != 0 {
		if twin, err := s.Library.NewKernel(p.described, name); err == nil {
			described = twin
			defer func() { _ = s.Library.Release(twin) }()
		}
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(args))
	for _, p := range s.Library.KernelProperties(k, s.Device) {
		out = appendProperty(out, noIndex, p)
	}
	class := make([]cl.ArgClass, args)
	reads := make([]bool, args)
	for i := range args {
		properties := s.Library.ArgProperties(described, i)
		class[i], reads[i] = cl.ClassOf(properties), cl.OnlyReads(properties)
		for _, p := range properties {
			out = appendProperty(out, uint32(i), p)
		}
	}
	s.objects[handle] = &kernel{birth: s.birth(), of: p, name: name, kernel: k, args: make([][]byte, args), class: class, reads: reads}
	return result{data: out}
}

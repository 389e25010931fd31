package session

import (
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// task is work of a compiler, which takes seconds: it goes on beside the other packets.
type task struct {
	programs []*program // that it uses
	run      func() error
}

// compileTask returns the work of a packet that builds, compiles or links.
func (s *Session) compileTask(h reg.PacketHeader, c *cursor) (task, error) {
	switch h.Op {
	case reg.PacketBuild:
		return s.buildTask(c)
	case reg.PacketCompile:
		return s.headersTask(c)
	}
	return s.linkTask(c)
}

// compile starts the work of a packet. The event of the packet follows at its end.
func (s *Session) compile(h reg.PacketHeader, c *cursor) error {
	t, err := s.compileTask(h, c)
	if err == nil && c.bad {
		err = cl.InvalidValue
	}
	for _, p := range t.programs {
		if err == nil && p.busy {
			err = cl.InvalidOperation
		}
	}
	if err != nil {
		return s.send(reg.Event{Cookie: h.Cookie, Status: status(err)})
	}
	select {
	case s.builds <- struct{}{}:
	default:
		return s.send(reg.Event{Cookie: h.Cookie, Status: int32(cl.OutOfResources)})
	}
	setBusy(t.programs, true)
	s.tasks.Go(func() {
		err := t.run()
		s.mu.Lock()
		setBusy(t.programs, false)
		s.mu.Unlock()
		<-s.builds
		// Without the connection, Run ends as well.
		_ = s.send(reg.Event{Cookie: h.Cookie, Status: status(err)})
	})
	return nil
}

func setBusy(programs []*program, busy bool) {
	for _, p := range programs {
		p.busy = busy
	}
}

// options copies the options of a compiler out of VRAM. The driver needs to know which
// arguments are buffers.
func (s *Session) options(at, n uint64) (string, error) {
	text, err := s.text(at, n)
	return "-cl-kernel-arg-info " + string(text), err
}

func (s *Session) buildTask(c *cursor) (task, error) {
	handle := c.u32()
	c.u32()
	at, n := c.u64(), c.u64()
	p, err := object[*program](s, handle, cl.InvalidProgram)
	if err != nil {
		return task{}, err
	}
	options, err := s.options(at, n)
	return task{[]*program{p}, func() error { return s.Library.Build(p.program, s.Device, options) }}, err
}

func (s *Session) headersTask(c *cursor) (task, error) {
	handle, count := c.u32(), c.count(reg.MaxHeaders)
	at, n := c.u64(), c.u64()
	p, err := object[*program](s, handle, cl.InvalidProgram)
	if err != nil {
		return task{}, err
	}
	options, err := s.options(at, n)
	used, names, headers := []*program{p}, []string{}, []cl.Program{}
	for range count {
		if err != nil || c.bad {
			return task{}, err
		}
		var header *program
		header, err = object[*program](s, c.u32(), cl.InvalidProgram)
		names = append(names, string(c.padded(c.u32())))
		if err == nil {
			used, headers = append(used, header), append(headers, header.program)
		}
	}
	return task{used, func() error { return s.Library.Compile(p.program, s.Device, options, headers, names) }}, err
}

// linkTask makes a program. It stays after an error of the linker, for its messages.
func (s *Session) linkTask(c *cursor) (task, error) {
	handle, count := c.u32(), c.count(reg.MaxHeaders)
	at, n := c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return task{}, err
	}
	text, err := s.text(at, n)
	linked := &program{linked: true}
	used, inputs := []*program{linked}, []cl.Program{}
	for range count {
		if err != nil || c.bad {
			return task{}, err
		}
		var p *program
		p, err = object[*program](s, c.u32(), cl.InvalidProgram)
		if err == nil {
			used, inputs = append(used, p), append(inputs, p.program)
		}
	}
	if err != nil {
		return task{}, err
	}
	return task{used, func() error {
		made, err := s.Library.Link(s.context, s.Device, string(text), inputs)
		s.mu.Lock()
		defer s.mu.Unlock()
		if made == 0 {
			return err
		}
		// Another packet may have taken the handle meanwhile.
		if _, taken := s.objects[handle]; taken {
			_ = s.Library.Release(made)
			return cl.InvalidValue
		}
		linked.program = made
		s.objects[handle] = linked
		return err
	}}, nil
}

package session

import (
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// task is work of a compiler, which takes seconds: it goes on beside the other packets.
type task struct {
	programs []*program // that it uses; the first one it changes
	run      func() error
	after    programState // of the first one, if run succeeds
}

// programState says what has been done with a program.
type programState uint8

const (
	programNew programState = iota
	programBuilt
	programFailed // its build failed
	programMade   // it was compiled, or linked of others
)

// end notes the end of a task.
func (p *program) end(after programState, err error) {
	p.version++
	switch {
	case err == nil:
		p.state = after
	case after == programBuilt:
		p.state = programFailed
	}
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
	if err == nil && !t.free() {
		err = cl.InvalidOperation
	}
	if err != nil {
		return s.send(reg.Event{Cookie: h.Cookie, Status: status(err)})
	}
	if s.building == maxTasks {
		return s.send(reg.Event{Cookie: h.Cookie, Status: int32(cl.OutOfResources)})
	}
	s.building++
	t.hold()
	s.tasks.Go(func() {
		s.builds <- struct{}{} // each that holds it ends
		err := t.run()
		<-s.builds
		s.mu.Lock()
		s.building--
		t.leave()
		t.programs[0].end(t.after, err)
		s.mu.Unlock()
		// Without the connection, Run ends as well.
		_ = s.send(reg.Event{Cookie: h.Cookie, Status: status(err)})
	})
	return nil
}

// free reports whether no other task keeps this one from its programs. Several may read one: a
// program compiles with the same headers in many threads.
func (t task) free() bool {
	for _, p := range t.programs {
		if p.busy {
			return false
		}
	}
	return t.programs[0].users == 0
}

func (t task) hold() {
	t.programs[0].busy = true
	for _, p := range t.programs[1:] {
		p.users++
	}
}

func (t task) leave() {
	t.programs[0].busy = false
	for _, p := range t.programs[1:] {
		p.users--
	}
}

// options copies the options of a compiler out of VRAM. The driver needs to know which
// arguments are buffers.
func (s *Session) options(at, n uint64) (string, error) {
	text, err := s.text(at, n)
	return argInfo + string(text), err
}

// argInfo is the option with which a platform describes the arguments of kernels.
const argInfo = "-cl-kernel-arg-info "

func (s *Session) buildTask(c *cursor) (task, error) {
	handle := c.u32()
	c.u32()
	at, n := c.u64(), c.u64()
	p, err := object[*program](s, handle, cl.InvalidProgram)
	if err != nil {
		return task{}, err
	}
	options, err := s.options(at, n)
	run := func() error {
		if err := s.fromSource(p); err != nil {
			return err
		}
		s.mu.Lock()
		p.options = options
		p.take()
		s.mu.Unlock()
		return s.Library.Build(p.program, s.Device, options)
	}
	return task{[]*program{p}, run, programBuilt}, err
}

// fromSource makes a program of its source again, before it is compiled once more, if it has moved here
// as a binary. It has no kernels: it was compiled and not linked.
func (s *Session) fromSource(p *program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remake(p)
}

// remake is fromSource for a caller that holds the session's mutex.
func (s *Session) remake(p *program) error {
	if p.source == nil {
		return nil
	}
	made, err := s.Library.NewProgram(s.context, p.source)
	if err != nil {
		return err
	}
	_ = s.Library.Release(p.program)
	p.program, p.kind, p.text, p.source = made, reg.ProgramSource, p.source, nil
	return nil
}

func (s *Session) headersTask(c *cursor) (task, error) {
	handle, count := c.u32(), c.count(reg.MaxHeaders)
	at, n := c.u64(), c.u64()
	p, err := object[*program](s, handle, cl.InvalidProgram)
	if err != nil {
		return task{}, err
	}
	options, err := s.options(at, n)
	used, names := []*program{p}, []string{}
	for range count {
		if err != nil || c.bad {
			return task{}, err
		}
		var header *program
		header, err = object[*program](s, c.u32(), cl.InvalidProgram)
		names = append(names, string(c.padded(c.u32())))
		if err == nil {
			used = append(used, header)
		}
	}
	run := func() error {
		if err := s.fromSource(p); err != nil {
			return err
		}
		headers, made, err := s.headers(used[1:])
		if err == nil {
			err = s.Library.Compile(p.program, s.Device, options, headers, names)
		}
		for _, h := range made {
			_ = s.Library.Release(h)
		}
		return err
	}
	return task{used, run, programMade}, err
}

// headers returns the programs that a task uses as headers, and those of them that it made, which
// the caller releases: PoCL ends the process for a header without a source, as one is that has
// moved here as a binary. The programs do not change while the task holds them.
func (s *Session) headers(of []*program) (list, made []cl.Program, err error) {
	for _, p := range of {
		h := p.program
		if p.source != nil {
			if h, err = s.Library.NewProgram(s.context, p.source); err != nil {
				return nil, made, err
			}
			made = append(made, h)
		}
		list = append(list, h)
	}
	return list, made, nil
}

// linkTask makes a program. It stays after an error of the linker, for its messages.
func (s *Session) linkTask(c *cursor) (task, error) {
	handle, count := c.u32(), c.count(reg.MaxHeaders)
	at, n := c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return task{}, err
	}
	text, err := s.text(at, n)
	linked := &program{birth: s.birth()}
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
		if err == nil {
			linked.described = s.describer(made)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if made == 0 {
			return err
		}
		// Another packet may have taken the handle meanwhile.
		if _, taken := s.objects[handle]; taken {
			_ = s.Library.Release(made)
			if linked.described != 0 {
				_ = s.Library.Release(linked.described)
			}
			return cl.InvalidValue
		}
		linked.program = made
		s.objects[handle] = linked
		return err
	}, programMade}, nil
}

// describer returns a program with the same kernels as a linked one, whose arguments the
// platform describes; 0 if it describes those of the linked one itself. PoCL describes
// them only after the binary was loaded again. It takes as long as a build, and needs no lock.
func (s *Session) describer(linked cl.Program) cl.Program {
	if s.describes(linked) {
		return 0
	}
	text, err := s.Library.Binary(linked, reg.MaxProgramText)
	if err != nil {
		return 0
	}
	again, err := s.Library.NewProgramBinary(s.context, s.Device, text)
	if err != nil {
		return 0
	}
	options, _ := s.options(0, 0)
	if s.Library.Build(again, s.Device, options) != nil {
		_ = s.Library.Release(again)
		return 0
	}
	return again
}

// maxFileName is the longest name of a file, less a suffix.
const maxFileName = 250

// describes reports whether the platform describes the arguments of a program's kernels, or
// there are none. It reports so too of a kernel whose name is no file name: PoCL ends the process
// when it makes the binary of one.
func (s *Session) describes(p cl.Program) bool {
	names, err := s.Library.KernelNames(p)
	if err != nil {
		return true // a library
	}
	list := strings.Split(strings.TrimRight(string(names), "\x00"), ";")
	if slices.ContainsFunc(list, func(name string) bool { return len(name) > maxFileName }) {
		return true
	}
	for _, name := range list {
		k, err := s.Library.NewKernel(p, name)
		if err != nil {
			continue
		}
		args, err := s.Library.NumArgs(k)
		described := err != nil || args == 0 || len(s.Library.ArgProperties(k, 0)) > 0
		_ = s.Library.Release(k)
		if !described {
			return false
		}
	}
	return true
}

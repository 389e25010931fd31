// Package session executes the packets of a GPU's compute channel on an OpenCL
// device. It is the engine process of one binding: the tenant's programs run in it,
// so a program that faults ends it, and nothing else.
package session

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Conn carries packets and events, whole messages each.
type Conn interface {
	// Receive fills p with the next packet. It returns io.EOF at the end, and, without
	// block, reader.ErrNothing if no packet is there.
	Receive(p []byte, block bool) (n int, err error)
	// Send sends events, reg.EventSize bytes each.
	Send(events []byte) error
}

// Config describes a session.
type Config struct {
	Library *cl.Library
	Device  cl.Found
	VRAM    []byte // shared with the GPU; its other users may change it at any time
	Memory  uint64 // bytes of buffers; 0: as much as the device has
	Conn    Conn
	Turns   Conn // the box tells it whose turn it is; nil: the tenant has the device alone
	// Moves is the conversation about moves of the context to another device, and Ring the
	// shared memory for it; nil: it cannot move.
	Moves Conn
	Ring  []byte
	// Allowed, with Turns, is called before Memory changes to another value.
	Allowed func(memory uint64) error
	// Output returns up to n bytes that kernels have printed, which it forgets.
	Output func(n int) []byte
}

// Session is one context with its objects. The goroutine of Run handles the packets and
// sends events while it polls; one goroutine for each command queue waits for commands
// while it sleeps, and there is one for each build.
type Session struct {
	Config
	context cl.Context
	tasks   sync.WaitGroup
	builds  chan struct{} // holds one for each build beside Run
	poller  reader.Poller // of the goroutine of Run
	packet  []byte        // being handled
	ahead   []byte        // the one behind it
	info    []byte        // result of PacketInfo

	ends ends          // of commands of out-of-order queues
	wake chan struct{} // holds one: ends has changed

	mu       sync.Mutex // guards the fields below, and the calls that use them
	objects  map[uint32]any
	busy     []*queue // also those that are released and have commands
	asleep   bool     // the goroutine of Run does not look for the end of commands
	queues   int
	building int    // tasks of build.go, also those that wait
	used     uint64 // bytes of buffers
	shared   int    // buffers in shared virtual memory
	released releases
	enqueued uint64                  // the number of the last command
	serial   uint64                  // of the last buffer
	more     bool                    // another packet is there behind the one that is handled
	pending  map[uint64]enqueued     // by cookie
	scratch  []byte                  // of arguments
	after    []uint64                // cookies that the packet being enqueued waits for
	loose    map[uint64]looseCommand // by cookie: of out-of-order queues, not complete
	failed   failures
	turns    turns
	born     uint32 // number of the last object
	printed  []byte // what kernels printed before the context moved
	track    *track // a move is under way; nil: none
}

// maxBuilds bounds the compilations at one time, and maxTasks those with the ones that wait
// for them: a program may build from many threads.
const (
	maxBuilds = 2
	maxTasks  = 256
)

// Run executes packets until the connection ends.
func Run(c Config) error {
	if c.Memory == 0 || c.Memory > c.Device.Memory {
		c.Memory = c.Device.Memory
	}
	context, err := c.Library.NewContext(c.Device)
	if err != nil {
		return err
	}
	s := &Session{
		Config: c, context: context, builds: make(chan struct{}, maxBuilds),
		objects: map[uint32]any{}, pending: map[uint64]enqueued{},
		loose: map[uint64]looseCommand{}, wake: make(chan struct{}, 1),
	}
	for _, p := range c.Device.Properties(c.Library) { // before a tenant waits for them
		s.info = appendProperty(s.info, noIndex, p)
	}
	cl.OnEnd(s.noteEnd)
	defer close(s.wake)
	defer cl.OnEnd(nil)
	s.tasks.Go(s.sendLoose)
	if c.Turns != nil {
		s.tasks.Go(s.takeTurns)
	}
	if c.Moves != nil {
		s.tasks.Go(s.takeMoves)
	}
	// Nothing is released at the end: the process ends, and a command that never ends
	// would hold up a release.
	return s.serve()
}

// pollWindow is how long Run polls for the next packet or the end of a command: the round
// trip of a program that waits for each kernel, and short kernels. Other threads run
// between two looks.
const pollWindow = 100 * time.Microsecond

// collectEvery is the number of packets between two looks at the commands while packets
// come without a pause.
const collectEvery = 32

func (s *Session) serve() error {
	s.packet, s.ahead = make([]byte, reg.MaxPacket), make([]byte, reg.MaxPacket)
	s.poller.Window = pollWindow
	// The first event tells the box that the context is there.
	if err := s.send(reg.Event{}); err != nil {
		return err
	}
	for {
		err := s.poller.Expect(s.receive)
		if errors.Is(err, reader.ErrNothing) {
			err = s.receive(true)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// receive handles the packets that are there, and sends the events of commands that have
// ended. Without block it returns reader.ErrNothing if there is neither.
func (s *Session) receive(block bool) error {
	if block {
		s.sleep(true)
	}
	n, err := s.Conn.Receive(s.packet, block)
	if block {
		s.sleep(false)
	}
	worked := err == nil
	for handled := 1; err == nil; handled++ {
		m, next := s.Conn.Receive(s.ahead, false)
		if err := s.handle(s.packet[:n], next == nil); err != nil {
			return err
		}
		s.packet, s.ahead = s.ahead, s.packet
		n, err = m, next
		if handled%collectEvery == 0 {
			if _, err := s.collect(); err != nil {
				return err
			}
		}
	}
	if !errors.Is(err, reader.ErrNothing) {
		return err
	}
	ended, failed := s.collect()
	switch {
	case failed != nil:
		return failed
	case worked || ended:
		return nil
	}
	return err
}

// sleep leaves the commands to the goroutines of their queues, or ends that.
func (s *Session) sleep(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asleep = on
	for _, q := range s.busy {
		if on && len(q.commands) > 0 {
			q.work.Signal()
		}
	}
	if on && len(s.loose) > 0 {
		s.poke() // for an end that came after the last look
	}
}

// send sends events.
func (s *Session) send(events ...reg.Event) error {
	var b []byte
	for _, e := range events {
		b = e.Append(b)
	}
	return s.Conn.Send(b)
}

// result is the outcome of a packet that is not enqueued.
type result struct {
	data []byte // goes to the packet's Out
	err  error
}

// handle executes one packet, behind which more may be there. An error is one of the
// connection, or of a device that takes no markers.
func (s *Session) handle(p []byte, more bool) error {
	h, n, err := reg.ParsePacketHeader(p)
	if err != nil {
		return err
	}
	c := &cursor{b: p[n:]}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.more = more
	if err := s.execute(h, c); err != nil || more {
		return err
	}
	return s.settle()
}

func (s *Session) execute(h reg.PacketHeader, c *cursor) error {
	switch {
	case h.Op >= reg.FirstEnqueuePacket && h.Op < reg.EndEnqueuePacket:
		if err := s.enqueue(h, c); err != nil {
			s.failed.add(h.Cookie)
			return s.send(reg.Event{Cookie: h.Cookie, Status: status(err)})
		}
		return nil
	case h.Op == reg.PacketBuild, h.Op == reg.PacketCompile, h.Op == reg.PacketLink:
		return s.compile(h, c)
	}
	return s.finish(h, s.control(h, c))
}

// finish stores the result of a packet and sends its event.
func (s *Session) finish(h reg.PacketHeader, r result) error {
	e := reg.Event{Cookie: h.Cookie, Status: status(r.err)}
	if r.err == nil && len(r.data) > 0 {
		room, ok := s.window(h.Out, uint64(h.Room))
		if !ok || len(r.data) > len(room) {
			e.Status = int32(cl.InvalidValue)
		} else {
			e.Out, e.Length = h.Out, uint32(copy(room, r.data))
		}
	}
	return s.send(e)
}

// window returns n bytes of VRAM. They change at any time.
func (s *Session) window(at, n uint64) ([]byte, bool) {
	size := uint64(len(s.VRAM))
	if n > size || at > size-n {
		return nil, false
	}
	return s.VRAM[at : at+n : at+n], true
}

// output returns up to n bytes that kernels have printed.
func (s *Session) output(n int) []byte {
	if len(s.printed) == 0 {
		return s.Output(n)
	}
	out := s.printed[:min(n, len(s.printed))]
	s.printed = s.printed[len(out):]
	return out
}

// status returns the code of an error.
func status(err error) int32 {
	var code cl.Status
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int32(code)
	}
	return int32(cl.OutOfResources)
}

// control executes a packet that is not enqueued.
func (s *Session) control(h reg.PacketHeader, c *cursor) result {
	switch h.Op {
	case reg.PacketInfo:
		return result{data: s.info}
	case reg.PacketRelease:
		return result{err: s.release(c)}
	case reg.PacketQueue:
		return result{err: s.newQueue(c)}
	case reg.PacketBuffer:
		return result{err: s.newBuffer(c)}
	case reg.PacketSubBuffer:
		return result{err: s.newSubBuffer(c)}
	case reg.PacketProgram:
		return result{err: s.newProgram(c)}
	case reg.PacketProgramInfo:
		return s.programInfo(h, c)
	case reg.PacketKernel:
		return s.newKernel(c)
	case reg.PacketImage:
		return result{err: s.newImage(c)}
	case reg.PacketSampler:
		return result{err: s.newSampler(c)}
	case reg.PacketFormats:
		return s.formats(c)
	case reg.PacketConstant:
		return result{err: s.setConstant(c)}
	case reg.PacketSVM:
		return s.newShared(c)
	case reg.PacketSVMBuffer:
		return result{err: s.newOver(c)}
	case reg.PacketSubGroups:
		return s.subGroups(c)
	case reg.PacketTimer:
		return s.timer()
	case reg.PacketOutput:
		return result{data: s.output(int(min(h.Room, reg.MaxOutput)))}
	}
	return result{err: cl.InvalidOperation}
}

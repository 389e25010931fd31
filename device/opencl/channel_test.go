package opencl

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/ring"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// talking is an engine with a process that the test plays.
type talking struct {
	engine  *engine
	process *process
	memory  []byte // as the process has mapped it
	socket  *os.File
	channel *ring.Process
}

func newTalking(t *testing.T) *talking {
	t.Helper()
	e, err := newEngine("none", Found{}, limits{memory: 1 << 20}, 1<<20, true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	// No process has this number.
	p := &process{
		engine: e, cmd: &exec.Cmd{Process: &os.Process{Pid: 1 << 30}}, hello: true,
		buf: make([]byte, maxEvents*reg.EventSize),
	}
	others, err := p.connect()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.Mmap(int(others[1].Fd()), 0, ring.Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	channel, err := ring.NewProcess(memory, others[0].Fd())
	if err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.process, e.wanted, e.state, p.context = p, true, reg.ComputeStarting, e.context
	e.mu.Unlock()
	e.polled.Store(p)
	t.Cleanup(func() {
		e.polled.Store(nil)
		e.process = nil
		_ = others[0].Close() // a test may have closed it
		if err := errors.Join(others[1].Close(), unix.Munmap(memory), p.disconnect(), e.close()); err != nil {
			t.Error(err)
		}
	})
	return &talking{e, p, memory, others[0], channel}
}

// hello has the process say that its context is there.
func (k *talking) hello(t *testing.T) {
	t.Helper()
	if err := k.channel.Send(reg.Event{}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if err := k.process.Receive(true); err != nil || k.engine.State() != reg.ComputeReady {
		t.Fatalf("hello: %v, %v", err, k.engine.State())
	}
}

// submit hands a packet over, which the process receives.
func (k *talking) submit(t *testing.T, cookie uint64) {
	t.Helper()
	if !k.engine.Submit(reg.PacketHeader{Size: reg.PacketHeaderSize, Cookie: cookie}.Append(nil)) {
		t.Fatal("the packet was not taken")
	}
	b := make([]byte, reg.MaxPacket)
	n, err := k.channel.Receive(b, true)
	if h, _, _ := reg.ParsePacketHeader(b[:n]); err != nil || h.Cookie != cookie {
		t.Fatalf("packet %+v, %v", h, err)
	}
}

func (k *talking) send(t *testing.T, cookie uint64) {
	t.Helper()
	if err := k.channel.Send(reg.Event{Cookie: cookie}.Append(nil)); err != nil {
		t.Fatal(err)
	}
}

// A caller of hold takes what is there before it sleeps, and is woken by the next event.
func TestHold(t *testing.T) {
	k := newTalking(t)
	k.hello(t)
	served := make(chan error, 1)
	go func() { served <- k.process.reader.Serve() }()
	defer func() {
		_ = k.socket.Close()
		if err := <-served; !errors.Is(err, io.EOF) {
			t.Errorf("Serve ended with %v", err)
		}
	}()
	var fd uintptr
	var release func()
	for cookie := uint64(1); release == nil; cookie += 2 { // until the background goroutine is aside
		k.submit(t, cookie)
		k.submit(t, cookie+1)
		k.send(t, cookie)
		k.engine.poll()
		if fd, release = k.engine.hold(); release == nil {
			k.send(t, cookie+1)
			for k.engine.inFlight.Load() > 0 {
				k.engine.poll()
			}
			continue
		}
		if n := k.engine.inFlight.Load(); n != 1 {
			t.Errorf("%d packets in flight, want the one without an event", n)
		}
		k.send(t, cookie+1)
		wait := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(wait, 10_000); n != 1 || err != nil {
			t.Errorf("the event wakes no one: %d %v", n, err)
		}
		if !k.engine.poll() {
			t.Error("no event after the wake-up")
		}
		if n, err := unix.Poll(wait, 0); n != 0 || err != nil {
			t.Errorf("the wake-up is still there: %d %v", n, err)
		}
		release()
	}
}

// A process that breaks the rules of the ring ends: at the next packet, or at the next look for
// events.
func TestProcessBreaksTheRing(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(k *talking)
		packet bool // the next packet finds it
	}{
		"more events than fit":     {func(k *talking) { k.memory[192+2] = 1 }, false},
		"more taken than was put":  {func(k *talking) { k.memory[64+7] = 1 }, true},
		"wake-ups without events":  {func(k *talking) { _, _ = k.socket.Write(make([]byte, 9)); _, _ = k.socket.Write([]byte{0}) }, false},
		"events without a packet":  {func(k *talking) { _ = k.channel.Send(make([]byte, 2*reg.EventSize)) }, false},
		"end of the socket":        {func(k *talking) { _ = k.socket.Close() }, false},
		"end with events on hands": {func(k *talking) { _ = k.channel.Send(make([]byte, reg.EventSize)); _ = k.socket.Close() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTalking(t)
			k.hello(t)
			k.submit(t, 1)
			c.spoil(k)
			big := make([]byte, reg.MaxPacket)
			copy(big, reg.PacketHeader{Size: reg.MaxPacket}.Append(nil))
			for n := 0; c.packet && k.engine.Submit(big); n++ {
				if n > ring.PacketBytes/reg.MaxPacket {
					t.Fatal("a full ring takes packets")
				}
			}
			var err error
			for n := 0; err == nil || errors.Is(err, reader.ErrNothing); n++ {
				if err = k.process.Receive(true); n > 10 {
					t.Fatal("the box goes on reading")
				}
			}
		})
	}
}

// A ring without room takes no packet, and takes it after an event.
func TestSubmitToAFullRing(t *testing.T) {
	k := newTalking(t)
	k.hello(t)
	big := make([]byte, reg.MaxPacket)
	copy(big, reg.PacketHeader{Size: reg.MaxPacket}.Append(nil))
	n := 0
	for k.engine.Submit(big) {
		n++
	}
	if n != ring.PacketBytes/reg.MaxPacket || k.engine.inFlight.Load() != int32(n) {
		t.Fatalf("%d packets, %d in flight", n, k.engine.inFlight.Load())
	}
	b := make([]byte, reg.MaxPacket)
	if _, err := k.channel.Receive(b, true); err != nil {
		t.Fatal(err)
	}
	k.send(t, 1)
	if err := k.process.Receive(true); err != nil || !k.engine.Submit(big) {
		t.Errorf("no room after an event: %v", err)
	}
}

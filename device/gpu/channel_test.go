package gpu_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// fakeEngine completes a packet at once, with the packet as its result, unless it
// holds the packet.
type fakeEngine struct {
	vram    []byte
	state   reg.ComputeState
	packets [][]byte
	events  []reg.Event
	hold    bool // packets stay without an event
	full    bool // Submit refuses
	slow    bool // Start does not end
	taken   int  // packets, over all contexts
}

func newFakeEngine() *fakeEngine { return &fakeEngine{vram: make([]byte, 1<<20)} }

func (e *fakeEngine) Kind() reg.ComputeKind   { return reg.ComputeOpenCL }
func (e *fakeEngine) Memory() uint64          { return 1 << 40 }
func (e *fakeEngine) VRAM() []byte            { return e.vram }
func (e *fakeEngine) State() reg.ComputeState { return e.state }

func (e *fakeEngine) Start() {
	e.state = reg.ComputeReady
	if e.slow {
		e.state = reg.ComputeStarting
	}
}

func (e *fakeEngine) Stop() {
	e.state, e.packets, e.events = reg.ComputeOff, nil, nil
}

func (e *fakeEngine) Submit(p []byte) bool {
	if e.full {
		return false
	}
	e.packets = append(e.packets, bytes.Clone(p))
	e.taken++
	if !e.hold {
		e.complete(p)
	}
	return true
}

func (e *fakeEngine) complete(p []byte) {
	h, _, _ := reg.ParsePacketHeader(p)
	n := min(len(p), int(h.Room))
	if h.Out+uint64(n) <= uint64(len(e.vram)) {
		copy(e.vram[h.Out:], p[:n])
	}
	e.events = append(e.events, reg.Event{Cookie: h.Cookie, Length: uint32(n), Out: h.Out})
}

func (e *fakeEngine) Event() (reg.Event, bool) {
	if len(e.events) == 0 {
		return reg.Event{}, false
	}
	ev := e.events[0]
	e.events = e.events[1:]
	return ev, true
}

// Places of the tests' rings.
const (
	chanRing   = 0x10000 // VRAM
	chanSize   = 64 << 10
	chanOut    = 0x80000 // VRAM
	chanEvents = 64
	eventsAt   = dataAt
	mirrorAt   = dataAt + 1<<20
	chanVector = 5
)

// channelHost is a GPU with a compute engine in a host.
type channelHost struct {
	*gpuHost
	engine *fakeEngine
	tail   uint32
	seen   uint32
}

func newChannelHost(t *testing.T) *channelHost {
	t.Helper()
	e := newFakeEngine()
	g, err := gpu.NewWithEngine(gpu.Spec{}, e, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	r := &gpuHost{t: t, gpu: g, host: devicetest.NewHost(g)}
	r.mem = r.host.AddMemory(memBase, memSize)
	r.setup()
	return &channelHost{gpuHost: r, engine: e}
}

// enable programs the registers and starts the channel.
func (c *channelHost) enable() {
	c.write64(reg.ComputeRing, chanRing)
	c.write32(reg.ComputeRingSize, chanSize)
	c.write64(reg.ComputeEventBase, eventsAt)
	c.write32(reg.ComputeEventSize, chanEvents)
	c.write64(reg.ComputeMirror, mirrorAt)
	c.write32(reg.ComputeVector, chanVector)
	c.write32(reg.ComputeControl, reg.ComputeEnable)
	c.tail, c.seen = 0, 0
}

// put writes a packet to the ring, without the doorbell.
func (c *channelHost) put(p []byte) {
	for i, b := range p {
		c.host.Write(c.bars[reg.BARVRAM].Addr+chanRing+uint64((c.tail+uint32(i))%chanSize), []byte{b})
	}
	c.tail += uint32(len(p))
}

func (c *channelHost) ring() { c.write32(reg.ComputeTail, c.tail) }

func packet(cookie uint64, size int) []byte {
	h := reg.PacketHeader{Size: uint32(size), Op: reg.PacketMarker, Cookie: cookie, Out: chanOut, Room: uint32(size)}
	b := h.Append(nil)
	for len(b) < size {
		b = append(b, byte(cookie)+byte(len(b)))
	}
	return b
}

// event returns the next event, which must be there.
func (c *channelHost) event() reg.Event {
	c.t.Helper()
	if n := c.count(); uint32(n) == c.seen {
		c.t.Fatalf("no event after %d", n)
	}
	at := eventsAt - memBase + reg.EventSize*int(c.seen%chanEvents)
	e, _, err := reg.ParseEvent(c.mem[at:])
	if err != nil {
		c.t.Fatal(err)
	}
	c.seen++
	c.write32(reg.ComputeSeen, c.seen)
	return e
}

// count returns the count behind the event ring.
func (c *channelHost) count() uint64 {
	return binary.LittleEndian.Uint64(c.mem[eventsAt-memBase+reg.EventSize*chanEvents:])
}

func TestChannelCompletesPackets(t *testing.T) {
	c := newChannelHost(t)
	if v := c.read32(reg.Caps); v&reg.CapCompute == 0 {
		t.Errorf("capabilities %#x", v)
	}
	if kind, memory := c.read32(reg.ComputeKindReg), c.read64(reg.ComputeMemory); kind != 1 || memory != 1<<40 {
		t.Errorf("kind %d, memory %#x", kind, memory)
	}
	c.enable()
	if s := c.read32(reg.ComputeStateReg); s != uint32(reg.ComputeReady) {
		t.Fatalf("state %d", s)
	}
	for i := range uint64(200) { // over the ends of both rings
		p := packet(i, 32+8*int(i%128))
		c.put(p)
		c.ring()
		e := c.event()
		if e.Cookie != i || int(e.Length) != len(p) || e.Out != chanOut {
			t.Fatalf("packet %d: %+v", i, e)
		}
		if got := c.mem[mirrorAt-memBase+chanOut:][:len(p)]; !bytes.Equal(got, p) {
			t.Fatalf("packet %d: result % x, want % x", i, got, p)
		}
	}
	if head := c.read32(reg.ComputeHead); head != c.tail {
		t.Errorf("head %d of %d", head, c.tail)
	}
	if n := len(c.host.Interrupts); n != 200 {
		t.Errorf("%d interrupts", n)
	}
}

// The result and the entry leave before the count, and that before the interrupt.
func TestChannelWritesInOrder(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	var at []uint64
	c.host.OnWrite = func(p *tlp.Packet) { at = append(at, p.Addr) }
	c.put(packet(1, 8192))
	c.ring()
	count := uint64(eventsAt + reg.EventSize*chanEvents)
	if n := len(at); n < 4 || at[n-3] != eventsAt || at[n-2] != count || at[n-1] < devicetest.InterruptBase {
		t.Errorf("writes to %#x", at)
	}
	if !slices.IsSorted(at[:len(at)-3]) || at[0] != mirrorAt+chanOut {
		t.Errorf("the result went to %#x", at)
	}
}

func TestChannelWaitsForTheDriver(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	for i := range uint64(chanEvents + 10) {
		c.put(packet(i, 32))
	}
	c.ring()
	if n := c.count(); n != chanEvents {
		t.Fatalf("%d events in a ring of %d", n, chanEvents)
	}
	c.host.Run(10 * time.Second) // no time limit counts: the driver is slow
	for i := range uint64(chanEvents + 10) {
		if e := c.event(); e.Cookie != i {
			t.Fatalf("event %d is of packet %d", i, e.Cookie)
		}
	}
	if s := c.read32(reg.ComputeStateReg); s != uint32(reg.ComputeReady) {
		t.Errorf("state %d", s)
	}
}

func TestChannelTriesAgainWhenTheEngineIsFull(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	c.engine.full = true
	c.put(packet(7, 32))
	c.ring()
	if n := c.count(); n != 0 {
		t.Fatalf("%d events", n)
	}
	c.engine.full = false
	c.host.Pump()
	if e := c.event(); e.Cookie != 7 {
		t.Errorf("%+v", e)
	}
}

func TestChannelFails(t *testing.T) {
	header := func(size uint32) []byte { return reg.PacketHeader{Size: size}.Append(nil) }
	for name, test := range map[string]struct {
		act  func(c *channelHost)
		want reg.ComputeError
	}{
		"ring outside VRAM":     {func(c *channelHost) { c.restart(reg.ComputeRing, 1<<20) }, reg.ComputeBadRing},
		"ring not aligned":      {func(c *channelHost) { c.restart(reg.ComputeRing, 8) }, reg.ComputeBadRing},
		"ring too small":        {func(c *channelHost) { c.restart(reg.ComputeRingSize, 2048) }, reg.ComputeBadRing},
		"ring not a power of 2": {func(c *channelHost) { c.restart(reg.ComputeRingSize, 12288) }, reg.ComputeBadRing},
		"too many events":       {func(c *channelHost) { c.restart(reg.ComputeEventSize, 1<<20) }, reg.ComputeBadRing},
		"events overflow":       {func(c *channelHost) { c.restart(reg.ComputeEventBase, 1<<64-64) }, reg.ComputeBadRing},
		"mirror overflows":      {func(c *channelHost) { c.restart(reg.ComputeMirror, 1<<64-4096) }, reg.ComputeBadRing},
		"doorbell beyond":       {func(c *channelHost) { c.write32(reg.ComputeTail, chanSize+8) }, reg.ComputeBadRing},
		"size zero":             {func(c *channelHost) { c.put(header(0)); c.ring() }, reg.ComputeBadPacket},
		"size short":            {func(c *channelHost) { c.put(header(24)); c.ring() }, reg.ComputeBadPacket},
		"size odd":              {func(c *channelHost) { c.put(append(header(36), 0, 0, 0, 0)); c.ring() }, reg.ComputeBadPacket},
		"size beyond the bell":  {func(c *channelHost) { c.put(header(40)); c.ring() }, reg.ComputeBadPacket},
		"size absurd":           {func(c *channelHost) { c.put(header(1 << 31)); c.ring() }, reg.ComputeBadPacket},
		"doorbell of 4 bytes":   {func(c *channelHost) { c.put(header(32)); c.write32(reg.ComputeTail, 4) }, reg.ComputeBadPacket},
		"engine ends": {func(c *channelHost) {
			c.engine.state = reg.ComputeFailed
			c.host.Pump()
		}, reg.ComputeEnded},
		"no event": {func(c *channelHost) {
			c.engine.hold = true
			c.put(packet(1, 32))
			c.ring()
			c.host.Run(999 * time.Millisecond)
			if s := c.read32(reg.ComputeStateReg); s != uint32(reg.ComputeReady) {
				c.t.Errorf("state %d before the limit", s)
			}
			c.host.Run(time.Millisecond)
		}, reg.ComputeTimeLimit},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChannelHost(t)
			c.enable()
			test.act(c)
			state, got := c.read32(reg.ComputeStateReg), reg.ComputeError(c.read32(reg.ComputeErrorReg))
			if state != uint32(reg.ComputeFailed) || got != test.want {
				t.Fatalf("state %d, error %v, want %v", state, got, test.want)
			}
			if c.engine.state != reg.ComputeOff {
				t.Error("the engine runs")
			}
			if test.want == reg.ComputeBadPacket && c.engine.taken > 0 {
				t.Error("the engine got a bad packet")
			}
			// Disabled and enabled, it works again.
			c.engine.hold = false
			c.write32(reg.ComputeControl, 0)
			c.enable()
			c.put(packet(3, 32))
			c.ring()
			if e := c.event(); e.Cookie != 3 {
				t.Errorf("%+v", e)
			}
		})
	}
}

// restart enables the channel with one register changed.
func (c *channelHost) restart(off, v uint64) {
	c.write32(reg.ComputeControl, 0)
	c.write64(off, v)
	c.write32(reg.ComputeControl, reg.ComputeEnable)
}

func TestChannelFailureReachesTheDriver(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	c.engine.hold = true
	c.put(packet(1, 32))
	c.ring()
	c.host.Run(2 * time.Second)
	if n := c.count(); n != reg.EventsFailed {
		t.Errorf("count %#x", n)
	}
	if n := len(c.host.Interrupts); n != 1 {
		t.Errorf("%d interrupts", n)
	}
	if h := c.gpu.Health(); h.XID != reg.XIDEngine || !h.Alive {
		t.Errorf("%+v", h)
	}
}

// An engine that a program has taken over names any address.
func TestChannelDistrustsTheEngine(t *testing.T) {
	c := newChannelHost(t)
	c.enable()
	c.engine.events = []reg.Event{
		{Cookie: 1, Out: 1<<20 - 8, Length: 16},
		{Cookie: 2, Out: 1<<64 - 8, Length: 16},
		{Cookie: 3, Out: 8, Length: 8},
	}
	c.host.Pump()
	for _, want := range []uint32{0, 0, 8} {
		if e := c.event(); e.Length != want {
			t.Errorf("%+v, want length %d", e, want)
		}
	}
}

func TestResetEndsTheContext(t *testing.T) {
	for name, reset := range map[string]func(c *channelHost){
		"control":      func(c *channelHost) { c.write32(reg.Control, reg.ControlReset) },
		"function":     func(c *channelHost) { c.gpu.Reset(c.host.Now, device.FunctionLevelReset) },
		"conventional": func(c *channelHost) { c.gpu.Reset(c.host.Now, device.ConventionalReset) },
		"disable":      func(c *channelHost) { c.write32(reg.ComputeControl, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newChannelHost(t)
			c.enable()
			c.engine.hold = true
			c.put(packet(1, 32))
			c.ring()
			reset(c)
			if c.engine.state != reg.ComputeOff {
				t.Errorf("engine in state %d", c.engine.state)
			}
			c.gpu.Scrub()
			if !bytes.Equal(c.engine.vram, make([]byte, 1<<20)) {
				t.Error("the shared memory is not erased")
			}
		})
	}
}

// The commands of the queues and the kernels of the GPU work on shared memory too.
func TestKernelsOnSharedMemory(t *testing.T) {
	c := newChannelHost(t)
	for i := range 100 {
		binary.LittleEndian.PutUint32(c.engine.vram[0x1fff0+4*i:], 0x3f800000) // 1.0, over a chunk's end
	}
	c.submit(0,
		reg.Kernel(1, reg.Launch{Kernel: reg.KernelScale, Type: reg.FP32, A: 0x1fff0, C: 0x4fff8, M: 100, Alpha: 2}),
		reg.CopyVRAM(2, 0x60001, 0x4fff8, 400), reg.Fill(3, 0x70000, 7, 8))
	c.host.Run(deadlines)
	if v := binary.LittleEndian.Uint32(c.engine.vram[0x60001+4*99:]); v != 0x40000000 {
		t.Errorf("%#x", v)
	}
	if v := binary.LittleEndian.Uint64(c.engine.vram[0x70000:]); v != 7<<32|7 {
		t.Errorf("%#x", v)
	}
}

func TestGPUWithoutEngineHasNoChannel(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	r.write32(reg.ComputeControl, reg.ComputeEnable)
	for off := uint64(reg.ComputeKindReg); off < reg.ComputeKindReg+reg.QueueStride; off += pcie.DW {
		if v := r.read32(off); v != 0 {
			t.Errorf("register %#x is %#x", off, v)
		}
	}
}

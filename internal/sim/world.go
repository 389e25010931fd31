// Package sim runs the machines of a binding in virtual time: an embedded host,
// the links of both proxies and a device, joined by paths with a set delay,
// bandwidth and faults. It is the code that the daemons run, so what the
// simulation measures is what the protocol does; only processors cost nothing.
//
//	host memory ── root complex ── link ══ paths ══ link ── device
//	             RootLatency              Delay, Rate
//
// The round trip of a memory read of the device is RootLatency and twice Delay,
// where no bandwidth is set.
package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// MemoryBase is the bus address of the host's memory.
const MemoryBase = 1 << 20

// DefaultMTU is the UDP payload of an Ethernet jumbo frame over IPv6, in bytes.
const DefaultMTU = 9000 - 48

// Spec describes a world. Its zero value has a GPU with every default, one path
// without delay and 64 MiB of memory.
type Spec struct {
	GPU gpu.Spec
	// Device is used in the GPU's place if it is not nil.
	Device device.Device
	Paths  []Path // none: one
	// RootLatency is what a TLP of the device takes from the host's proxy to
	// host memory.
	RootLatency time.Duration
	// Link has the cipher, the windows and the timers of both ends. Who they
	// are, their secret and their paths are filled in.
	Link link.Config
	MTU  int // of every path, bytes of UDP payload; 0: DefaultMTU
	// Memory is the size of host memory in bytes; 0: 64 MiB.
	Memory int
	// MaxPayload is Max_Payload_Size of host and device; 0: 256.
	MaxPayload pcie.PayloadSize
	// MaxReadRequest is what the host sets in the device; 0: 512.
	MaxReadRequest pcie.PayloadSize
	Seed           uint64 // of the faults
}

func (s Spec) withDefaults() Spec {
	if len(s.Paths) == 0 {
		s.Paths = []Path{{}}
	}
	if s.MTU == 0 {
		s.MTU = DefaultMTU
	}
	if s.Memory == 0 {
		s.Memory = 64 << 20
	}
	if s.MaxPayload == 0 {
		s.MaxPayload = 256
	}
	if s.MaxReadRequest == 0 {
		s.MaxReadRequest = 512
	}
	return s
}

// Sides of a world, which are the indices of its links.
const (
	hostSide = 0
	boxSide  = 1
)

// World is a host and a device. It is used from one goroutine, and time passes
// only in the methods that say so.
type World struct {
	// Memory is the host's memory, from MemoryBase on. It may be read and
	// written between calls.
	Memory []byte
	// OnDatagram sees every datagram as it is sent; nil is nobody.
	OnDatagram func(at time.Duration, path uint8, datagram []byte)

	clock   clock
	host    *embedded.Host
	device  device.Device
	links   [2]*link.Link
	pipes   [2][]pipe
	latency time.Duration
	buf     []byte

	sendDown, sendUp func(*tlp.Packet) bool
	takeDown, takeUp func(*tlp.Packet)
	enum             rootcomplex.EnumSpec
}

// New makes a world at time 0, with the link coming up and the bus not yet
// enumerated.
func New(spec Spec) (*World, error) {
	spec = spec.withDefaults()
	w := &World{
		Memory: make([]byte, spec.Memory), device: spec.Device, latency: spec.RootLatency,
		buf: make([]byte, frame.MaxDatagram), enum: rootcomplex.DefaultEnumSpec(),
	}
	w.enum.MaxPayload, w.enum.MaxReadRequest = spec.MaxPayload, spec.MaxReadRequest
	w.enum.TenBitTags = true
	if w.device == nil {
		g, err := gpu.New(spec.GPU)
		if err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
		w.device = g
	}
	var err error
	w.host, err = embedded.New(rootcomplex.Spec{
		Memory: w.Memory, MemoryBase: MemoryBase, MaxPayload: spec.MaxPayload, Timeout: time.Second,
	}, 0, func() {})
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	w.host.SetScheduler(w)
	for side := range w.links {
		if err := w.addLink(side, &spec); err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
	}
	w.sendDown, w.sendUp = w.sender(hostSide), w.sender(boxSide)
	w.takeDown, w.takeUp = w.toDevice, w.toHost
	return w, nil
}

// addLink makes one end of the link and its direction of the paths.
func (w *World) addLink(side int, spec *Spec) error {
	cfg := spec.Link
	ends := [2]frame.Endpoint{{Node: 1, Slot: 0}, {Node: 2, Slot: 0}}
	cfg.Binding, cfg.Epoch = 1, 1
	cfg.Local, cfg.Remote = ends[side], ends[1-side]
	cfg.Initiator = side == hostSide
	cfg.Session = uint64(side) + 1 // keys of a world guard nothing
	cfg.Paths = nil
	for i := range spec.Paths {
		p := &spec.Paths[i]
		cfg.Paths = append(cfg.Paths, link.PathConfig{MTU: spec.MTU})
		plan := [2]fault.Plan{p.Down, p.Up}[side]
		w.pipes[side] = append(w.pipes[side], pipe{path: p, faults: fault.New(plan, spec.Seed+uint64(2*i+side))})
	}
	l, err := link.New(0, cfg)
	w.links[side] = l
	return err
}

// Now returns the virtual time since the world was made.
func (w *World) Now() time.Duration { return w.clock.now }

// LinkStats returns the counters of the host's and of the box's end.
func (w *World) LinkStats() (host, box link.Stats) {
	return w.links[hostSide].Stats(), w.links[boxSide].Stats()
}

// Counters returns those of the host.
func (w *World) Counters() rootcomplex.Counters { return w.host.Counters() }

// Errors of RunUntil.
var (
	// ErrDeadline says that the time was over before what was waited for.
	ErrDeadline = errors.New("sim: did not happen in time")
	// ErrLinkDown says that the link has ended.
	ErrLinkDown = errors.New("sim: the link is down")
)

// Run lets time pass until the given moment.
func (w *World) Run(until time.Duration) error {
	err := w.RunUntil(until, func() bool { return false })
	if errors.Is(err, ErrDeadline) {
		return nil
	}
	return err
}

// RunUntil lets time pass until done returns true. done is called after every
// event. The error is ErrDeadline or ErrLinkDown.
func (w *World) RunUntil(deadline time.Duration, done func() bool) error {
	for {
		w.pump()
		switch {
		case done():
			return nil
		case w.links[hostSide].State() == link.Down || w.links[boxSide].State() == link.Down:
			return ErrLinkDown
		case w.clock.now >= deadline:
			return ErrDeadline
		}
		w.clock.advance(min(w.wake(), deadline))
	}
}

// WaitUntil implements embedded.Scheduler. It goes on when the link is down:
// the host's own timeouts end what waits for the device.
func (w *World) WaitUntil(t time.Duration, ready func() bool) {
	for w.pump(); !ready() && w.clock.now < t; w.pump() {
		w.clock.advance(min(w.wake(), t))
	}
}

// wake returns when something happens next.
func (w *World) wake() time.Duration {
	return min(w.clock.events.Wake(), w.host.Wake(), w.device.Wake(), w.links[hostSide].Wake(), w.links[boxSide].Wake())
}

// pump lets everybody send what they have.
func (w *World) pump() {
	now := w.clock.now
	w.device.Transmit(now, w.sendUp)
	for {
		job, ok := w.device.NextJob()
		if !ok {
			break
		}
		job.Run()
		w.clock.at(now+job.Cost(), func() { w.device.FinishJob(w.clock.now, job) })
	}
	w.host.Transmit(now, w.sendDown)
	for side := range w.links {
		w.transmit(side)
	}
}

// transmit gives the datagrams of one link to the network.
func (w *World) transmit(side int) {
	for {
		n, id := w.links[side].Transmit(w.clock.now, w.buf)
		if n == 0 {
			return
		}
		if w.OnDatagram != nil {
			w.OnDatagram(w.clock.now, id, w.buf[:n])
		}
		take := w.takeDown
		if side == boxSide {
			take = w.takeUp
		}
		to := w.links[1-side]
		w.pipes[side][id].send(&w.clock, w.buf[:n], func(datagram []byte) {
			_ = to.Receive(w.clock.now, id, datagram, take) // counted by the link
		})
	}
}

// sender returns the emit function towards a link.
func (w *World) sender(side int) func(*tlp.Packet) bool {
	l := w.links[side]
	return func(p *tlp.Packet) bool {
		return !errors.Is(l.Send(w.clock.now, p), link.ErrFull) // a link that is down drops it
	}
}

func (w *World) toDevice(p *tlp.Packet) { w.device.Receive(w.clock.now, p) }

// toHost carries a TLP of the device to the root complex.
func (w *World) toHost(p *tlp.Packet) {
	if w.latency == 0 {
		w.host.Receive(w.clock.now, p)
		return
	}
	late := *p
	late.Data = append([]byte(nil), p.Data...)
	late.Prefix = append([]byte(nil), p.Prefix...)
	w.clock.at(w.clock.now+w.latency, func() { w.host.Receive(w.clock.now, &late) })
}

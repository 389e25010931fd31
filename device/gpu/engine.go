package gpu

import (
	"cmp"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Engine computes what the kernels of the GPU itself cannot: packets of the compute
// channel. It stands for another process, so no method waits. The owner of the
// GPU calls the methods, as it calls those of the GPU.
type Engine interface {
	// Kind tells the driver which packets the engine takes.
	Kind() reg.ComputeKind
	// Memory is the size of the engine's memory in bytes.
	Memory() uint64
	// VRAM is the memory that the engine shares with the GPU. It lasts as long as
	// the engine.
	VRAM() []byte
	// Start makes a context, Stop ends it with everything in it. Packets and events
	// of an ended context vanish. Both may be repeated.
	Start()
	Stop()
	// State returns the state of the context. It is ComputeFailed after the engine has
	// ended by itself.
	State() reg.ComputeState
	// Submit hands over one packet, of which the engine takes a copy. It returns false
	// if the engine cannot take it now: the GPU tries again after an event.
	Submit(packet []byte) bool
	// Event returns the next event of the context. Every packet has one.
	Event() (e reg.Event, ok bool)
}

// Mover is an engine whose contexts can move to another engine of the same identity, with
// all their objects, as a stream of bytes. Nothing waits here either: a method that has
// nothing yet says so, and the owner of the GPU calls it again after Transmit.
type Mover interface {
	Engine
	// Movable returns why contexts cannot move; nil: they can. A reason that the engine finds
	// during a move lasts until the next Track.
	Movable() error
	// Identity describes what the driver has read of the engine.
	Identity() string
	// Track begins to record what changes, or ends it. Changed returns how many bytes have
	// changed, about.
	Track(on bool)
	Changed() uint64
	// Save fills p with the next bytes of the stream, a multiple of 8. n is 0 at the end of a
	// pass over what has changed; with later, there is more to come.
	Save(p []byte) (n int, later bool)
	// Rest reports whether all packets have their events, of which Event returns the rest.
	// The next pass of Save is the last one then, and completes the stream.
	Rest() bool
	// Load takes the bytes of another engine's stream that begin at a position. It returns
	// device.ErrBusy if it cannot take them now.
	Load(at uint64, p []byte) error
	// Settled reports whether what Load took has been done.
	Settled() bool
	// Loaded reports whether the stream, which has ended, is in place: there is a context then
	// if started.
	Loaded() (started, ok bool, err error)
}

// NewWithEngine makes a GPU with a compute engine, whose memory replaces VRAM of
// the specification. limit is the time limit of the channel; 0 means ten minutes: a compiler, or a kernel,
// may take as long on a busy machine.
func NewWithEngine(spec Spec, e Engine, limit time.Duration) (*GPU, error) {
	spec.VRAM = int64(len(e.VRAM()))
	g, err := New(spec)
	if err != nil {
		return nil, err
	}
	g.vram = newFlatVRAM(e.VRAM())
	g.channel.engine = e
	g.channel.limit = cmp.Or(limit, 10*time.Minute)
	return g, nil
}

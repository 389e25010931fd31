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

// Package plant is a model of a GPU in virtual time, to run the policies of package
// share against. It has multiprocessors that run thread blocks in waves, a block
// scheduler with two priorities, limits of multiprocessors for each client, contexts
// with the cost of a switch, partitions, and memory bandwidth over which kernels
// slow each other down. It is a machine: it depends on its input only, and counts in
// integers.
//
// The model leaves out: blocks of two kernels on one multiprocessor, the levels of the
// caches (a fixed loss for each neighbour stands for them), clocks and power. A
// context switch waits for the blocks that run, where the hardware can also save them.
package plant

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// Spec describes the GPU. The times are of our choice, in the order of magnitude of
// published measurements; a scenario may set them.
type Spec struct {
	Device    share.Device
	Execution share.Execution
	Switch    time.Duration // from one context to another one, nothing running
	Slice     time.Duration // turn of a context while another one has work
	Reset     time.Duration // from the kill of a block until its multiprocessor is free
	CacheLoss share.PPM     // longer waits for memory, for each other client that runs
}

// Default returns the usual constants for a device.
func Default(d share.Device, x share.Execution) Spec {
	return Spec{
		Device: d, Execution: x,
		Switch: 30 * time.Microsecond, Slice: 2 * time.Millisecond, Reset: 10 * time.Microsecond,
		CacheLoss: share.Percent(3),
	}
}

// Kernel is a kernel as the GPU sees it.
type Kernel struct {
	Name      string
	Blocks    int64         // of the grid
	Occupancy int32         // blocks that fit on a multiprocessor
	BlockTime time.Duration // of a block, alone on the GPU
	Memory    share.PPM     // of the peak bandwidth, while the kernel has all multiprocessors that it fills
}

// SMs returns how many multiprocessors the kernel fills.
func (k *Kernel) SMs(d share.Device) int32 {
	n := (k.Blocks + int64(k.Occupancy) - 1) / int64(k.Occupancy)
	return int32(min(n, int64(d.SMs)))
}

// Alone returns the kernel's duration alone on a device.
func (k *Kernel) Alone(d share.Device) time.Duration {
	perWave := int64(k.SMs(d)) * int64(k.Occupancy)
	return time.Duration((k.Blocks+perWave-1)/perWave) * k.BlockTime
}

// Completion is a launch that ended. Ran is the time since its first block began.
type Completion struct {
	Client share.ClientID
	Launch share.LaunchID
	Ran    time.Duration
}

// Killed is a launch that Preempt ended. Blocks are those that it has not finished.
type Killed struct {
	Launch share.LaunchID
	Blocks int64
}

// launch is a kernel in a stream.
type launch struct {
	id      share.LaunchID
	kernel  Kernel
	order   uint64 // of submission
	high    bool
	sms     int32 // most multiprocessors, 0: no limit of its own
	left    int64 // blocks that have not begun
	running int   // chunks
	began   time.Duration
	started bool
}

// stream is the queue of a client: its kernels run one after another.
type stream struct {
	client share.ClientID
	queue  []*launch
	limit  int32     // multiprocessors
	speed  share.PPM // of memory that is on the GPU in part; Whole: all of it is
	used   int32     // multiprocessors in use
	busy   time.Duration
	smTime time.Duration // multiprocessors × time
}

// chunk is a group of blocks that began together, one wave or a part of it.
type chunk struct {
	s      *stream
	l      *launch // nil while its multiprocessors are being reset
	sms    int32
	blocks int64
	left   int64 // work, in nanoseconds at full speed × share.Whole
	rate   int64 // share.Whole: full speed
}

// GPU is the model. Its methods take times that do not go backwards.
type GPU struct {
	spec    Spec
	now     time.Duration
	streams []*stream
	chunks  []chunk
	free    int32
	order   uint64
	done    []Completion

	context  *stream       // that runs, in execution by contexts
	since    time.Duration // when its turn began
	switched time.Duration // when the switch to it is over

	busy   time.Duration
	smTime time.Duration
}

// New returns an idle GPU.
func New(s Spec) *GPU { return &GPU{spec: s, free: s.Device.SMs} }

// Attach adds a client.
func (g *GPU) Attach(c share.ClientID) {
	g.streams = append(g.streams, &stream{client: c, limit: g.spec.Device.SMs, speed: share.Whole})
}

// Detach removes a client with all that it runs.
func (g *GPU) Detach(now time.Duration, c share.ClientID) {
	g.Advance(now)
	s := g.stream(c)
	if s == nil {
		return
	}
	g.chunks = slices.DeleteFunc(g.chunks, func(k chunk) bool {
		if k.s == s {
			g.free += k.sms
		}
		return k.s == s
	})
	g.streams = slices.DeleteFunc(g.streams, func(x *stream) bool { return x == s })
	if g.context == s {
		g.context = nil
	}
	g.dispatch()
}

func (g *GPU) stream(c share.ClientID) *stream {
	for _, s := range g.streams {
		if s.client == c {
			return s
		}
	}
	return nil
}

// SetShare limits a client to a share of the multiprocessors, rounded up.
func (g *GPU) SetShare(now time.Duration, c share.ClientID, p share.PPM) {
	g.Advance(now)
	if s := g.stream(c); s != nil {
		n := (int64(g.spec.Device.SMs)*int64(p) + int64(share.Whole) - 1) / int64(share.Whole)
		s.limit = max(1, int32(n))
		g.dispatch()
	}
}

// SetSpeed slows a client's kernels down to a share of their speed: that of a client
// part of whose memory is not on the GPU.
func (g *GPU) SetSpeed(now time.Duration, c share.ClientID, p share.PPM) {
	g.Advance(now)
	if s := g.stream(c); s != nil {
		s.speed = max(p, 1000)
		g.rates()
	}
}

// Submit adds a kernel to the client's stream.
func (g *GPU) Submit(now time.Duration, c share.ClientID, id share.LaunchID, k Kernel, high bool, sms int32) {
	g.Advance(now)
	s := g.stream(c)
	if s == nil {
		return
	}
	g.order++
	s.queue = append(s.queue, &launch{id: id, kernel: k, order: g.order, high: high, sms: sms, left: k.Blocks})
	if len(s.queue) == 1 { // behind another kernel it cannot begin
		g.dispatch()
	}
}

// Preempt ends all kernels of a client that run or are queued, and returns them in
// order. Blocks that have ended count; those that run are lost.
func (g *GPU) Preempt(now time.Duration, c share.ClientID) []Killed {
	g.Advance(now)
	s := g.stream(c)
	if s == nil {
		return nil
	}
	for i := range g.chunks {
		k := &g.chunks[i]
		if k.s == s && k.l != nil {
			k.l.left += k.blocks
			k.l, k.left = nil, int64(g.spec.Reset)*int64(share.Whole)
		}
	}
	var out []Killed
	for _, l := range s.queue {
		out = append(out, Killed{l.id, l.left})
	}
	s.queue = s.queue[:0]
	g.dispatch()
	return out
}

// Take returns the completions since the last call. The slice is valid until the
// next call of a method.
func (g *GPU) Take() []Completion {
	d := g.done
	g.done = g.done[:0]
	return d
}

// Usage is the sum of the work since the start.
type Usage struct {
	Busy   time.Duration // time with a kernel running
	SMTime time.Duration // multiprocessors in use × time
}

// Usage returns the usage of a client, or of the GPU for client 0.
func (g *GPU) Usage(c share.ClientID) Usage {
	if c == 0 {
		return Usage{g.busy, g.smTime}
	}
	if s := g.stream(c); s != nil {
		return Usage{s.busy, s.smTime}
	}
	return Usage{}
}

// Wake returns when the state changes next.
func (g *GPU) Wake() time.Duration {
	at := machine.Never
	for i := range g.chunks {
		k := &g.chunks[i]
		at = min(at, g.now+time.Duration((k.left+k.rate-1)/k.rate))
	}
	if g.switched > g.now {
		at = min(at, g.switched)
	}
	return at
}

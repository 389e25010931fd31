package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// SharedSpec describes GPUs behind one box proxy, whose hosts copy data at the same time
// over a switch.
type SharedSpec struct {
	perf.Requester
	GPUs  int
	Hosts int // that share the box; GPUs is a multiple of it
	// RTT is the round trip of a memory read, without waiting: four links, two each way.
	RTT time.Duration
	// HostLink and BoxLink are the links of each host and of the box, in bytes per second.
	HostLink, BoxLink float64
	Buffer            int     // of each port of the switch in bytes; 0: no bound
	Mark              int     // bytes in it from which on datagrams are marked (ECN); 0: none
	Loss              float64 // of datagrams
	ToHost            bool    // copies from the GPUs to the hosts
	// Chunk is the size of one copy. Compute is the time between the end of a copy and
	// the start of the next one; 0: two copies are always under way.
	Chunk   int
	Compute time.Duration
	Time    time.Duration // of the measurement, after a warm-up of as much
	Seed    uint64
}

// Shared is the result.
type Shared struct {
	PerGPU   []perf.BytesPerSecond // in the order of the GPUs
	Total    perf.BytesPerSecond
	P50, P99 time.Duration // of one copy
	Dropped  uint64        // at full ports of the switch
	Marked   uint64        // by the switch
}

// Limits of SharedSpec.
const (
	maxSharedGPUs = 1024
	maxChunk      = 64 << 20
)

// Validate reports the first field out of bounds.
func (s *SharedSpec) Validate() error {
	if err := s.Requester.Validate(); err != nil {
		return err
	}
	switch {
	case s.GPUs < 1 || s.GPUs > maxSharedGPUs || s.Hosts < 1 || s.GPUs%s.Hosts != 0:
		return fmt.Errorf("sim: %d GPUs, %d hosts: want 1 to %d GPUs, a multiple of the hosts", s.GPUs, s.Hosts, maxSharedGPUs)
	case s.RTT <= 0 || s.RTT > time.Second:
		return fmt.Errorf("sim: round trip %v: want more than 0 and at most 1s", s.RTT)
	case !(s.HostLink > 0 && s.BoxLink > 0):
		return fmt.Errorf("sim: links of %v and %v: want rates in bytes per second", s.HostLink, s.BoxLink)
	case s.Mark < 0 || s.Buffer > 0 && s.Mark > s.Buffer:
		return fmt.Errorf("sim: marks from %d bytes on: want 0 to the buffer of %d bytes", s.Mark, s.Buffer)
	case s.Chunk < 4096 || s.Chunk > maxChunk || s.Buffer < 0:
		return fmt.Errorf("sim: copies of %d bytes, buffers of %d: want 4096 to %d, and 0 or more", s.Chunk, s.Buffer, maxChunk)
	case !(s.Loss >= 0 && s.Loss < 0.5):
		return fmt.Errorf("sim: loss %v: want 0 to less than 0.5", s.Loss)
	case s.Time <= 0 || s.Time > time.Second || s.Compute < 0 || s.Compute > time.Second:
		return fmt.Errorf("sim: time %v, compute %v: want up to 1s", s.Time, s.Compute)
	}
	return nil
}

// sharing is a measurement on its way.
type sharing struct {
	*SharedSpec
	pool     *Pool
	from, to time.Duration // of the measurement
	begin    bool
	bytes    map[string]int // in the time that counts, by binding
	took     []time.Duration
	ready    int // programs that wait for begin
	done     int // programs whose copies reach beyond to
}

// Measure runs the engines of the hosts and of the box with all their links.
func (s SharedSpec) Measure(ctx context.Context) (Shared, error) {
	if err := s.Validate(); err != nil {
		return Shared{}, err
	}
	each := s.GPUs / s.Hosts
	m := &sharing{SharedSpec: &s, bytes: map[string]int{}}
	p, err := NewPool(PoolSpec{
		Hosts: s.Hosts, Boxes: 1, HostSlots: each, BoxSlots: s.GPUs,
		GPU:      gpu.Spec{Tags: s.Tags, MaxReadRequest: s.MRRS, VRAM: int64(max(s.Chunk, 64<<10)+64<<10-1) &^ (64<<10 - 1)},
		Plan:     fault.Plan{Delay: s.RTT / 2, Loss: s.Loss},
		HostPort: Port{s.HostLink, s.Buffer, s.Mark}, BoxPort: Port{s.BoxLink, s.Buffer, s.Mark},
		Memory: each * (driverMemory + 2*s.Chunk), Program: m.program, Seed: s.Seed,
	})
	if err != nil {
		return Shared{}, err
	}
	defer p.Close()
	m.pool = p
	p.Run(10 * time.Millisecond) // the members report
	for i := range s.GPUs {
		if _, ok := p.Attach(p.Hosts[i%s.Hosts]); !ok {
			return Shared{}, errors.New("sim: the pool has no GPU left")
		}
	}
	if !p.RunUntil(p.Now()+attachTimeout, func() bool { return m.ready == s.GPUs || len(p.Failures) > 0 || ctx.Err() != nil }) || len(p.Failures) > 0 {
		return Shared{}, fmt.Errorf("sim: %d of %d GPUs are ready: %w", m.ready, s.GPUs, errors.Join(p.Failures...))
	}
	m.begin, m.from = true, p.Now()+s.Time
	m.to = m.from + s.Time
	for _, h := range p.Hosts {
		p.at(p.Now(), h.node, nil) // the programs look at begin
	}
	p.RunUntil(m.to+attachTimeout, func() bool { return m.done == s.GPUs || len(p.Failures) > 0 || ctx.Err() != nil })
	if err := errors.Join(append(p.Failures, ctx.Err())...); err != nil {
		return Shared{}, err
	}
	return m.result(), nil
}

func (m *sharing) result() Shared {
	var r Shared
	for _, b := range m.pool.Bindings {
		rate := perf.BytesPerSecond(float64(m.bytes[b.ID]) / m.Time.Seconds())
		r.PerGPU = append(r.PerGPU, rate)
		r.Total += rate
	}
	slices.Sort(m.took)
	if n := len(m.took); n > 0 {
		r.P50, r.P99 = m.took[n/2], m.took[min(n*99/100, n-1)]
	}
	for _, member := range m.pool.members() {
		for _, u := range member.node.uplinks {
			r.Dropped += u.port.dropped
			r.Marked += u.port.marked
		}
	}
	return r
}

// program copies until the world ends.
func (m *sharing) program(t Tenant) error {
	ctx := context.Background()
	bus, err := t.Host.Open(t.Slot)
	if err != nil {
		return err
	}
	dev, err := driver.Open(ctx, bus, driver.Options{})
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	memory, err := dev.AllocDMA(m.Chunk)
	if err != nil {
		return err
	}
	node := t.Host.node
	copyChunk := reg.CopyToVRAM(0, 0, memory.Segments()[0].Addr, uint64(m.Chunk))
	if m.ToHost {
		copyChunk = reg.CopyFromVRAM(0, memory.Segments()[0].Addr, 0, uint64(m.Chunk))
	}
	m.ready++
	node.WaitUntil(node.Now()+attachTimeout, func() bool { return m.begin })
	ahead := 2
	if m.Compute > 0 {
		ahead = 1
	}
	var fences []driver.Fence
	last, done := m.pool.Now(), false
	for {
		for len(fences) < ahead {
			if err := stream.Submit(ctx, copyChunk); err != nil {
				return err
			}
			f, err := stream.Fence(ctx)
			if err != nil {
				return err
			}
			fences = append(fences, f)
		}
		if err := stream.Wait(ctx, fences[0]); err != nil {
			return err
		}
		fences = fences[1:]
		m.note(t.Binding, last, m.pool.Now())
		if m.pool.Now() >= m.to && !done {
			done = true // go on: the others' last copies are to have their neighbours
			m.done++
		}
		if m.Compute > 0 {
			if err := bus.Sleep(ctx, m.Compute); err != nil {
				return err
			}
		}
		last = m.pool.Now()
	}
}

// note counts the part of a copy that lies in the time that counts.
func (m *sharing) note(binding string, start, end time.Duration) {
	within := min(end, m.to) - max(start, m.from)
	if within <= 0 {
		return
	}
	m.bytes[binding] += int(float64(m.Chunk) * float64(within) / float64(end-start))
	m.took = append(m.took, end-start)
}

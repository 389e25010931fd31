package boxproxy

import (
	"fmt"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// Slice says that the device of a slot is a slice of a GPU. Its computations share the
// processor of the GPU with those of the other slices.
type Slice struct {
	// Dispatcher is that of the GPU. The slots of all its slices have the same one.
	Dispatcher *dispatch.Dispatcher
	Client     share.ClientID // number of the slice in the dispatcher
	Spec       share.ClientSpec
	Whole      *Divisible // the device is a GPU that the manager may divide
	Of         *Divisible // the device is a part of one: Part of its binding replaces Spec
}

// dispatcher runs the computations of the slices of one GPU: the surroundings of a
// dispatch.Dispatcher. Slices are bound to different hosts, so their groups are
// different, and mu stands beside the groups: the holder of mu enters no group.
type dispatcher struct {
	driver engine.Driver

	mu      sync.Mutex // guards the fields below
	machine *dispatch.Dispatcher
	lanes   map[share.ClientID]*lane
	timer   engine.Timer
	ended   []share.ClientID
}

// lane is the access of a bound slice to the dispatcher.
type lane struct {
	slot *slot
	task *task // nil: none
}

// task is a launch of a slice.
type task struct {
	lane *lane
	job  device.Job
	done func() // takes the job back; may enter the group of the slice
	out  bool   // a part of it runs
	left bool   // the slice has left the dispatcher
	paid bool   // the cost of the modelled hardware was counted
}

func newDispatcher(driver engine.Driver, m *dispatch.Dispatcher) *dispatcher {
	d := &dispatcher{driver: driver, machine: m, lanes: map[share.ClientID]*lane{}}
	d.timer = driver.AfterFunc(time.Hour, d.run)
	d.timer.Stop()
	return d
}

// join makes a slice a client of the dispatcher, for a binding.
func (d *dispatcher) join(s *slot, spec share.ClientSpec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := s.place.Slice.Client
	if d.lanes[id] != nil {
		return fmt.Errorf("slot %d: its slice of the GPU is in use", s.index)
	}
	if err := d.machine.Join(d.driver.Now(), id, spec); err != nil {
		return fmt.Errorf("slot %d: %w", s.index, err)
	}
	d.lanes[id] = &lane{slot: s}
	d.arm()
	return nil
}

// leave ends a slice's part in the dispatcher, and with it the launch that it waits for.
// It may be repeated.
func (d *dispatcher) leave(s *slot) {
	d.mu.Lock()
	id := s.place.Slice.Client
	l := d.lanes[id]
	if l == nil {
		d.mu.Unlock()
		return
	}
	delete(d.lanes, id)
	d.machine.Leave(d.driver.Now(), id)
	t := l.task
	l.task = nil
	if t != nil {
		t.left = true
		if t.out {
			t = nil // ran takes it back
		}
	}
	d.mu.Unlock()
	if t != nil {
		t.done()
	}
	d.run()
}

// launch hands over a computation of a slice, in an entry of its group. It calls done
// once, later, from a goroutine that has entered no group.
func (d *dispatcher) launch(s *slot, job device.Job, done func()) {
	t := &task{job: job, done: done}
	d.mu.Lock()
	t.lane = d.lanes[s.place.Slice.Client]
	ok := false
	if t.lane != nil && t.lane.slot == s {
		if _, ok = d.machine.Launch(d.driver.Now(), s.place.Slice.Client, kernelOf(job, d.machine.Device())); ok {
			t.lane.task = t
		}
	}
	if ok {
		d.next()
		d.arm()
	}
	d.mu.Unlock()
	if !ok { // the slice is being unbound: the device has been reset, or will be
		d.driver.AfterFunc(0, done)
	}
}

// Grid is a job of known size. Policies count its thread blocks.
type Grid interface{ Blocks() int64 }

// Series is a Grid of several kernels, one after another. Widest are the blocks of the largest.
type Series interface{ Widest() int64 }

// blockThreads is the number of threads of a thread block, as usual in programs.
const blockThreads = 256

// kernelOf describes a job to the policies.
func kernelOf(job device.Job, d share.Device) share.Kernel {
	k := share.Kernel{Blocks: 1, Expected: job.Cost()}
	if g, ok := job.(Grid); ok {
		k.Blocks = g.Blocks()
		at := k.Blocks
		if s, ok := job.(Series); ok {
			at = s.Widest()
		}
		perSM := int64(max(d.ThreadsPerSM/blockThreads, 1))
		k.SMs = int32(min((at+perSM-1)/perSM, int64(d.SMs)))
	}
	return k
}

// run starts the part that is due and takes back the launches that have ended. The
// caller has entered no group.
func (d *dispatcher) run() {
	d.mu.Lock()
	d.next()
	var ended []*task
	d.ended = d.machine.Ended(d.driver.Now(), d.ended[:0])
	for _, id := range d.ended {
		if l := d.lanes[id]; l != nil && l.task != nil {
			ended = append(ended, l.task)
			l.task = nil
		}
	}
	d.arm()
	d.mu.Unlock()
	for _, t := range ended {
		d.takeBack(t)
	}
}

// next starts the part that is due, and notes evictions. The caller holds mu.
func (d *dispatcher) next() {
	if turn, ok := d.machine.Next(d.driver.Now()); ok {
		d.start(turn)
	}
	for _, e := range d.machine.Evicted() {
		if l := d.lanes[e.Client]; l != nil {
			l.slot.evict(e.Reason)
		}
	}
}

// takeBack gives a computed job back to the device, whose next launch may come at once,
// and then tells the machine.
func (d *dispatcher) takeBack(t *task) {
	t.done()
	d.mu.Lock()
	if id := t.lane.slot.place.Slice.Client; d.lanes[id] == t.lane {
		d.machine.Completed(d.driver.Now(), id)
	}
	d.mu.Unlock()
	d.run()
}

// start runs one part of the client's launch. The caller holds mu.
func (d *dispatcher) start(turn dispatch.Turn) {
	t := d.lanes[turn.Client].task
	t.out = true
	if r, ok := t.job.(Remote); ok {
		if !r.Begin(func(took time.Duration) { d.ran(t, turn, took, false) }) {
			d.driver.AfterFunc(0, func() { d.ran(t, turn, 0, false) })
		}
		return
	}
	cost := time.Duration(0)
	if !t.paid {
		cost, t.paid = t.job.Cost(), true
	}
	var began time.Duration
	var more bool
	run := func() bool {
		began = d.driver.Now()
		if turn.First {
			if r, ok := t.job.(Restarter); ok {
				r.Restart()
			}
		}
		more = t.job.Run()
		return false
	}
	d.driver.Compute(run, cost, func() { d.ran(t, turn, d.driver.Now()-began, more) })
}

// Remote is a job that another process computes, in one part. It is not run here.
type Remote interface {
	// Begin starts the job, and calls done once, later, from a goroutine that has entered no
	// group, with the time of the hardware that the job took. It returns false, and calls
	// nothing, if the process has gone. It does not wait.
	Begin(done func(took time.Duration)) bool
}

// Restarter is a job that can begin again from its first part.
type Restarter interface{ Restart() }

// ran takes note of the end of a part.
func (d *dispatcher) ran(t *task, turn dispatch.Turn, took time.Duration, more bool) {
	d.mu.Lock()
	d.machine.Ran(d.driver.Now(), turn, took, more)
	t.out = false
	left := t.left
	d.mu.Unlock()
	if left {
		t.done()
	}
	d.run()
}

// arm sets the timer for the machine's next wake-up. The caller holds mu.
func (d *dispatcher) arm() {
	at := d.machine.Wake()
	if at == machine.Never {
		d.timer.Stop()
		return
	}
	d.timer.Reset(max(at-d.driver.Now(), 0))
}

// joinGPU makes the device a client of the dispatcher, if it is a slice of a GPU.
func (s *slot) joinGPU(part *dxpuv1.Part) error {
	if s.dispatcher == nil {
		return nil
	}
	spec := s.place.Slice.Spec
	if s.isPart() {
		var err error
		if spec, err = s.sizePart(part); err != nil {
			return err
		}
	}
	err := s.dispatcher.join(s, spec)
	if err != nil {
		s.endPart()
	}
	return err
}

// leaveGPU ends that. It may be repeated.
func (s *slot) leaveGPU() {
	if s.dispatcher != nil {
		s.dispatcher.leave(s)
	}
}

// evict ends the binding of a slice because the policy says so. The reset of the device
// at the end of the binding makes the slice work again.
func (s *slot) evict(why share.Reason) {
	detail := fmt.Sprintf("the GPU's policy has ended the use of this slice (%v)", why)
	s.evicted.Store(&detail)
	s.wake()
}

// condition returns the state of the device, and of its place on the GPU.
func (s *slot) condition() *condition {
	c := s.abilities.condition()
	if detail := s.evicted.Load(); detail != nil && c.ok {
		c.ok, c.detail = false, *detail
	}
	return c
}

// SliceSlots returns a slot for each slice of a GPU. Clients describes the slices to the
// policy of the dispatcher.
func SliceSlots[D device.Device](slices []D, d *dispatch.Dispatcher, clients []share.ClientSpec) []Slot {
	var out []Slot
	for i, s := range slices {
		out = append(out, Slot{Device: s, Slice: &Slice{Dispatcher: d, Client: share.ClientID(i + 1), Spec: clients[i]}})
	}
	return out
}

// SliceUsage returns the work of the slice in a slot since it was bound; zero for others.
func (b *Box) SliceUsage(slot int) dispatch.Usage {
	if slot < 0 || slot >= len(b.slots) || b.slots[slot].dispatcher == nil {
		return dispatch.Usage{}
	}
	d := b.slots[slot].dispatcher
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Usage(b.slots[slot].place.Slice.Client)
}

// Siblings returns the slots of all slices of the GPU that a slot's device is a slice of,
// or the slot alone.
func (b *Box) Siblings(slot int) []int {
	if slot < 0 || slot >= len(b.slots) || b.slots[slot].dispatcher == nil {
		return []int{slot}
	}
	var out []int
	for i, s := range b.slots {
		if s.dispatcher == b.slots[slot].dispatcher {
			out = append(out, i)
		}
	}
	return out
}

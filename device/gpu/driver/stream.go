package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Offsets in the status page of a stream, on cache lines of their own.
const (
	fenceWord   = 0
	statusBlock = 64
	stampWord   = 128
)

// entriesPerList is the number of segments in the list of a ring entry: one page,
// which is contiguous on every bus.
const entriesPerList = pageSize / reg.SegmentSize

const pageSize = 4096

// Stream is one command queue of the device. Commands run in the order of their
// submission; Sync and Wait wait for them. A stream may be used from several
// goroutines.
type Stream struct {
	dev   *Device
	queue int

	ring, lists, status DMA
	ringBus, statusBus  uint64
	listBus             []uint64 // bus address of each ring entry's list page

	waiter chan struct{} // one token; its holder waits for the interrupt

	mu sync.Mutex // guards the fields below
	// Counts of commands since the stream was opened: those submitted before the
	// queue was last started, all submitted, announced by the doorbell, and known
	// to be retired.
	started, submitted, announced, retired uint64

	fence uint64 // newest fence; never goes back
	// Fences above droppedAfter and up to droppedTo were dropped by Reset.
	droppedAfter, droppedTo uint64
	ops                     []reg.Opcode
	staging                 DMA
	failed                  error
	closed                  bool
}

// Fence is a point in a stream: the number of commands up to and including it.
type Fence uint64

func checkRing(n int) error {
	if n < reg.MinRingEntries || n > reg.MaxRingEntries || n&(n-1) != 0 {
		return fmt.Errorf("ring of %d entries: want a power of two from %d to %d", n, reg.MinRingEntries, reg.MaxRingEntries)
	}
	return nil
}

// NewStream opens a stream on a free queue, with a ring of Options.RingEntries.
func (d *Device) NewStream() (*Stream, error) { return d.NewStreamSize(d.opts.RingEntries) }

// NewStreamSize is NewStream with a ring of the given number of entries, a power of
// two.
func (d *Device) NewStreamSize(entries int) (*Stream, error) {
	if err := checkRing(entries); err != nil {
		return nil, fmt.Errorf("driver: new stream: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("driver: new stream: %w", ErrClosed)
	}
	for q, s := range d.streams {
		if s != nil {
			continue
		}
		s, err := newStream(d, q, entries)
		if err != nil {
			return nil, fmt.Errorf("driver: new stream: %w", err)
		}
		d.streams[q] = s
		return s, nil
	}
	return nil, fmt.Errorf("driver: new stream: all %d queues are in use: %w", len(d.streams), ErrOutOfMemory)
}

func newStream(d *Device, q, n int) (*Stream, error) {
	s := &Stream{dev: d, queue: q, waiter: make(chan struct{}, 1), ops: make([]reg.Opcode, n)}
	var err error
	if s.ring, err = d.bus.AllocDMA(n * reg.CommandSize); err != nil {
		return nil, err
	}
	if s.status, err = d.bus.AllocDMA(pageSize); err != nil {
		return nil, errors.Join(err, s.release())
	}
	if len(s.ring.Segments()) != 1 {
		err := fmt.Errorf("ring of %d entries is not contiguous on this bus: use %d", n, pageSize/reg.CommandSize)
		return nil, errors.Join(err, s.release())
	}
	s.ringBus = s.ring.Segments()[0].Addr
	s.statusBus = s.status.Segments()[0].Addr
	s.start()
	return s, nil
}

// allocListsLocked allocates the segment lists for the first copy that needs one.
func (s *Stream) allocListsLocked() error {
	if s.lists != nil {
		return nil
	}
	lists, err := s.dev.bus.AllocDMA(len(s.ops) * pageSize)
	if err != nil {
		return err
	}
	s.lists = lists
	for _, seg := range lists.Segments() {
		for off := 0; off < seg.Len && len(s.listBus) < len(s.ops); off += pageSize {
			s.listBus = append(s.listBus, seg.Addr+uint64(off))
		}
	}
	return nil
}

// start programs the queue from index 0.
func (s *Stream) start() {
	regs := s.dev.regs
	s.started, s.announced, s.retired, s.failed = s.submitted, s.submitted, s.submitted, nil
	s.status.Store64(statusBlock, 0)
	s.status.Store64(statusBlock+8, 0)
	regs.Write32(queueReg(s.queue, reg.QControl), 0)
	regs.Write64(queueReg(s.queue, reg.QRingBase), s.ringBus)
	regs.Write32(queueReg(s.queue, reg.QRingSize), uint32(len(s.ops)))
	regs.Write64(queueReg(s.queue, reg.QStatusAddr), s.statusBus+statusBlock)
	regs.Write32(queueReg(s.queue, reg.QVector), uint32(s.queue))
	regs.Write32(queueReg(s.queue, reg.QControl), reg.QControlEnable)
}

// Queue returns the number of the queue.
func (s *Stream) Queue() int { return s.queue }

// Reset drops the unfinished commands and restarts the queue, after a QueueError or a
// canceled wait. Waits for their fences end with ErrDropped.
func (s *Stream) Reset() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("driver: reset stream: %w", ErrClosed)
	}
	if err := s.stopLocked(); err != nil {
		return err
	}
	s.droppedAfter, s.droppedTo = s.status.Load64(fenceWord), s.fence
	s.start()
	return nil
}

// stopLocked stops the queue. The read after the write ensures that the device has
// stopped and that its posted writes have arrived.
func (s *Stream) stopLocked() error {
	s.dev.regs.Write32(queueReg(s.queue, reg.QControl), 0)
	if s.dev.regs.Read32(queueReg(s.queue, reg.QState)) == allOnes32 {
		return s.dev.Alive()
	}
	return nil
}

// Close stops the queue and frees its memory.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.stopLocked()
	if errors.Is(err, ErrDeviceLost) {
		err = nil // a lost device does not run
	}
	s.dev.mu.Lock()
	s.dev.streams[s.queue] = nil
	s.dev.mu.Unlock()
	return errors.Join(err, s.release())
}

func (s *Stream) release() error {
	var errs []error
	for _, m := range []DMA{s.ring, s.lists, s.status, s.staging} {
		if m != nil {
			errs = append(errs, m.Free())
		}
	}
	return errors.Join(errs...)
}

// Submit writes commands to the ring and then the doorbell. It waits while the ring is
// full. It overwrites the ID fields with the numbers of the commands.
func (s *Stream) Submit(ctx context.Context, commands ...reg.Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range commands {
		if err := s.putLocked(ctx, c, nil); err != nil {
			return err
		}
	}
	s.ringLocked()
	return nil
}

// Room returns the number of commands that TryPut and TryFence accept: the free entries
// of the ring by the last fence reached. It accesses only host memory.
func (s *Stream) Room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.freeLocked()
}

// TryPut writes a command to the ring, or returns false when there is no room. Ring
// tells the device.
func (s *Stream) TryPut(c reg.Command) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.freeLocked() == 0 {
		return false
	}
	s.writeLocked(c)
	return true
}

// TryFence is TryPut for a fence.
func (s *Stream) TryFence() (f Fence, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.freeLocked() == 0 {
		return 0, false
	}
	return s.writeFenceLocked(), true
}

// Ring writes the doorbell if there are new commands of TryPut or TryFence. The write
// is posted: Ring does not wait for the device.
func (s *Stream) Ring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && s.announced != s.submitted {
		s.ringLocked()
	}
}

// Err returns the *QueueError of a halted queue, ErrDeviceLost, ErrClosed, or
// nil. It accesses only host memory while the queue works.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usableLocked()
}

func (s *Stream) ringLocked() {
	s.announced = s.submitted
	s.dev.regs.Write32(queueReg(s.queue, reg.QDoorbell), uint32(s.submitted-s.started))
}

// freeLocked returns the number of free entries. A fence counts commands, so the newest
// one gives the number of retired commands without an access to the device.
func (s *Stream) freeLocked() int {
	s.retired = max(s.retired, min(uint64(s.Reached()), s.submitted))
	return len(s.ops) - int(s.submitted-s.retired)
}

// putLocked writes one command and its segment list, if it has one, to the next entry.
func (s *Stream) putLocked(ctx context.Context, c reg.Command, list []reg.Segment) error {
	if err := s.roomLocked(ctx); err != nil {
		return err
	}
	if len(list) > 0 {
		if err := s.allocListsLocked(); err != nil {
			return err
		}
		i := s.entryLocked()
		b := s.lists.Bytes()[i*pageSize : i*pageSize]
		for _, seg := range list {
			b = seg.Append(b)
		}
		c = c.WithSegments(uint32(len(list)))
		if c.Flags&reg.CopySrcBus != 0 {
			c.Arg1 = s.listBus[i]
		} else {
			c.Arg0 = s.listBus[i]
		}
	}
	s.writeLocked(c)
	return nil
}

// entryLocked returns the index of the next ring entry.
func (s *Stream) entryLocked() int { return int(s.submitted-s.started) & (len(s.ops) - 1) }

// writeLocked writes a command to the next entry, which is free.
func (s *Stream) writeLocked(c reg.Command) {
	i := s.entryLocked()
	c.ID = uint32(s.submitted - s.started)
	s.ops[i] = c.Op
	c.Append(s.ring.Bytes()[i*reg.CommandSize : i*reg.CommandSize])
	s.submitted++
}

// writeFenceLocked writes a fence to the next entry, which is free.
func (s *Stream) writeFenceLocked() Fence {
	s.fence = s.submitted + 1
	c := reg.Fence(0, s.statusBus+fenceWord, s.fence)
	if s.dev.info.Vectors > 0 {
		c = c.WithInterrupt(uint16(s.queue))
	}
	s.writeLocked(c)
	return Fence(s.fence)
}

// roomLocked waits until an entry is free. It writes the doorbell first, because the
// device may not know all the commands in the ring yet.
func (s *Stream) roomLocked(ctx context.Context) error {
	if err := s.usableLocked(); err != nil {
		return err
	}
	if s.freeLocked() > 0 {
		return nil
	}
	s.ringLocked()
	b := backoff{bus: s.dev.bus}
	for {
		head := s.dev.regs.Read32(queueReg(s.queue, reg.QHead))
		if done := head - uint32(s.retired-s.started); done <= uint32(len(s.ops)) && done > 0 {
			s.retired += uint64(done)
			return nil
		}
		if err := s.checkLocked(); err != nil {
			return err
		}
		if head == allOnes32 {
			if err := s.dev.Alive(); err != nil {
				return err
			}
		}
		if err := b.pause(ctx); err != nil {
			return fmt.Errorf("driver: queue %d: ring is full: %w", s.queue, err)
		}
	}
}

func (s *Stream) usableLocked() error {
	switch {
	case s.closed:
		return fmt.Errorf("driver: stream: %w", ErrClosed)
	case s.dev.lost.Load():
		return ErrDeviceLost
	}
	return s.checkLocked()
}

// checkLocked returns the error of a halted queue.
func (s *Stream) checkLocked() error {
	if s.failed != nil {
		return s.failed
	}
	if reg.QueueState(s.status.Load32(statusBlock)) != reg.QueueHalted {
		return nil
	}
	// Part of the status block may still be missing; the registers are complete.
	regs := s.dev.regs
	code := regs.Read32(queueReg(s.queue, reg.QError))
	id := regs.Read32(queueReg(s.queue, reg.QErrorID))
	if code == allOnes32 {
		return s.dev.markLost()
	}
	s.failed = &QueueError{
		Queue: s.queue,
		Code:  reg.Error(code),
		ID:    id,
		Op:    s.ops[id&uint32(len(s.ops)-1)],
		Addr:  regs.Read64(queueReg(s.queue, reg.QErrorAddr)),
	}
	return s.failed
}

// QueueError describes the command at which a queue halted (datasheet, section 6).
// The commands before it are complete. Stream.Reset makes the queue usable again.
type QueueError struct {
	Queue int
	Code  reg.Error
	Addr  uint64 // bus or VRAM address
	ID    uint32 // number of the command, counted from 0 since the stream was opened or reset
	Op    reg.Opcode
}

// Error says which command failed, why and where.
func (e *QueueError) Error() string {
	return fmt.Sprintf("driver: queue %d halted at command %d (opcode %d): %v (code %d) at %#x",
		e.Queue, e.ID, e.Op, e.Code, uint32(e.Code), e.Addr)
}

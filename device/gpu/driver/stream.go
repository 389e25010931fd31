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

// entriesPerList is how many segments fit the page that each ring entry has
// for its segment list: a page is all that is contiguous on every bus.
const entriesPerList = pageSize / reg.SegmentSize

const pageSize = 4096

// Stream is one command queue of the device. Commands run in the order in
// which they are submitted; Sync or Wait says when they are done. A stream may
// be used from several goroutines.
type Stream struct {
	dev   *Device
	queue int

	ring, lists, status DMA
	ringBus, statusBus  uint64
	listBus             []uint64 // bus address of each ring entry's list page

	waiter chan struct{} // one token: who holds it waits for the interrupt

	mu    sync.Mutex // guards what follows
	tail  uint32     // commands submitted since the queue started
	head  uint32     // commands known to be retired
	fence uint64     // newest fence value; never goes back
	// Fences above droppedAfter and up to droppedTo were dropped by Reset.
	droppedAfter, droppedTo uint64
	ops                     []reg.Opcode
	staging                 DMA
	failed                  error
	closed                  bool
}

// Fence is a point in a stream.
type Fence uint64

// NewStream takes a free queue into use.
func (d *Device) NewStream() (*Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fmt.Errorf("gpudrv: new stream: %w", ErrClosed)
	}
	for q, s := range d.streams {
		if s != nil {
			continue
		}
		s, err := newStream(d, q)
		if err != nil {
			return nil, fmt.Errorf("gpudrv: new stream: %w", err)
		}
		d.streams[q] = s
		return s, nil
	}
	return nil, fmt.Errorf("gpudrv: new stream: all %d queues are in use: %w", len(d.streams), ErrOutOfMemory)
}

func newStream(d *Device, q int) (*Stream, error) {
	n := d.opts.RingEntries
	s := &Stream{dev: d, queue: q, waiter: make(chan struct{}, 1), ops: make([]reg.Opcode, n), listBus: make([]uint64, n)}
	var err error
	if s.ring, err = d.bus.AllocDMA(n * reg.CommandSize); err != nil {
		return nil, err
	}
	if s.lists, err = d.bus.AllocDMA(n * pageSize); err != nil {
		return nil, errors.Join(err, s.release())
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
	i := 0
	for _, seg := range s.lists.Segments() {
		for off := 0; off < seg.Len && i < n; off += pageSize {
			s.listBus[i] = seg.Addr + uint64(off)
			i++
		}
	}
	s.start()
	return s, nil
}

// start programs the queue from index 0.
func (s *Stream) start() {
	regs := s.dev.regs
	s.head, s.tail, s.failed = 0, 0, nil
	s.status.Store64(statusBlock, 0)
	s.status.Store64(statusBlock+8, 0)
	regs.Write32(queueReg(s.queue, reg.QControl), 0)
	regs.Write64(queueReg(s.queue, reg.QRingBase), s.ringBus)
	regs.Write32(queueReg(s.queue, reg.QRingSize), uint32(s.dev.opts.RingEntries))
	regs.Write64(queueReg(s.queue, reg.QStatusAddr), s.statusBus+statusBlock)
	regs.Write32(queueReg(s.queue, reg.QVector), uint32(s.queue))
	regs.Write32(queueReg(s.queue, reg.QControl), reg.QControlEnable)
}

// Queue returns the number of the queue.
func (s *Stream) Queue() int { return s.queue }

// Reset drops what the queue has not finished and starts it again, after a
// QueueError or a wait that was given up. Waits for fences that were not
// reached end with ErrDropped.
func (s *Stream) Reset() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("gpudrv: reset stream: %w", ErrClosed)
	}
	if err := s.stopLocked(); err != nil {
		return err
	}
	s.droppedAfter, s.droppedTo = s.status.Load64(fenceWord), s.fence
	s.start()
	return nil
}

// stopLocked stops the queue. The read behind the write makes sure that the
// device has stopped and that its posted writes have arrived.
func (s *Stream) stopLocked() error {
	s.dev.regs.Write32(queueReg(s.queue, reg.QControl), 0)
	if s.dev.regs.Read32(queueReg(s.queue, reg.QState)) == allOnes32 {
		return s.dev.Alive()
	}
	return nil
}

// Close stops the queue and gives its memory back.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := s.stopLocked()
	if errors.Is(err, ErrDeviceLost) {
		err = nil // what is gone needs no stopping
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

// Submit puts commands into the ring and rings the doorbell once for all of
// them, or more often where the ring is short. It waits while the ring is full.
// The ID fields are overwritten with the number of the command.
func (s *Stream) Submit(ctx context.Context, commands ...reg.Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.submitLocked(ctx, commands...)
}

func (s *Stream) submitLocked(ctx context.Context, commands ...reg.Command) error {
	for _, c := range commands {
		if err := s.putLocked(ctx, c, nil); err != nil {
			return err
		}
	}
	s.ringLocked()
	return nil
}

func (s *Stream) ringLocked() {
	s.dev.regs.Write32(queueReg(s.queue, reg.QDoorbell), s.tail)
}

// putLocked writes one command, with the segment list that belongs to it, to
// the next entry.
func (s *Stream) putLocked(ctx context.Context, c reg.Command, list []reg.Segment) error {
	if err := s.roomLocked(ctx); err != nil {
		return err
	}
	i := s.tail & uint32(len(s.ops)-1)
	if len(list) > 0 {
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
	c.ID = s.tail
	s.ops[i] = c.Op
	c.Append(s.ring.Bytes()[i*reg.CommandSize : i*reg.CommandSize])
	s.tail++
	return nil
}

// roomLocked waits until an entry is free. The doorbell is rung first: the
// device has to work on what fills the ring.
func (s *Stream) roomLocked(ctx context.Context) error {
	if err := s.usableLocked(); err != nil {
		return err
	}
	full := uint32(len(s.ops))
	if s.tail-s.head < full {
		return nil
	}
	s.ringLocked()
	var b backoff
	for {
		head := s.dev.regs.Read32(queueReg(s.queue, reg.QHead))
		if done := head - s.head; done <= full && done > 0 {
			s.head = head
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
			return fmt.Errorf("gpudrv: queue %d: ring is full: %w", s.queue, err)
		}
	}
}

func (s *Stream) usableLocked() error {
	switch {
	case s.closed:
		return fmt.Errorf("gpudrv: stream: %w", ErrClosed)
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
	// The block may still be arriving; the registers are complete.
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

package playback

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Host memory that driver and GPU share, as offsets.
const (
	ringEntries = 4096
	ringBytes   = ringEntries * reg.CommandSize
	fencesAt    = queues * ringBytes // 8 bytes for each queue
	statusAt    = fencesAt + 4096    // a status block for each queue
	dataAt      = statusAt + 4096    // what copies read and write
	memorySize  = dataAt + uploadPiece
)

// flowFence is after how many commands a fence tells how far the GPU is, where
// none does so anyway.
const flowFence = 256

// port is how the player reaches the GPU.
type port interface {
	// write32 and write64 post writes of registers.
	write32(off uint64, v uint32)
	write64(off, v uint64)
	// load64 reads host memory that the GPU writes.
	load64(off int) uint64
}

// memory is the host memory that driver and GPU share.
type memory struct {
	bytes []byte // memorySize
	bus   uint64 // address of the first one for the GPU
}

// ring is a command queue with room without end: what the GPU has no place for
// waits here.
type ring struct {
	port   port
	memory memory
	queue  int
	// Commands are counted since the start: written to the ring, up to the
	// newest fence, known to be retired, told to the GPU.
	tail, fenced, retired, told uint64
	interrupt                   bool // fences interrupt

	backlog []entry
	fences  []fence // written and not seen
}

// entry is a command that waits for a place, with the operation of a fence.
type entry struct {
	command reg.Command
	op      int32
}

// fence says what the host learns when it sees a value.
type fence struct {
	value uint64
	op    int32 // None: of flow control
}

func queueReg(q int, off uint64) uint64 { return reg.Queue + uint64(q)*reg.QueueStride + off }

// start programs the queue.
func (r *ring) start() {
	r.port.write32(queueReg(r.queue, reg.QControl), 0)
	r.port.write64(queueReg(r.queue, reg.QRingBase), r.memory.bus+uint64(r.queue*ringBytes))
	r.port.write32(queueReg(r.queue, reg.QRingSize), ringEntries)
	r.port.write64(queueReg(r.queue, reg.QStatusAddr), r.memory.bus+statusAt+uint64(r.queue)*reg.StatusBlockSize)
	r.port.write32(queueReg(r.queue, reg.QControl), reg.QControlEnable)
}

func (r *ring) put(c reg.Command) { r.backlog = append(r.backlog, entry{c, none}) }

func (r *ring) putFence(op int32) {
	r.backlog = append(r.backlog, entry{reg.Command{Op: reg.OpFence}, op})
}

// delay holds the queue.
func (r *ring) delay(d time.Duration) {
	for ; d > 0; d -= reg.MaxDelay {
		r.put(reg.Delay(0, uint64(min(d, reg.MaxDelay))))
	}
}

// delaySince holds the queue until d after the start of the command put last.
func (r *ring) delaySince(d time.Duration) {
	if d <= 0 {
		return
	}
	r.put(reg.DelaySinceStart(0, uint64(min(d, reg.MaxDelay))))
	r.delay(d - reg.MaxDelay)
}

// flush moves what there is room for to the ring and tells the GPU.
func (r *ring) flush() {
	n := 0
	for ; n < len(r.backlog); n++ {
		e := &r.backlog[n]
		if r.tail-r.retired > ringEntries-2 {
			break
		}
		// A fence must not come between a command and a delay that counts from it.
		since := e.command.Op == reg.OpDelay && e.command.Flags&reg.DelaySince != 0
		if r.tail-r.fenced >= flowFence && !since {
			r.writeFence(none)
		}
		if e.command.Op == reg.OpFence && e.op != none {
			r.writeFence(e.op)
			continue
		}
		r.write(e.command)
	}
	r.backlog = append(r.backlog[:0], r.backlog[n:]...)
	if r.told != r.tail {
		r.told = r.tail
		r.port.write32(queueReg(r.queue, reg.QDoorbell), uint32(r.tail))
	}
}

func (r *ring) write(c reg.Command) {
	at := r.queue*ringBytes + int(r.tail%ringEntries)*reg.CommandSize
	c.ID = uint32(r.tail)
	c.Append(r.memory.bytes[at:at])
	r.tail++
}

func (r *ring) writeFence(op int32) {
	value := r.tail + 1
	c := reg.Fence(0, r.memory.bus+fencesAt+uint64(8*r.queue), value)
	if r.interrupt {
		c = c.WithInterrupt(uint16(r.queue))
	}
	r.write(c)
	r.fenced = r.tail
	r.fences = append(r.fences, fence{value, op})
}

// writeFenceAfterBacklog flushes and ends with a fence of no operation.
func (r *ring) writeFenceAfterBacklog() {
	r.flush()
	r.writeFence(none)
	r.flush()
}

// value is the newest fence that the GPU has written.
func (r *ring) value() uint64 { return r.port.load64(fencesAt + 8*r.queue) }

// poll notes the newest fence and calls seen for the operations that it tells of.
func (r *ring) poll(seen func(op int32)) error {
	r.retired = r.value()
	n := 0
	for ; n < len(r.fences) && r.fences[n].value <= r.retired; n++ {
		if op := r.fences[n].op; op != none {
			seen(op)
		}
	}
	r.fences = append(r.fences[:0], r.fences[n:]...)
	at := statusAt + r.queue*reg.StatusBlockSize
	if word := r.port.load64(at); reg.QueueState(uint32(word)) == reg.QueueHalted {
		return fmt.Errorf("replay: queue %d halted: %v", r.queue, reg.Error(word>>32))
	}
	return nil
}

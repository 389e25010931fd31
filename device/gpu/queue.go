package gpu

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// window is the number of commands of a queue that the device holds: fetched or
// being fetched, and not retired. 64 of them fill a page.
const window = 64

// commandState is the progress of a command.
//
//	fetching --> ready --> issuing --> waiting --> done --> (retired)
//	                |                                ^
//	                +--------------------------------+
type commandState uint8

const (
	commandFetching commandState = iota
	commandReady
	commandIssuing // a COPY whose requests are going out
	commandWaiting // all requests are sent; data or the job is out
	commandDone
)

// command is a ring entry inside the device.
type command struct {
	reg.Command
	state commandState
	pos   uint64 // bytes of a COPY requested or sent so far
	out   int    // reads outstanding
	fail  reg.Error
	at    uint64        // address of the failure
	ready time.Duration // when it was fetched
	list  *segmentList
	addr  uint64 // bus address of the next byte of the present segment
	left  uint64 // bytes left in it
}

// queue is one command queue.
//
//	disabled --enable--> running (idle or busy) --error--> halted
//	    ^                        |                           |
//	    +---- disable, reset ----+---------------------------+
//
// Invariant: head <= issue <= fetched <= tail in modular order; commands
// [head, fetched) stand in the window; those before issue have sent all their requests.
type queue struct {
	index   int
	epoch   uint64 // changes when the queue stops: results of an older epoch are ignored
	base    uint64
	size    uint32
	enabled bool
	halted  bool

	tail, fetched, issue, head uint32

	errCode reg.Error
	errAddr uint64
	errID   uint32
	vector  uint32
	fence   uint64

	statusAddr uint64
	report     bool // the status block has to be written

	// since is when the command at head became the oldest, before is when the
	// one that retired last began. While delayed, the command at head is a DELAY
	// that ends at until.
	since, before, until time.Duration
	delayed              bool

	engine bool
	job    *job // planned, waits for NextJob
	win    *windowMemory
}

// windowMemory is allocated when a queue is enabled.
type windowMemory struct {
	raw   [window * reg.CommandSize]byte
	cmds  [window]command
	lists [listsPerQueue]segmentList
}

func (q *queue) command(i uint32) *command { return &q.win.cmds[i%window] }

func (q *queue) currentState() reg.QueueState {
	switch {
	case q.halted:
		return reg.QueueHalted
	case !q.enabled:
		return reg.QueueDisabled
	case q.head == q.tail:
		return reg.QueueIdle
	}
	return reg.QueueBusy
}

// queueRegisters are the readable registers of a queue.
var queueRegisters = map[uint64]func(q *queue) uint64{
	reg.QRingBase: func(q *queue) uint64 { return q.base },
	reg.QRingSize: func(q *queue) uint64 { return uint64(q.size) },
	reg.QControl: func(q *queue) uint64 {
		if q.enabled || q.halted {
			return reg.QControlEnable
		}
		return 0
	},
	reg.QDoorbell:   func(q *queue) uint64 { return uint64(q.tail) },
	reg.QHead:       func(q *queue) uint64 { return uint64(q.head) },
	reg.QState:      func(q *queue) uint64 { return uint64(q.currentState()) },
	reg.QError:      func(q *queue) uint64 { return uint64(q.errCode) },
	reg.QErrorAddr:  func(q *queue) uint64 { return q.errAddr },
	reg.QErrorID:    func(q *queue) uint64 { return uint64(q.errID) },
	reg.QVector:     func(q *queue) uint64 { return uint64(q.vector) },
	reg.QFence:      func(q *queue) uint64 { return q.fence },
	reg.QStatusAddr: func(q *queue) uint64 { return q.statusAddr },
}

func (g *GPU) writeQueue(q *queue, off uint64, v, mask uint32) {
	stopped := !q.enabled && !q.halted
	switch off {
	case reg.QRingBase, reg.QRingBase + 4:
		if stopped {
			setHalf(&q.base, off, v, mask)
		}
	case reg.QRingSize:
		if stopped {
			set32(&q.size, v, mask)
		}
	case reg.QControl:
		switch on := v&mask&reg.QControlEnable != 0; {
		case on && stopped:
			g.start(q)
		case !on && mask&reg.QControlEnable != 0 && !stopped:
			g.stop(q)
		}
	case reg.QDoorbell:
		if q.enabled {
			set32(&q.tail, v, mask)
			if q.tail-q.head > q.size {
				g.halt(q, reg.ErrRing, 0, 0)
			}
		}
	case reg.QVector:
		set32(&q.vector, v, mask)
	case reg.QStatusAddr, reg.QStatusAddr + 4:
		setHalf(&q.statusAddr, off, v, mask)
		q.statusAddr &^= 7
	}
}

// start begins at index 0.
func (g *GPU) start(q *queue) {
	q.tail, q.fetched, q.issue, q.head = 0, 0, 0, 0
	q.errCode, q.errAddr, q.errID = reg.NoError, 0, 0
	q.report = false
	q.since, q.before = g.now, g.now
	q.enabled = true
	if q.win == nil {
		q.win = new(windowMemory)
	} else {
		q.win.lists = [listsPerQueue]segmentList{}
	}
	if !validRing(q.base, q.size) {
		g.halt(q, reg.ErrRing, q.base, 0)
	}
}

// stop drops the commands of the queue and disables it.
func (g *GPU) stop(q *queue) {
	q.epoch++
	q.enabled, q.halted, q.report, q.delayed = false, false, false, false
	g.releaseEngine(q)
	if q.job != nil {
		q.job.release()
		q.job = nil
	}
	if g.jobOut != nil && g.jobOut.queue == q.index {
		g.jobOut.canceled.Store(true)
	}
	// Outstanding reads still fill their buffers, which stay with them.
	if g.busyReads(q) {
		q.win = nil
	}
}

// busyReads reports whether a read may still write into the window's memory.
func (g *GPU) busyReads(q *queue) bool {
	if q.win == nil || g.req.InFlight() == 0 {
		return false
	}
	for i := range g.reads {
		if g.reads[i].kind != readIdle && g.reads[i].queue == q.index {
			return true
		}
	}
	return false
}

// halt stops a queue with an error.
func (g *GPU) halt(q *queue, e reg.Error, addr uint64, id uint32) {
	g.stop(q)
	q.halted, q.report = true, q.statusAddr != 0
	q.errCode, q.errAddr, q.errID = e, addr, id
	r := &g.regs
	r.errorCode, r.errorQueue, r.errorAddr = e, uint32(q.index), addr
	r.errorCount++
	if !q.report {
		g.announce(q)
	}
}

// announce interrupts for a halt, after its status block.
func (g *GPU) announce(q *queue) {
	switch q.errCode {
	case reg.ErrDMARefused, reg.ErrDMAAborted, reg.ErrDMATimeout, reg.ErrDMAPoison, reg.ErrRange:
		g.noteXID(reg.XIDFault)
	case reg.ErrECC: // Inject has set the XID
	default:
		g.noteXID(reg.XIDEngine)
	}
	g.raise(reg.IntQueueFault<<q.index, q.vector)
}

// stepResult is the outcome of one step of a queue.
type stepResult uint8

const (
	stepIdle    stepResult = iota
	stepMoved              // sent a TLP, or advanced without one
	stepRefused            // emit refused
)

// idle reports whether the queue has no work.
func (q *queue) idle() bool { return !q.report && (!q.enabled || q.head == q.tail) }

// step lets a queue that is not idle send at most one TLP.
func (g *GPU) step(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	if q.report {
		return g.writeStatus(q, emit)
	}
	if r := g.retire(q, emit); r != stepIdle {
		return r
	}
	if q.fetched != q.tail {
		if r := g.fetch(q, emit); r != stepIdle {
			return r
		}
	}
	return g.advance(q, emit)
}

func (g *GPU) writeStatus(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	block := reg.StatusBlock{State: reg.QueueHalted, Error: q.errCode, ID: q.errID, Head: q.head}
	if !g.sendWrite(emit, q.statusAddr, block.Append(g.buf[:0])) {
		return stepRefused
	}
	q.report = false
	g.announce(q)
	return stepMoved
}

// retire takes the oldest command out of the window if it is complete.
func (g *GPU) retire(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	if q.head == q.issue && (q.head == q.fetched || q.command(q.head).fail == reg.NoError) {
		return stepIdle
	}
	c := q.command(q.head)
	switch {
	case c.fail != reg.NoError:
		if c.out > 0 && q.enabled {
			return stepIdle // outstanding data may still land in VRAM
		}
		g.halt(q, c.fail, c.at, c.ID)
		return stepMoved
	case c.Op == reg.OpFence:
		if !g.sendFence(q, c, emit) {
			return stepRefused
		}
	case c.Op == reg.OpTimestamp:
		if !g.sendWrite(emit, c.Arg0, binary.LittleEndian.AppendUint64(g.buf[:0], uint64(g.deviceTime()))) {
			return stepRefused
		}
	case c.state != commandDone:
		return stepIdle
	}
	q.passed(c, g.now)
	q.head++
	g.regs.count(reg.CountCommands, 1)
	return stepMoved
}

func (g *GPU) sendFence(q *queue, c *command, emit func(p *tlp.Packet) bool) bool {
	if c.Flags&reg.FenceWrite != 0 {
		if !g.sendWrite(emit, c.Arg0, binary.LittleEndian.AppendUint64(g.buf[:0], c.Arg1)) {
			return false
		}
	}
	if c.Flags&reg.FenceSemaphore != 0 {
		g.regs.semaphores[c.Dim0] = c.Arg1
	}
	if c.Flags&reg.FenceInterrupt != 0 {
		g.regs.intStatus |= reg.IntQueue << q.index
		g.fire(uint32(c.Sub))
	}
	q.fence = c.Arg1
	g.regs.count(reg.CountFences, 1)
	return true
}

// fetch requests the next ring entries.
func (g *GPU) fetch(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	slot := q.fetched % window
	entry := q.fetched & (q.size - 1)
	waiting := q.tail - q.fetched
	room := window - (q.fetched - q.head)
	if room == 0 || room < min(waiting, window/4) && q.issue != q.fetched {
		return stepIdle // a read per retired command would waste tags
	}
	n := min(waiting, room, window-slot, q.size-entry)
	addr := q.base + uint64(entry)*reg.CommandSize
	bytes := g.readChunk(addr, uint64(n)*reg.CommandSize) / reg.CommandSize * reg.CommandSize
	n = uint32(bytes / reg.CommandSize)
	dst := q.win.raw[slot*reg.CommandSize:][:bytes]
	r := g.sendRead(emit, addr, bytes, dst, read{kind: readRing, queue: q.index, epoch: q.epoch, first: q.fetched, n: n})
	if r == readNoTag {
		return stepIdle
	}
	for range n {
		*q.command(q.fetched) = command{state: commandFetching}
		q.fetched++
	}
	return r.step()
}

// fetchedRing takes ring entries that have arrived.
func (g *GPU) fetchedRing(q *queue, r *read) {
	for i := r.first; i != r.first+r.n; i++ {
		c := q.command(i)
		// The window holds whole entries: ParseCommand cannot fail.
		c.Command, _, _ = reg.ParseCommand(q.win.raw[i%window*reg.CommandSize:])
		c.state, c.ready = commandReady, g.now
		c.fail, c.at = g.checkCommand(&c.Command)
	}
}

// checkCommand checks a command except for its plan: kernels and copies inside VRAM
// are planned when they start.
func (g *GPU) checkCommand(c *reg.Command) (reg.Error, uint64) {
	switch c.Op {
	case reg.OpNop:
		return flagsOnly(c, 0)
	case reg.OpCopy:
		return g.checkCopy(c)
	case reg.OpFill, reg.OpKernel:
		return reg.NoError, 0
	case reg.OpFence:
		switch {
		case c.Flags&reg.FenceWrite != 0 && c.Arg0%reg.FenceAlign != 0:
			return reg.ErrParameter, c.Arg0
		case c.Flags&reg.FenceInterrupt != 0 && int(c.Sub) >= g.spec.Vectors,
			c.Flags&reg.FenceSemaphore != 0 && c.Dim0 >= reg.SemaphoreCount:
			return reg.ErrVector, 0
		}
		return flagsOnly(c, reg.FenceWrite|reg.FenceInterrupt|reg.FenceSemaphore)
	case reg.OpWait:
		if c.Dim0 >= reg.SemaphoreCount {
			return reg.ErrVector, 0
		}
		return flagsOnly(c, 0)
	case reg.OpDelay:
		if c.Arg1 > reg.MaxDelay {
			return reg.ErrParameter, c.Arg1
		}
		return flagsOnly(c, reg.DelaySince)
	case reg.OpTimestamp:
		if c.Arg0%reg.FenceAlign != 0 {
			return reg.ErrParameter, c.Arg0
		}
		return flagsOnly(c, 0)
	}
	return reg.ErrOpcode, 0
}

func flagsOnly(c *reg.Command, allowed uint8) (reg.Error, uint64) {
	if c.Flags&^allowed != 0 {
		return reg.ErrParameter, 0
	}
	return reg.NoError, 0
}

// advance works on the first command that has requests left to issue.
func (g *GPU) advance(q *queue, emit func(p *tlp.Packet) bool) stepResult {
	if r := g.prefetchSegments(q, emit); r != stepIdle {
		return r
	}
	if q.issue == q.fetched {
		return stepIdle
	}
	c := q.command(q.issue)
	if c.state == commandFetching || c.fail != reg.NoError {
		return stepIdle
	}
	switch c.Op {
	case reg.OpNop:
		c.state = commandDone
		q.issue++
		return stepMoved
	case reg.OpFence, reg.OpTimestamp:
		q.issue++ // takes effect when it retires
		return stepMoved
	case reg.OpCopy:
		if c.Flags&(reg.CopySrcBus|reg.CopyDstBus) != 0 {
			return g.copyBus(q, c, emit)
		}
	}
	switch {
	case q.issue != q.head:
		return stepIdle
	case c.Op == reg.OpWait && g.regs.semaphores[c.Dim0] < c.Arg1:
		return stepIdle
	case c.Op == reg.OpWait:
		c.state = commandDone
		q.issue++
	case c.Op == reg.OpDelay:
		g.startDelay(q, c)
	default:
		g.startJob(q, c)
	}
	return stepMoved
}

func (g *GPU) startJob(q *queue, c *command) {
	j, e, addr := g.plan(c.Command)
	if e != reg.NoError {
		c.fail, c.at = e, addr
		return
	}
	j.queue, j.epoch = q.index, q.epoch
	q.job = j
	c.state = commandWaiting
	q.issue++
}

// deadline returns when a read that leaves now times out.
func (g *GPU) deadline() time.Duration {
	timeout, on := g.cfg.CompletionTimeout(g.spec.CompletionTimeout)
	if !on {
		return machine.Never
	}
	return machine.After(g.now, timeout)
}

// Package gpu is a software GPU: a PCI Express endpoint with registers, a VRAM
// aperture, copy engines, command queues and compute kernels, as a pure
// machine. README.md is its datasheet, package reg its numbers.
package gpu

import (
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// GPU implements device.Device. The function learns its bus address from
// the configuration writes that reach it.
type GPU struct {
	spec   Spec
	cfg    *cfgspace.Space
	limits *device.Limits // nil: those of Device Control
	vram   vram
	id     pcie.BDF
	now    time.Duration

	regs     registers
	msix     cfgspace.MSIXTable // BAR 4
	answers  transaction.Answers
	write    transaction.WriteFunc // g.writeBAR, bound once
	messages messages

	req    *transaction.Requester
	slack  func(transaction.Overdue) time.Duration
	reads  []read     // by tag
	staged tlp.Packet // a read that has its tag and that emit refused
	held   bool       // staged is to be sent

	queues  []queue
	turn    int // queue that is served next
	engines int // free copy engines
	jobTurn int
	jobOut  *job
	channel channel

	xids map[uint32]uint64 // count of each event since New
	dead bool              // Inject(Kill)
	hung bool              // Inject(Hang)

	serial   uint64 // that the driver sees: of the GPU from which the state came, see Restore
	serialAt int    // offset of its capability
	frozen   bool   // Freeze
	ended    *job   // it ended while the GPU was frozen

	out tlp.Packet
	buf [pcie.MaxPayload + 2*pcie.DW]byte
}

// New makes a GPU; the zero Spec is a GPU too. It is in the state after a
// conventional reset.
func New(spec Spec) (*GPU, error) {
	spec = spec.withDefaults()
	if err := spec.check(); err != nil {
		return nil, err
	}
	cfg, err := newConfig(spec, nil)
	if err != nil {
		return nil, err
	}
	g := &GPU{
		spec: spec, cfg: cfg, vram: newVRAM(spec.VRAM),
		reads: make([]read, spec.Tags), queues: make([]queue, spec.Queues), engines: spec.CopyEngines, serial: spec.Serial,
		serialAt: cfgspace.FindExtended(cfg.Bytes(), cfgspace.ExtSerial),
		msix:     cfgspace.NewMSIXTable(reg.MaxVectors, reg.MSIXPBA),
	}
	for i := range g.queues {
		g.queues[i].index = i
	}
	g.answers.Init(func(addr uint64, dst []byte, _ uint32) pcie.CplStatus { return g.readBAR(addr, dst) })
	g.write = g.writeBAR
	g.retag()
	g.resetEngines()
	return g, nil
}

// Spec returns the specification with its defaults filled in.
func (g *GPU) Spec() Spec { return g.spec }

// Config returns the configuration space, for a proxy that caches it.
func (g *GPU) Config() *cfgspace.Space { return g.cfg }

// Receive implements device.Device. A GPU takes every TLP.
func (g *GPU) Receive(now time.Duration, p *tlp.Packet) bool {
	g.now = now
	if g.dead {
		return true
	}
	if !p.CheckECRC() {
		g.logError(p, cfgspace.AERECRC, false)
		return true
	}
	switch p.Type {
	case tlp.Cpl, tlp.CplD, tlp.CplLk, tlp.CplDLk:
		g.complete(p)
	case tlp.MWr:
		g.memoryWrite(p)
	case tlp.MRd:
		g.memoryRead(p)
	case tlp.CfgRd0, tlp.CfgWr0:
		g.configRequest(p)
	case tlp.Msg, tlp.MsgD, tlp.Invalid:
		// Messages from the root complex concern power and slots; a function
		// without those features drops them (section 2.2.8).
	case tlp.MRdLk, tlp.IORd, tlp.IOWr, tlp.CfgRd1, tlp.CfgWr1, tlp.FetchAdd, tlp.Swap, tlp.CAS:
		g.refuse(p)
	}
	return true
}

// Transmit implements device.Device: messages and interrupts first, then
// answers, then the queues in turn, one TLP each.
func (g *GPU) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	g.now = now
	if g.dead {
		return
	}
	g.req.Expire(now, g.slack, g.expired)
	g.endDelays(now)
	g.checkChannel()
	// A completion must not pass an earlier posted write (section 2.4.1): the
	// value of a register follows the interrupt that announced it.
	if !g.flushMessages(emit) || !g.flushInterrupts(emit) || !g.answers.Emit(g.completer(), emit) {
		return
	}
	for {
		if !g.flushMessages(emit) || !g.flushInterrupts(emit) || !g.flushStaged(emit) {
			return
		}
		if g.hung || g.frozen || !g.mayMaster() {
			return
		}
		r := g.stepChannel(emit)
		if r == stepRefused {
			return
		}
		moved := r == stepMoved
		for range g.queues {
			if q := &g.queues[g.turn]; !q.idle() { // most are
				switch g.step(q, emit) {
				case stepRefused:
					return
				case stepMoved:
					moved = true
				case stepIdle:
				}
			}
			if g.turn++; g.turn == len(g.queues) {
				g.turn = 0
			}
		}
		if !moved {
			// Retired fences may have left interrupts.
			if g.flushMessages(emit) {
				g.flushInterrupts(emit)
			}
			return
		}
	}
}

// mayMaster reports whether the function may send memory requests.
func (g *GPU) mayMaster() bool { return g.cfg.BusMaster() && g.cfg.PowerState() == 0 }

func (g *GPU) flushStaged(emit func(p *tlp.Packet) bool) bool {
	if g.held && g.mayMaster() {
		if !emit(&g.staged) {
			return false
		}
		g.held = false
	}
	return true
}

// Wake implements device.Device: only completion timeouts, the quarantine of
// their tags, the end of a DELAY and the time limit of the compute channel happen
// without input.
func (g *GPU) Wake() time.Duration {
	if g.dead {
		return machine.Never
	}
	return min(g.req.Wake(), g.nextDelay(), g.channel.deadline())
}

// NextJob implements device.Device. One job is out at a time, also across
// resets, so a hostile driver cannot pile up work.
func (g *GPU) NextJob() (device.Job, bool) {
	if g.jobOut != nil || g.dead || g.hung || g.frozen {
		return nil, false
	}
	for range g.queues {
		q := &g.queues[g.jobTurn]
		g.jobTurn = (g.jobTurn + 1) % len(g.queues)
		if q.job != nil {
			g.jobOut, q.job = q.job, nil
			return g.jobOut, true
		}
	}
	return nil, false
}

// FinishJob implements device.Device.
func (g *GPU) FinishJob(now time.Duration, j device.Job) {
	g.now = now
	done, ok := j.(*job)
	if !ok || done != g.jobOut {
		return
	}
	if g.frozen {
		g.ended = done // its result would change the memory
		return
	}
	g.jobOut = nil
	done.release()
	q := &g.queues[done.queue]
	if done.epoch != q.epoch {
		return
	}
	g.vram.install(&done.out)
	if done.cmd.Op == reg.OpKernel {
		g.regs.count(reg.CountKernels, 1)
		g.regs.count(reg.CountKernelNanos, uint64(done.cost))
	}
	q.command(q.head).state = commandDone
}

// Reset implements device.Device. VRAM stays; Scrub clears it.
func (g *GPU) Reset(now time.Duration, kind device.ResetKind) {
	g.now = now
	g.answers.Drop()
	flr := kind == device.FunctionLevelReset
	if !flr {
		g.id = 0
		g.messages.asserted = false // the link was down: the other side forgot
		g.Thaw(now)
		g.serial = g.spec.Serial
		defer g.freeWindows()
	}
	g.messages.errors = 0
	g.cfg.Reset(flr)
	g.showSerial()
	g.msix.Reset()
	g.resetEngines()
	g.retag()
	g.req.SetID(g.id)
}

// resetEngines brings queues, registers and DMA to their reset state. The windows of the
// queues stay: a driver may reset the engines and enable queues as often as it writes a
// register.
func (g *GPU) resetEngines() {
	if g.req.InFlight() > 0 {
		g.req.CancelAll(g.now, func(transaction.Result) {})
		clear(g.reads)
	}
	g.held = false
	for i := range g.queues {
		g.stop(&g.queues[i])
		q := &g.queues[i]
		*q = queue{index: i, epoch: q.epoch, win: q.win}
	}
	g.channel.reset()
	g.regs.reset(g.now)
	g.hung = false
}

// freeWindows frees the memory of queues that are disabled, with what the last driver left there.
func (g *GPU) freeWindows() {
	for i := range g.queues {
		g.queues[i].win = nil
	}
}

// SetMemory changes the size of the memory, in bytes, for the owner of a GPU that is part
// of another one: at any time to more, and to less only after Scrub.
func (g *GPU) SetMemory(n int64) error {
	spec := g.spec
	spec.VRAM = n
	if err := spec.check(); err != nil {
		return err
	}
	if n < g.vram.size {
		g.vram = newVRAM(n)
	} else {
		g.vram.grow(n)
	}
	g.spec = spec
	return nil
}

// Scrub implements device.Scrubber: it erases VRAM. The owner resets the GPU first,
// because running commands would still write their results.
func (g *GPU) Scrub() { g.vram.scrub() }

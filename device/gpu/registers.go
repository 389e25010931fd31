package gpu

import (
	"encoding/binary"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// registers is the state of BAR 0 outside the queues.
type registers struct {
	start        time.Duration // device time zero
	errorCode    reg.Error
	errorQueue   uint32
	errorAddr    uint64
	errorCount   uint32
	xid          uint32
	intStatus    uint32
	intMask      uint32
	intVector    uint32
	apertureBase uint64
	latch        uint32 // upper half of Timestamp
	scratch      [reg.ScratchCount]uint32
	eccCorrected uint32
	eccFatal     uint32
	semaphores   [reg.SemaphoreCount]uint64
	counters     [(reg.CountersEnd - reg.CountReadTLPs) / 8]uint64
}

func (r *registers) reset(now time.Duration) {
	// ECC counts are the history of the memory and outlive a reset.
	*r = registers{start: now, intMask: 0xffffffff, eccCorrected: r.eccCorrected, eccFatal: r.eccFatal}
}

// count adds to the counter at a register offset.
func (r *registers) count(offset int, n uint64) { r.counters[(offset-reg.CountReadTLPs)/8] += n }

// memoryRead refuses a memory read or queues its answer.
func (g *GPU) memoryRead(p *tlp.Packet) {
	addr, n := p.ByteRange()
	if _, _, ok := g.decode(addr, n); !ok {
		g.refuse(p)
		return
	}
	g.queued(p, g.answers.Memory(p, 0))
}

func (g *GPU) memoryWrite(p *tlp.Packet) {
	if p.EP {
		g.logError(p, cfgspace.AERPoisoned, false)
		return
	}
	addr, n := p.ByteRange()
	if _, _, ok := g.decode(addr, n); !ok {
		g.refuse(p)
		return
	}
	if transaction.WriteBytes(p, g.write) != pcie.SuccessfulCompletion {
		g.logError(p, cfgspace.AERMalformed, false)
	}
}

// decode finds the BAR for n bytes at a bus address; no BAR answers outside D0.
func (g *GPU) decode(addr uint64, n int) (bar int, off uint64, ok bool) {
	if g.cfg.PowerState() != 0 || n < 0 {
		return 0, 0, false
	}
	return g.cfg.Decode(addr, uint64(max(n, 1)))
}

// readBAR is the transaction.ReadFunc of the function.
func (g *GPU) readBAR(addr uint64, dst []byte) pcie.CplStatus {
	bar, off, ok := g.decode(addr, len(dst))
	if !ok {
		return pcie.UnsupportedRequest
	}
	switch bar {
	case reg.BARVRAM:
		g.readAperture(dst, off)
	case reg.BARMSIX:
		g.msix.Read(int(off), dst)
	default:
		eachWord(dst, off, func(word uint64, part []byte, shift int) {
			copyWord(part, g.readRegister(word), shift)
		})
	}
	return pcie.SuccessfulCompletion
}

// writeBAR is the transaction.WriteFunc of the function.
func (g *GPU) writeBAR(addr uint64, src []byte) pcie.CplStatus {
	bar, off, ok := g.decode(addr, len(src))
	if !ok {
		return pcie.UnsupportedRequest
	}
	switch bar {
	case reg.BARVRAM:
		if at := g.regs.apertureBase + off; at < uint64(g.vram.size) {
			g.vram.write(int64(at), src[:min(uint64(len(src)), uint64(g.vram.size)-at)])
		}
		return pcie.SuccessfulCompletion
	case reg.BARMSIX:
		g.msix.Write(int(off), src)
		return pcie.SuccessfulCompletion
	}
	eachWord(src, off, func(word uint64, part []byte, shift int) {
		var v, mask uint32
		for i, b := range part {
			v |= uint32(b) << (shift + 8*i)
			mask |= 0xff << (shift + 8*i)
		}
		g.writeRegister(word, v, mask)
	})
	return pcie.SuccessfulCompletion
}

func (g *GPU) readAperture(dst []byte, off uint64) {
	n := uint64(0)
	if at := g.regs.apertureBase + off; at < uint64(g.vram.size) {
		n = min(uint64(len(dst)), uint64(g.vram.size)-at)
		g.vram.read(dst[:n], int64(at))
	}
	clear(dst[n:])
}

// eachWord cuts a byte range into the parts of double words that it touches;
// shift is the bit where a part begins in its double word.
func eachWord(b []byte, off uint64, fn func(word uint64, part []byte, shift int)) {
	for len(b) > 0 {
		from := int(off % pcie.DW)
		n := min(len(b), pcie.DW-from)
		fn(off-uint64(from), b[:n], 8*from)
		b, off = b[n:], off+uint64(n)
	}
}

func copyWord(part []byte, v uint32, shift int) {
	var w [pcie.DW]byte
	binary.LittleEndian.PutUint32(w[:], v>>shift)
	copy(part, w[:])
}

// half returns the double word of a 64-bit register that off selects.
func half(v uint64, off uint64) uint32 {
	if off%8 != 0 {
		return uint32(v >> 32)
	}
	return uint32(v)
}

// setHalf stores the masked bits into the half that off selects.
func setHalf(v *uint64, off uint64, bits, mask uint32) {
	shift := off % 8 * 8
	*v = *v&^(uint64(mask)<<shift) | uint64(bits&mask)<<shift
}

func set32(v *uint32, bits, mask uint32) { *v = *v&^mask | bits&mask }

// readRegister reads the double word at an offset of BAR 0.
func (g *GPU) readRegister(off uint64) uint32 {
	r := &g.regs
	switch {
	case off >= reg.Queue && off < reg.Queue+uint64(len(g.queues))*reg.QueueStride:
		return lookUp(queueRegisters, &g.queues[(off-reg.Queue)/reg.QueueStride], off%reg.QueueStride)
	case off >= reg.Semaphore && off < reg.Semaphore+8*reg.SemaphoreCount:
		return half(r.semaphores[(off-reg.Semaphore)/8], off)
	case off >= reg.CountReadTLPs && off < reg.CountersEnd:
		return half(r.counters[(off-reg.CountReadTLPs)/8], off)
	case off >= reg.Model && off < reg.Model+reg.ModelSize:
		var model [reg.ModelSize]byte
		copy(model[:], g.spec.Model)
		return binary.LittleEndian.Uint32(model[off-reg.Model:])
	case off >= reg.Scratch && off < reg.Scratch+4*reg.ScratchCount:
		return r.scratch[(off-reg.Scratch)/4]
	case off >= reg.ComputeKindReg && off < reg.ComputeKindReg+reg.QueueStride && g.channel.engine != nil:
		return lookUp(channelRegisters, &g.channel, off)
	}
	return lookUp(deviceRegisters, g, off)
}

// deviceRegisters are the readable registers of BAR 0 outside arrays and queues. The
// upper half of a 64-bit register is at the next double word.
var deviceRegisters = map[uint64]func(g *GPU) uint64{
	reg.ID:           func(*GPU) uint64 { return reg.Magic },
	reg.Version:      func(*GPU) uint64 { return reg.InterfaceVersion },
	reg.Caps:         (*GPU).caps,
	reg.Layout:       (*GPU).layout,
	reg.Status:       func(g *GPU) uint64 { return uint64(g.status()) },
	reg.ErrorCode:    func(g *GPU) uint64 { return uint64(g.regs.errorCode) },
	reg.ErrorInfo:    func(g *GPU) uint64 { return uint64(g.regs.errorQueue) },
	reg.ErrorAddr:    func(g *GPU) uint64 { return g.regs.errorAddr },
	reg.ErrorCount:   func(g *GPU) uint64 { return uint64(g.regs.errorCount) },
	reg.XID:          func(g *GPU) uint64 { return uint64(g.regs.xid) },
	reg.IntStatus:    func(g *GPU) uint64 { return uint64(g.regs.intStatus) },
	reg.IntMask:      func(g *GPU) uint64 { return uint64(g.regs.intMask) },
	reg.IntVector:    func(g *GPU) uint64 { return uint64(g.regs.intVector) },
	reg.VRAMSize:     func(g *GPU) uint64 { return uint64(g.spec.VRAM) },
	reg.ApertureSize: func(g *GPU) uint64 { return uint64(g.spec.Aperture) },
	reg.ApertureBase: func(g *GPU) uint64 { return g.regs.apertureBase },
	reg.Serial:       func(g *GPU) uint64 { return g.serial },
	reg.Timestamp: func(g *GPU) uint64 {
		t := uint64(g.deviceTime())
		g.regs.latch = uint32(t >> 32)
		return t
	},
	reg.Timestamp + 4: func(g *GPU) uint64 { return uint64(g.regs.latch) },
	reg.Temperature:   func(g *GPU) uint64 { return uint64(g.Health().MilliCelsius) },
	reg.Power:         func(g *GPU) uint64 { return uint64(g.Health().MilliWatts) },
	reg.ECCCorrected:  func(g *GPU) uint64 { return uint64(g.regs.eccCorrected) },
	reg.ECCFatal:      func(g *GPU) uint64 { return uint64(g.regs.eccFatal) },
	reg.ClockMHz:      func(*GPU) uint64 { return 1530 }, // boost clock of the V100
	reg.Tags:          func(g *GPU) uint64 { return uint64(g.req.Tags()) },
	reg.ReadSize:      func(g *GPU) uint64 { return uint64(g.readSize()) },
	reg.WriteSize:     func(g *GPU) uint64 { return uint64(g.maxPayload()) },
	reg.TagsInUse:     func(g *GPU) uint64 { return uint64(g.req.InFlight()) },
}

// lookUp reads the double word at an offset from a table of registers. Other
// offsets read as zero.
func lookUp[T any](table map[uint64]func(T) uint64, of T, off uint64) uint32 {
	if read := table[off]; read != nil {
		return uint32(read(of))
	}
	if read := table[off&^7]; read != nil && off%8 != 0 {
		return uint32(read(of) >> 32)
	}
	return 0
}

func (g *GPU) caps() uint64 {
	caps := uint64(reg.CapFP16 | reg.CapFP64 | reg.CapPeer)
	if g.spec.INTx {
		caps |= reg.CapINTx
	}
	if g.channel.engine != nil {
		caps |= reg.CapCompute
	}
	return caps
}

func (g *GPU) layout() uint64 {
	return uint64(len(g.queues)) | uint64(g.spec.CopyEngines)<<8 | uint64(g.spec.Vectors)<<16 | reg.SemaphoreCount<<24
}

func (g *GPU) deviceTime() time.Duration { return g.now - g.regs.start }

func (g *GPU) status() uint32 {
	s := uint32(reg.StatusReady)
	for i := range g.queues {
		switch g.queues[i].currentState() {
		case reg.QueueBusy:
			s |= reg.StatusBusy
		case reg.QueueHalted:
			s |= reg.StatusFault
		case reg.QueueDisabled, reg.QueueIdle:
		}
	}
	if g.regs.xid != reg.XIDNone {
		s |= reg.StatusFault
	}
	return s
}

// writeRegister stores the bits in mask of the double word at an offset of BAR 0.
func (g *GPU) writeRegister(off uint64, v, mask uint32) {
	r := &g.regs
	switch {
	case off >= reg.Queue && off < reg.Queue+uint64(len(g.queues))*reg.QueueStride:
		g.writeQueue(&g.queues[(off-reg.Queue)/reg.QueueStride], off%reg.QueueStride, v, mask)
		return
	case off >= reg.Semaphore && off < reg.Semaphore+8*reg.SemaphoreCount:
		setHalf(&r.semaphores[(off-reg.Semaphore)/8], off, v, mask)
		return
	case off >= reg.Scratch && off < reg.Scratch+4*reg.ScratchCount:
		set32(&r.scratch[(off-reg.Scratch)/4], v, mask)
		return
	case off >= reg.ComputeKindReg && off < reg.ComputeKindReg+reg.QueueStride && g.channel.engine != nil:
		g.writeChannel(off, v, mask)
		return
	}
	switch off {
	case reg.Control:
		if v&mask&reg.ControlReset != 0 {
			g.resetEngines()
		}
	case reg.ErrorCode:
		r.errorCode, r.errorQueue, r.errorAddr = 0, 0, 0
	case reg.IntStatus:
		r.intStatus &^= v & mask
	case reg.IntMask:
		set32(&r.intMask, v, mask)
	case reg.IntVector:
		set32(&r.intVector, v, mask)
	case reg.ApertureBase, reg.ApertureBase + 4:
		setHalf(&r.apertureBase, off, v, mask)
		r.apertureBase &= maxVRAM - reg.ApertureAlign // bits 39:16
	}
}

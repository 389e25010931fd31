package gpu

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/tlp"
)

// messages are the output besides memory requests and completions.
type messages struct {
	errors   uint8 // set of errorBit
	asserted bool  // Assert_INTA was sent last
	header   [16]byte
}

var errorCodes = [...]uint8{tlp.CodeErrCor, tlp.CodeErrNonFatal, tlp.CodeErrFatal}

func errorBit(code uint8) uint8 {
	for i, c := range errorCodes {
		if c == code {
			return 1 << i
		}
	}
	return 0
}

// raise sets bits of IntStatus that have a vector of their own, subject to IntMask.
func (g *GPU) raise(bit uint32, vector uint32) {
	g.regs.intStatus |= bit
	if g.regs.intMask&bit == 0 {
		g.fire(vector)
	}
}

// fire makes a vector pending; flushInterrupts sends it unless it is masked.
func (g *GPU) fire(vector uint32) {
	if on, _ := g.cfg.MSIXControl(); on && vector < uint32(g.spec.Vectors) {
		g.msix.Fire(vector)
	}
}

// flushInterrupts sends the pending vectors that are not masked.
func (g *GPU) flushInterrupts(emit func(p *tlp.Packet) bool) bool {
	on, masked := g.cfg.MSIXControl()
	if g.msix.Pending == 0 || !on || masked || !g.mayMaster() {
		return true
	}
	return g.msix.Flush(func(addr uint64, data uint32) bool {
		if !g.sendWrite(emit, addr, binary.LittleEndian.AppendUint32(g.buf[:0], data)) {
			return false
		}
		g.regs.count(reg.CountInterrupts, 1)
		return true
	})
}

// flushMessages sends error messages and the edges of INTx.
func (g *GPU) flushMessages(emit func(p *tlp.Packet) bool) bool {
	for i, code := range errorCodes {
		if g.messages.errors>>i&1 == 0 {
			continue
		}
		if !g.sendMessage(emit, code, tlp.RouteToRootComplex) {
			return false
		}
		g.messages.errors &^= 1 << i
	}
	if !g.spec.INTx {
		return true
	}
	pending := g.regs.intStatus&^g.regs.intMask != 0
	if pending {
		g.cfg.PokeBits(cfgspace.OffStatus, cfgspace.StaInterrupt, 0)
	} else {
		g.cfg.PokeBits(cfgspace.OffStatus, 0, cfgspace.StaInterrupt)
	}
	on, _ := g.cfg.MSIXControl()
	assert := pending && !on && g.cfg.Command()&cfgspace.CmdINTxDisable == 0
	if assert == g.messages.asserted {
		return true
	}
	code := uint8(tlp.CodeDeassertINTA)
	if assert {
		code = tlp.CodeAssertINTA
	}
	if !g.sendMessage(emit, code, tlp.RouteLocal) {
		return false
	}
	g.messages.asserted = assert
	return true
}

func (g *GPU) sendMessage(emit func(p *tlp.Packet) bool, code uint8, r tlp.Routing) bool {
	g.out = tlp.Packet{Type: tlp.Msg, DW4: true, Requester: g.id, Code: code, Routing: r}
	return emit(&g.out)
}

// sendWrite emits one posted write of whole bytes at a double word boundary;
// the range crosses no 4 KiB boundary.
func (g *GPU) sendWrite(emit func(p *tlp.Packet) bool, addr uint64, data []byte) bool {
	g.out = tlp.Packet{Type: tlp.MWr, Requester: g.id, Data: data}
	g.out.SetMemory(addr, len(data))
	return emit(&g.out)
}

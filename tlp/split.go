package tlp

import (
	"iter"
	"math/bits"

	"github.com/dxpu-project/dxpu/pcie"
)

// Chunk is one piece of a byte range: the address of its first byte and its
// length in bytes.
type Chunk struct {
	Addr uint64
	Len  int
}

// NextChunk returns the first piece of the n bytes at addr that one memory
// request may cover: no 4 KiB boundary inside (section 2.2.7) and at most size
// bytes, counted from the double word that holds the first byte because Length
// is. size is Max_Read_Request_Size or Max_Payload_Size; less than 4 counts as 4. It
// returns 0 for n <= 0.
func NextChunk(addr uint64, n, size int) int {
	if n <= 0 {
		return 0
	}
	inPage := pcie.PageSize - int(addr%pcie.PageSize)
	return min(n, inPage, max(size, pcie.DW)-int(addr%pcie.DW))
}

// SplitRead yields the memory read requests for n bytes at addr, in address
// order, none larger than mrrs bytes or across a 4 KiB boundary.
func SplitRead(addr uint64, n, mrrs int) iter.Seq[Chunk] { return split(addr, n, mrrs) }

// SplitWrite yields the memory write requests for n bytes at addr, in address
// order, none larger than mps bytes or across a 4 KiB boundary.
func SplitWrite(addr uint64, n, mps int) iter.Seq[Chunk] { return split(addr, n, mps) }

func split(addr uint64, n, size int) iter.Seq[Chunk] {
	return func(yield func(Chunk) bool) {
		for n > 0 {
			c := Chunk{Addr: addr, Len: NextChunk(addr, n, size)}
			if !yield(c) {
				return
			}
			addr += uint64(c.Len)
			n -= c.Len
		}
	}
}

// SetMemory sets address, header size, length and byte enables of a memory
// request for the n bytes at addr, which must not cross a 4 KiB boundary. n = 0
// makes the zero-length request of one double word without byte enables that
// flushes what was written before (section 2.2.5). The bytes then stand in the
// payload from offset addr & 3 on.
func (p *Packet) SetMemory(addr uint64, n int) {
	p.SetAddr(addr)
	first := uint(addr % pcie.DW)
	if n <= 0 {
		p.Length, p.FirstBE, p.LastBE = 1, 0, 0
		return
	}
	end := first + uint(n)
	p.Length = uint16((end + pcie.DW - 1) / pcie.DW)
	p.FirstBE = 0xf << first & 0xf
	p.LastBE = 0xf >> (-end % pcie.DW)
	if p.Length == 1 {
		p.FirstBE &= p.LastBE
		p.LastBE = 0
	}
}

// ByteRange is the inverse of SetMemory: the address of the first enabled byte
// of a memory, I/O or configuration request and the number of bytes up to the
// last enabled one; what the byte enables leave out in between counts. A
// zero-length request has its Addr and 0. The operands of an atomic are all its
// payload. For a configuration request the address is the Register.
func (p *Packet) ByteRange() (addr uint64, n int) {
	addr, n = p.Addr, int(p.Length)*pcie.DW
	switch {
	case p.Type.Atomic():
		return addr, n
	case p.Type.Config():
		addr = uint64(p.Register)
	}
	first, last := p.FirstBE&0xf, p.LastBE&0xf
	if p.Length == 1 {
		last = first
	}
	if first == 0 {
		return addr, 0
	}
	skip := bits.TrailingZeros8(first)
	return addr + uint64(skip), n - skip - (bits.LeadingZeros8(last) - 4)
}

// CompletionBytes returns the Byte Count of the first completion of a request
// (table 2-42) and its Lower Address: 1 byte for a zero-length read, the
// operand for an atomic, 4 with Lower Address 0 for requests that are not
// memory reads.
func (p *Packet) CompletionBytes() (count int, lower uint8) {
	switch {
	case p.Type == CAS:
		return int(p.Length) * pcie.DW / 2, 0
	case p.Type.Atomic():
		return int(p.Length) * pcie.DW, 0
	case p.Type != MRd && p.Type != MRdLk:
		return pcie.DW, 0
	}
	addr, n := p.ByteRange()
	return max(n, 1), uint8(addr & 0x7f)
}

// CompletionChunk is one completion of a split read.
type CompletionChunk struct {
	Addr      uint64 // of the first byte
	Len       int    // bytes, not counting what pads to double words
	ByteCount int    // remaining bytes, these included
	LowerAddr uint8
}

// NextCompletion returns how many of the n bytes at addr the next completion
// carries: all of them where they fit, otherwise up to the last multiple of
// rcb within mps bytes (section 2.3.1.1). rcb is 64 or 128, mps a valid payload
// size.
func NextCompletion(addr uint64, n, rcb, mps int) int {
	if int(addr%pcie.DW)+n <= mps {
		return n
	}
	// A boundary lies within the mps bytes because they are at least as many
	// as lie between two.
	mps = max(mps, pcie.DefaultRCB)
	rcb = max(min(rcb, mps), pcie.DefaultRCB)
	end := (addr&^(pcie.DW-1) + uint64(mps)) &^ (uint64(rcb) - 1)
	return int(end - addr)
}

// SplitCompletions yields the completions for a read of n bytes at addr, n at
// least 1, in address order.
func SplitCompletions(addr uint64, n, rcb, mps int) iter.Seq[CompletionChunk] {
	return func(yield func(CompletionChunk) bool) {
		for n > 0 {
			c := CompletionChunk{
				Addr:      addr,
				Len:       NextCompletion(addr, n, rcb, mps),
				ByteCount: n,
				LowerAddr: uint8(addr & 0x7f),
			}
			if !yield(c) {
				return
			}
			addr += uint64(c.Len)
			n -= c.Len
		}
	}
}

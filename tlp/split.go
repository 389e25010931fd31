package tlp

import (
	"iter"
	"math/bits"

	"github.com/dxpu-project/dxpu/pcie"
)

// Chunk is a piece of a byte range: its address and its length in bytes.
type Chunk struct {
	Addr uint64
	Len  int
}

// NextChunk returns how many of the n bytes at addr one memory request may cover.
// It must not cross a 4 KiB boundary (section 2.2.7) and has at most size bytes,
// counted like Length from the double word that holds the first byte. size is
// Max_Read_Request_Size or Max_Payload_Size; NextChunk raises it to 4. It returns
// 0 for n <= 0.
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
// request for the n bytes at addr, which must not cross a 4 KiB boundary. For n = 0
// it makes the zero-length request, one double word without byte enables, that
// flushes earlier writes (section 2.2.5). In the payload the bytes start at offset
// addr & 3.
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

// ByteRange is the inverse of SetMemory. It returns the address of the first
// enabled byte of a memory, I/O or configuration request and the number of bytes
// up to and including the last enabled one; disabled bytes in between count. For
// a zero-length request it returns Addr and 0, for an atomic the range of its
// payload. The address of a configuration request is its Register.
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
	Len       int    // bytes, without padding to double words
	ByteCount int    // remaining bytes, these included
	LowerAddr uint8
}

// NextCompletion returns how many of the n bytes at addr the next completion
// carries: all of them if they fit, otherwise those up to the last multiple of rcb
// within mps bytes (section 2.3.1.1). rcb is 64 or 128, mps a valid payload size.
func NextCompletion(addr uint64, n, rcb, mps int) int {
	if int(addr%pcie.DW)+n <= mps {
		return n
	}
	// The mps bytes contain a boundary, because mps is at least rcb.
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
			c := CompletionChunk{Addr: addr, Len: NextCompletion(addr, n, rcb, mps), ByteCount: n, LowerAddr: uint8(addr & 0x7f)}
			if !yield(c) {
				return
			}
			addr += uint64(c.Len)
			n -= c.Len
		}
	}
}

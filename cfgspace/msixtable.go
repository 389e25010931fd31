package cfgspace

import (
	"encoding/binary"
	"math/bits"
)

// MaxMSIXVectors bounds the vectors of an [MSIXTable]: its pending bits are one quad word.
const MaxMSIXVectors = 64

const (
	msixEntrySize   = 16
	msixPendingSize = 8
)

// MSIXEntry is an entry of an MSI-X Table (section 7.7.2.5). Unmasked is the inverse of the
// Mask Bit, which is set after reset, so the zero value is that of a reset.
type MSIXEntry struct {
	Addr     uint64
	Data     uint32
	Unmasked bool
}

// MSIXTable is the content of a BAR with an MSI-X Table at its start and a Pending Bit Array
// after it (section 7.7.2). Make one with [NewMSIXTable].
type MSIXTable struct {
	Entries [MaxMSIXVectors]MSIXEntry
	Pending uint64 // bit per vector

	vectors, pba int
}

// NewMSIXTable returns a table of at most MaxMSIXVectors vectors in the state after reset.
// pba is the offset of the Pending Bit Array in the BAR in bytes, after the table.
func NewMSIXTable(vectors, pba int) MSIXTable {
	return MSIXTable{vectors: min(vectors, MaxMSIXVectors), pba: pba}
}

// Reset masks all vectors and drops those that are pending.
func (t *MSIXTable) Reset() { *t = MSIXTable{vectors: t.vectors, pba: t.pba} }

// Read fills dst with the bytes at an offset in the BAR. Those of no structure are zero.
func (t *MSIXTable) Read(off int, dst []byte) {
	clear(dst)
	for i := off / msixEntrySize; i < t.vectors && i*msixEntrySize < off+len(dst); i++ {
		b := t.Entries[i].bytes()
		part, at := overlap(off, dst, i*msixEntrySize, msixEntrySize)
		copy(part, b[at:])
	}
	if part, at := overlap(off, dst, t.pba, msixPendingSize); len(part) > 0 {
		var b [msixPendingSize]byte
		binary.LittleEndian.PutUint64(b[:], t.Pending)
		copy(part, b[at:])
	}
}

// Write stores bytes at an offset in the BAR. Pending bits are read-only.
func (t *MSIXTable) Write(off int, src []byte) {
	for i := off / msixEntrySize; i < t.vectors && i*msixEntrySize < off+len(src); i++ {
		b := t.Entries[i].bytes()
		part, at := overlap(off, src, i*msixEntrySize, msixEntrySize)
		copy(b[at:], part)
		t.Entries[i] = MSIXEntry{
			Addr: binary.LittleEndian.Uint64(b[:]) &^ 3, Data: binary.LittleEndian.Uint32(b[8:]), Unmasked: b[12]&1 == 0,
		}
	}
}

// Fire makes a vector pending, and leaves one that the table has not.
func (t *MSIXTable) Fire(vector uint32) {
	if vector < uint32(t.vectors) {
		t.Pending |= 1 << vector
	}
}

// Flush sends the messages of the pending vectors that are not masked, the lowest first, until
// send refuses one. It returns false then.
func (t *MSIXTable) Flush(send func(addr uint64, data uint32) bool) bool {
	for rest := t.Pending; rest != 0; rest &= rest - 1 {
		v := bits.TrailingZeros64(rest)
		e := &t.Entries[v]
		if !e.Unmasked {
			continue
		}
		if !send(e.Addr, e.Data) {
			return false
		}
		t.Pending &^= 1 << v
	}
	return true
}

func (e *MSIXEntry) bytes() (b [msixEntrySize]byte) {
	binary.LittleEndian.PutUint64(b[:], e.Addr)
	binary.LittleEndian.PutUint32(b[8:], e.Data)
	if !e.Unmasked {
		b[12] = 1
	}
	return b
}

// overlap returns the part of b, which is at off, inside size bytes at base, and its offset
// from base.
func overlap(off int, b []byte, base, size int) (part []byte, at int) {
	lo, hi := max(off, base), min(off+len(b), base+size)
	if lo >= hi {
		return nil, 0
	}
	return b[lo-off : hi-off], lo - base
}

package gpu

import "math/bits"

// pageSize is the unit in which changed memory is recorded, in bytes.
const pageSize = 4096

// changes is the set of pages that have changed.
type changes struct {
	bits  []uint64 // bit i%64 of word i/64: page i
	count uint64
}

func newChanges(size int64) *changes {
	return &changes{bits: make([]uint64, (size/pageSize+63)/64)}
}

// mark adds the pages that n bytes at off touch.
func (c *changes) mark(off, n int64) {
	if n <= 0 {
		return
	}
	for page, last := off/pageSize, (off+n-1)/pageSize; page <= last; {
		from := page % 64
		run := min(64-from, last-page+1)
		mask := (^uint64(0) >> (64 - run)) << from
		word := &c.bits[page/64]
		c.count += uint64(bits.OnesCount64(mask &^ *word))
		*word |= mask
		page += run
	}
}

// next returns the first page at or after from that is in the set, and how many follow
// each other, at most most. It removes them. n is 0 if there is none.
func (c *changes) next(from int64, most int) (page int64, n int) {
	for page = from; page/64 < int64(len(c.bits)); page = (page/64 + 1) * 64 {
		if word := c.bits[page/64] >> (page % 64); word != 0 {
			page += int64(bits.TrailingZeros64(word))
			break
		}
	}
	for n < most {
		at := page + int64(n)
		if at/64 >= int64(len(c.bits)) || c.bits[at/64]>>(at%64)&1 == 0 {
			break
		}
		c.bits[at/64] &^= 1 << (at % 64)
		c.count--
		n++
	}
	return page, n
}

// track begins to record changes, with all memory that was written, or ends it.
func (v *vram) track(on bool) {
	if !on {
		v.changes = nil
		return
	}
	v.changes = newChanges(v.size)
	if v.written != nil {
		copy(v.changes.bits, v.written.bits)
		v.changes.count = v.written.count
	}
	for i, d := range v.dirs {
		if d == nil {
			continue
		}
		for k, c := range d {
			if c != nil {
				v.changes.mark((int64(i)*dirChunks+int64(k))*chunkSize, chunkSize)
			}
		}
	}
}

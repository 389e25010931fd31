package virtio

// extent is a part of a pool that is free.
type extent struct{ at, size int }

// pool gives out contiguous parts of the memory of a virtqueue.
//
// Invariant: free is in the order of at, and no two extents touch.
type pool struct{ free []extent }

// grain is the unit of parts: a line of the cache.
const grain = 64

func round(n int) int { return (n + grain - 1) &^ (grain - 1) }

// largest returns the number of bytes that take can give out of a pool of size bytes.
func largest(size int) int { return size &^ (grain - 1) }

func (p *pool) reset(size int) { p.free = append(p.free[:0], extent{0, size}) }

// take returns the offset of n free bytes.
func (p *pool) take(n int) (at int, ok bool) {
	n = round(n)
	for i := range p.free {
		e := &p.free[i]
		if e.size < n {
			continue
		}
		at = e.at
		e.at, e.size = e.at+n, e.size-n
		if e.size == 0 {
			p.free = append(p.free[:i], p.free[i+1:]...)
		}
		return at, true
	}
	return 0, false
}

// give returns n bytes that take gave out.
func (p *pool) give(at, n int) {
	n = round(n)
	i := 0
	for i < len(p.free) && p.free[i].at < at {
		i++
	}
	p.free = append(p.free, extent{})
	copy(p.free[i+1:], p.free[i:])
	p.free[i] = extent{at, n}
	if i+1 < len(p.free) && at+n == p.free[i+1].at {
		p.free[i].size += p.free[i+1].size
		p.free = append(p.free[:i+1], p.free[i+2:]...)
	}
	if i > 0 && p.free[i-1].at+p.free[i-1].size == at {
		p.free[i-1].size += p.free[i].size
		p.free = append(p.free[:i], p.free[i+1:]...)
	}
}

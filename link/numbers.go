package link

import "github.com/dxpu-project/dxpu/frame"

// replayWindow is how far behind the largest number a datagram may come: more
// than a path reorders. One word of the bitmap is not part of the window: the
// largest number has reused it, and with it the bits of the numbers that are
// almost replayWords*64 behind (RFC 6479).
const (
	replayWords  = 64
	replayWindow = (replayWords - 1) * 64
)

// maxRangeAge is the distance behind the largest number at which a range is no
// longer acknowledged: the peer has long declared the missing ones lost.
const maxRangeAge = replayWindow

// received tracks the datagram numbers received by one path, for acknowledgements
// and replay protection. The bitmap follows RFC 6479.
type received struct {
	any     bool
	largest uint64
	bitmap  [replayWords]uint64 // bit number%(replayWords*64)

	// ranges of numbers to acknowledge, highest first.
	ranges [frame.MaxAckRanges]frame.Range
	count  int
}

// fresh reports whether the number is in the window or above it and has not been
// received.
func (r *received) fresh(n uint64) bool {
	if !r.any || n > r.largest {
		return true
	}
	return r.largest-n < replayWindow && r.bitmap[n/64%replayWords]&(1<<(n%64)) == 0
}

// add records a fresh number. inOrder is false if the number is not the successor
// of the largest: then an acknowledgement is due at once.
func (r *received) add(n uint64) (inOrder bool) {
	inOrder = !r.any && n == 0 || r.any && n == r.largest+1
	switch {
	case !r.any:
		r.any, r.largest = true, n
	case n > r.largest:
		r.clear(r.largest, n)
		r.largest = n
	}
	r.bitmap[n/64%replayWords] |= 1 << (n % 64)
	r.insert(n)
	return inOrder
}

// clear zeroes the words of the bitmap that numbers above from, up to to, are the
// first to use.
func (r *received) clear(from, to uint64) {
	first, last := from/64+1, to/64
	if last-from/64 > replayWords {
		first = last - replayWords + 1
	}
	for w := first; w <= last; w++ {
		r.bitmap[w%replayWords] = 0
	}
}

// insert adds n to the ranges.
func (r *received) insert(n uint64) {
	i := 0
	for i < r.count && n < r.ranges[i].First {
		if n == r.ranges[i].First-1 {
			r.ranges[i].First = n
			r.join(i)
			return
		}
		i++
	}
	if i < r.count && n == r.ranges[i].Last+1 {
		r.ranges[i].Last = n
		if i == 0 {
			r.age()
		}
		return
	}
	if i == len(r.ranges) {
		return // lower than all ranges that fit
	}
	r.count = min(r.count+1, len(r.ranges))
	copy(r.ranges[i+1:r.count], r.ranges[i:r.count-1])
	r.ranges[i] = frame.Range{First: n, Last: n}
	r.age()
}

// join merges range i with the one below it if they touch.
func (r *received) join(i int) {
	if i+1 < r.count && r.ranges[i+1].Last+1 == r.ranges[i].First {
		r.ranges[i].First = r.ranges[i+1].First
		copy(r.ranges[i+1:r.count-1], r.ranges[i+2:r.count])
		r.count--
	}
}

// age drops ranges that are too old.
func (r *received) age() {
	for r.count > 1 && r.largest-r.ranges[r.count-1].Last > maxRangeAge {
		r.count--
	}
}

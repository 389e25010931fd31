package gpu

// VRAM consists of chunks that the first write allocates, so an unused GPU costs a
// few kilobytes. A chunk that a job reads is never written: the writer replaces it
// by a copy (copy on write). A job on another goroutine therefore works on a
// snapshot, without a lock and without a data race.
const (
	chunkSize = 64 << 10
	// dirChunks is the number of chunks in one directory entry: 64 MiB.
	dirChunks = 1024
)

type chunk struct {
	data    [chunkSize]byte
	readers int // jobs that hold the chunk; for the owner's goroutine only
}

// read copies the bytes from offset from on into p and returns their number. A nil
// chunk holds zeros.
func (c *chunk) read(p []byte, from int64) int {
	if c != nil {
		return copy(p, c.data[from:])
	}
	n := min(len(p), int(chunkSize-from))
	clear(p[:n])
	return n
}

type vram struct {
	size int64
	dirs []*[dirChunks]*chunk
	// flat, if it is not nil, holds the bytes instead of dirs: a compute engine
	// shares it. Jobs then work on copies.
	flat []byte
	// written records which pages of flat may hold data.
	written *changes
	// changes records which memory changes; nil: nothing does.
	changes *changes
}

func newVRAM(size int64) vram {
	const span = dirChunks * chunkSize
	return vram{size: size, dirs: make([]*[dirChunks]*chunk, (size+span-1)/span)}
}

// grow adds memory, which is empty.
func (v *vram) grow(size int64) {
	v.size = size
	v.dirs = append(v.dirs, newVRAM(size).dirs[len(v.dirs):]...)
}

// newFlatVRAM makes VRAM of memory that a compute engine shares.
func newFlatVRAM(flat []byte) vram {
	return vram{size: int64(len(flat)), flat: flat, written: newChanges(int64(len(flat)))}
}

// wrote notes that n bytes at off have changed. The range lies inside.
func (v *vram) wrote(off, n int64) {
	if v.changes != nil {
		v.changes.mark(off, n)
	}
	if v.written != nil {
		v.written.mark(off, n)
	}
}

// contains reports whether n bytes at off lie inside.
func (v *vram) contains(off, n uint64) bool {
	size := uint64(v.size)
	return n <= size && off <= size-n
}

// maxShared bounds an operand of a command in memory that a compute engine shares,
// in bytes: the owner copies it, some milliseconds, while its other devices wait.
const maxShared = 16 << 20

// tooLarge reports whether n bytes are too many for one operand.
func (v *vram) tooLarge(n uint64) bool { return v.flat != nil && n > maxShared }

func (v *vram) at(i int64) *chunk {
	if d := v.dirs[i/dirChunks]; d != nil {
		return d[i%dirChunks]
	}
	return nil
}

func (v *vram) set(i int64, c *chunk) {
	d := &v.dirs[i/dirChunks]
	if *d == nil {
		if c == nil {
			return
		}
		*d = new([dirChunks]*chunk)
	}
	(*d)[i%dirChunks] = c
}

// writable returns chunk i for writing: allocated, and not held by a job.
func (v *vram) writable(i int64) *chunk {
	c := v.at(i)
	switch {
	case c == nil:
		c = new(chunk)
	case c.readers > 0:
		c = &chunk{data: c.data}
	default:
		return c
	}
	v.set(i, c)
	return c
}

// read fills p from off. The range lies inside.
func (v *vram) read(p []byte, off int64) {
	if v.flat != nil {
		copy(p, v.flat[off:])
		return
	}
	for len(p) > 0 {
		n := v.at(off/chunkSize).read(p, off%chunkSize)
		p, off = p[n:], off+int64(n)
	}
}

// look returns the n bytes at off in place, valid until the next write, or nil if
// they do not lie together. The range lies inside.
func (v *vram) look(off int64, n int) []byte {
	if v.flat != nil {
		return v.flat[off : off+int64(n) : off+int64(n)]
	}
	from := off % chunkSize
	c := v.at(off / chunkSize)
	if c == nil || from+int64(n) > chunkSize {
		return nil
	}
	return c.data[from : from+int64(n) : from+int64(n)]
}

// write stores p at off. The range lies inside.
func (v *vram) write(off int64, p []byte) {
	v.wrote(off, int64(len(p)))
	if v.flat != nil {
		copy(v.flat[off:], p)
		return
	}
	for len(p) > 0 {
		n := copy(v.writable(off / chunkSize).data[off%chunkSize:], p)
		p, off = p[n:], off+int64(n)
	}
}

// scrub erases all content.
func (v *vram) scrub() {
	clear(v.dirs)
	clear(v.flat)
	if v.flat != nil {
		v.written = newChanges(v.size)
	}
	if v.changes != nil {
		v.changes.mark(0, v.size)
	}
}

// view is a snapshot of a range: nil chunks are zeros.
type view struct {
	off    int64
	n      int64
	chunks []*chunk
}

// snapshot takes a view of n bytes at off. The job ends it with release.
func (v *vram) snapshot(off, n int64) view {
	if n == 0 {
		return view{off: off}
	}
	first, last := off/chunkSize, (off+n-1)/chunkSize
	w := view{off: off, n: n, chunks: make([]*chunk, 0, last-first+1)}
	for i := first; i <= last; i++ {
		if v.flat != nil {
			c := new(chunk)
			copy(c.data[:], v.flat[i*chunkSize:])
			w.chunks = append(w.chunks, c)
			continue
		}
		c := v.at(i)
		if c != nil {
			c.readers++
		}
		w.chunks = append(w.chunks, c)
	}
	return w
}

func (w *view) release() {
	for _, c := range w.chunks {
		if c != nil {
			c.readers--
		}
	}
	w.chunks = nil
}

// read fills p from byte at of the view.
func (w *view) read(p []byte, at int64) {
	at += w.off % chunkSize
	for len(p) > 0 {
		n := w.chunks[at/chunkSize].read(p, at%chunkSize)
		p, at = p[n:], at+int64(n)
	}
}

// result is the output of a job: new chunks for a range, which install puts in
// place when the job is finished.
type result struct {
	off    int64
	n      int64
	chunks []*chunk
}

func newResult(off, n int64) result { return result{off: off, n: n} }

// write stores p at byte at of the result; the job's goroutine allocates.
func (r *result) write(at int64, p []byte) {
	if r.chunks == nil {
		r.chunks = make([]*chunk, (r.off%chunkSize+r.n+chunkSize-1)/chunkSize)
	}
	at += r.off % chunkSize
	for len(p) > 0 {
		c := &r.chunks[at/chunkSize]
		if *c == nil {
			*c = new(chunk)
		}
		n := copy((*c).data[at%chunkSize:], p)
		p, at = p[n:], at+int64(n)
	}
}

// install puts a result in place: whole chunks by pointer, the edges by copy.
func (v *vram) install(r *result) {
	at := r.off
	end := r.off + r.n
	v.wrote(at, r.n)
	for _, c := range r.chunks {
		i, from := at/chunkSize, at%chunkSize
		n := min(chunkSize-from, end-at)
		switch {
		case c == nil: // the job wrote nothing here
		case v.flat != nil:
			copy(v.flat[at:at+n], c.data[from:])
		case n == chunkSize:
			v.set(i, c)
		default:
			copy(v.writable(i).data[from:from+n], c.data[from:])
		}
		at += n
	}
	r.chunks = nil
}

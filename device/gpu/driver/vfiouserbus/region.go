package vfiouserbus

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// region is a BAR, accessed by messages.
type region struct {
	bus   *Bus
	index uint32
	size  uint64
}

var _ driver.Region = (*region)(nil)

func (r *region) Size() uint64 { return r.size }

func (r *region) Read32(off uint64) uint32 { return r.bus.read32(r.index, off) }

func (r *region) Read64(off uint64) uint64 {
	p := words.Get().(*[8]byte)
	defer words.Put(p)
	r.bus.read(r.index, off, p[:])
	return binary.LittleEndian.Uint64(p[:])
}

func (r *region) Write32(off uint64, v uint32) {
	p := words.Get().(*[8]byte)
	defer words.Put(p)
	binary.LittleEndian.PutUint32(p[:], v)
	_ = r.bus.client.PostWrite(r.index, off, p[:4]) // a device that is gone swallows writes
}

func (r *region) Write64(off uint64, v uint64) {
	p := words.Get().(*[8]byte)
	defer words.Put(p)
	binary.LittleEndian.PutUint64(p[:], v)
	_ = r.bus.client.PostWrite(r.index, off, p[:])
}

// bulkRead is how much one message reads: see vfiouser.ClientConfig.MaxData.
const bulkRead = vfiouser.DefaultClientData

// ReadAt reads in bulk.
func (r *region) ReadAt(p []byte, off int64) (int, error) {
	p, err := r.clip(p, off)
	for done := 0; done < len(p); {
		n := min(len(p)-done, bulkRead)
		r.bus.read(r.index, uint64(off)+uint64(done), p[done:done+n])
		done += n
	}
	return len(p), err
}

// WriteAt posts writes in bulk.
func (r *region) WriteAt(p []byte, off int64) (int, error) {
	p, err := r.clip(p, off)
	if err := r.bus.client.PostWrite(r.index, uint64(off), p); err != nil {
		return 0, err
	}
	return len(p), err
}

// clip cuts p to what lies in the region.
func (r *region) clip(p []byte, off int64) ([]byte, error) {
	if off < 0 || uint64(off) >= r.size {
		return nil, io.EOF
	}
	if left := r.size - uint64(off); uint64(len(p)) > left {
		return p[:left], io.EOF
	}
	return p, nil
}

func (b *Bus) read32(index uint32, off uint64) uint32 {
	p := words.Get().(*[8]byte)
	defer words.Put(p)
	b.read(index, off, p[:4])
	return binary.LittleEndian.Uint32(p[:])
}

// words holds the buffers of short reads. The client writes to a buffer only during
// the read.
var words = sync.Pool{New: func() any { return new([8]byte) }}

// read fills p, with ones when the device does not answer.
func (b *Bus) read(index uint32, off uint64, p []byte) {
	// The client's own timeout bounds it: a context with one would allocate.
	if err := b.client.RegionRead(context.Background(), index, off, p); err != nil {
		for i := range p {
			p[i] = 0xff
		}
	}
}

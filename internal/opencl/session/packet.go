package session

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// cursor reads the fields of a packet. A packet that is too short, or whose counts are
// out of bounds, makes it bad; reads then return zero.
type cursor struct {
	b   []byte
	bad bool
}

// take returns the next n bytes. They alias the packet.
func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b) {
		c.bad = true
		return nil
	}
	p := c.b[:n:n]
	c.b = c.b[n:]
	return p
}

// padded returns the next n bytes and skips the padding to 8.
func (c *cursor) padded(n uint32) []byte {
	if n > reg.MaxPacket {
		c.bad = true
		return nil
	}
	p := c.take(int(n+7) &^ 7)
	if p == nil {
		return nil
	}
	return p[:n]
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) three() (v [3]uintptr) {
	for i := range v {
		v[i] = uintptr(c.u64())
	}
	return v
}

// rect reads an origin and two pitches.
func (c *cursor) rect() cl.Rect {
	return cl.Rect{Origin: c.three(), RowPitch: uintptr(c.u64()), Slice: uintptr(c.u64())}
}

// count reads a 32-bit count up to limit.
func (c *cursor) count(limit uint32) uint32 {
	n := c.u32()
	if n > limit {
		c.bad = true
		return 0
	}
	return n
}

// waits reads the list at the end of a packet that is enqueued: the cookies of the
// packets that it waits for, the first must of which have to succeed.
func (c *cursor) waits() (list []uint64, must uint32) {
	n := c.count(reg.MaxWaits)
	must = c.count(n)
	for range n {
		list = append(list, c.u64())
		if c.bad {
			return nil, 0
		}
	}
	return list, must
}

// argument is an argument of PacketNDRange.
type argument struct {
	kind  uint32
	size  uint32
	value []byte // of ArgValue and ArgBuffer
}

// launch is a PacketNDRange.
type launch struct {
	kernel                uint32
	offset, global, local []uintptr // offset and local may be nil
	args                  []argument
	shared                []uint32 // used beside the arguments
}

// Flags of PacketNDRange in its header.
const (
	flagOffset = 1 << 0 // the offsets count
	flagLocal  = 1 << 1 // the sizes of work-groups count
	flagShared = 1 << 2 // a list of buffers in shared virtual memory follows the arguments
)

func (c *cursor) launch(flags uint16) launch {
	l := launch{kernel: c.u32()}
	dims := c.count(3)
	n := c.count(reg.MaxArgs)
	shared := c.u32()
	offset, global, local := c.three(), c.three(), c.three()
	l.global = global[:dims]
	if flags&flagOffset != 0 {
		l.offset = offset[:dims]
	}
	if flags&flagLocal != 0 {
		l.local = local[:dims]
	}
	for range n {
		a := argument{kind: c.u32(), size: c.u32()}
		if a.kind != reg.ArgLocal {
			a.value = c.padded(a.size)
		}
		if c.bad {
			return l
		}
		l.args = append(l.args, a)
	}
	if flags&flagShared != 0 {
		l.shared = c.sharedList(shared)
	}
	return l
}

// appendProperty appends an entry of a result: parameter (4), index (4), size (8), and
// the value, padded to 8. index is that of a kernel's argument, or noIndex.
func appendProperty(b []byte, index uint32, p cl.Property) []byte {
	b = binary.LittleEndian.AppendUint32(b, p.Param)
	b = binary.LittleEndian.AppendUint32(b, index)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(p.Value)))
	b = append(b, p.Value...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	return b
}

const noIndex = 0xffffffff

package session

import (
	"bytes"
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// image is an image: its memory, and what boxes have to lie in.
type image struct {
	*buffer
	extent [3]uint64 // pixels; the layers of an array come last
	pixel  uint64    // bytes
	body   []byte    // of the packet that made it
}

type sampler struct {
	birth
	body    []byte // of the packet that made it
	sampler cl.Sampler
	serial  uint64
}

// Types of images.
const (
	image2D       = 0x10f1
	image3D       = 0x10f2
	image2DArray  = 0x10f3
	image1D       = 0x10f4
	image1DArray  = 0x10f5
	image1DBuffer = 0x10f6
)

// channels and channelSizes tell how many bytes a pixel has. An order or type that is not
// here is refused.
var (
	channels = map[uint32]uint64{
		0x10b0: 1, 0x10b1: 1, 0x10b2: 2, 0x10b3: 2, 0x10b4: 3, 0x10b5: 4, 0x10b6: 4, 0x10b7: 4, // R, A, RG, RA, RGB, RGBA, BGRA, ARGB
		0x10b8: 1, 0x10b9: 1, 0x10ba: 1, 0x10bb: 2, 0x10bc: 3, 0x10bd: 1, // INTENSITY, LUMINANCE, Rx, RGx, RGBx, DEPTH
		0x10bf: 3, 0x10c0: 4, 0x10c1: 4, 0x10c2: 4, 0x10c3: 4, // sRGB, sRGBx, sRGBA, sBGRA, ABGR
	}
	channelSizes = map[uint32]uint64{
		0x10d0: 1, 0x10d1: 2, 0x10d2: 1, 0x10d3: 2, 0x10d7: 1, 0x10d8: 2, 0x10d9: 4, 0x10da: 1, 0x10db: 2, 0x10dc: 4, 0x10dd: 2, 0x10de: 4,
	}
	packedSizes = map[uint32]uint64{0x10d4: 2, 0x10d5: 2, 0x10d6: 4, 0x10e0: 4} // of the whole pixel
)

// pixelSize returns the bytes of a pixel, or 0 for a format that is not known.
func pixelSize(f cl.ImageFormat) uint64 {
	n, ok := channels[f.Order]
	if !ok {
		return 0
	}
	if size, ok := packedSizes[f.Type]; ok {
		return size
	}
	return n * channelSizes[f.Type]
}

// extentOf returns the pixels of an image, without the members that its type ignores. A
// missing one makes the extent empty.
func extentOf(d *cl.ImageDesc) (e [3]uint64) {
	e = [3]uint64{uint64(d.Width), 1, 1}
	switch d.Type {
	case image1D, image1DBuffer:
		d.Height, d.Depth, d.ArraySize = 0, 0, 0
	case image1DArray:
		d.Height, d.Depth = 0, 0
		e[1] = uint64(d.ArraySize)
	case image2D:
		d.Depth, d.ArraySize = 0, 0
		e[1] = uint64(d.Height)
	case image2DArray:
		d.Depth = 0
		e[1], e[2] = uint64(d.Height), uint64(d.ArraySize)
	case image3D:
		d.ArraySize = 0
		e[1], e[2] = uint64(d.Height), uint64(d.Depth)
	default:
		return [3]uint64{}
	}
	return e
}

func (s *Session) newImage(c *cursor) error {
	body := bytes.Clone(c.b)
	handle, in := c.u32(), c.u32()
	flags := c.u64()
	f := cl.ImageFormat{Order: c.u32(), Type: c.u32()}
	d := cl.ImageDesc{Type: c.u32()}
	c.u32()
	size := c.three()
	d.Width, d.Height, d.Depth, d.ArraySize, d.RowPitch = size[0], size[1], size[2], uintptr(c.u64()), uintptr(c.u64())
	if err := s.free(handle, c); err != nil {
		return err
	}
	m := image{extent: extentOf(&d), pixel: pixelSize(f)}
	if m.pixel == 0 {
		return cl.InvalidImageFormat
	}
	pixels, ok := volume([3]uintptr{uintptr(m.extent[0]), uintptr(m.extent[1]), uintptr(m.extent[2])})
	if !ok {
		return cl.InvalidImageSize
	}
	room := pixels * m.pixel
	var parent *buffer
	switch {
	case in != 0:
		var err error
		if parent, d.Buffer, err = s.imageMemory(in, d, m, room); err != nil {
			return err
		}
	case d.Type == image1DBuffer || d.RowPitch != 0:
		return cl.InvalidValue
	case room > s.Memory-min(s.used, s.Memory):
		return cl.MemAllocationFailure
	}
	h, err := s.Library.NewImage(s.context, flags&bufferFlags, f, d)
	if err != nil {
		return err
	}
	s.serial++
	m.body = body[:len(body)-len(c.b)]
	m.buffer = &buffer{birth: s.birth(), mem: h, flags: flags, image: &m, serial: s.serial, size: room, parent: parent, users: 1}
	if parent != nil {
		parent.users++
	} else {
		s.used += room
	}
	s.objects[handle] = &m
	return nil
}

// imageMemory returns the buffer, or the image, in whose memory an image is to lie.
func (s *Session) imageMemory(in uint32, d cl.ImageDesc, m image, bytes uint64) (*buffer, cl.Mem, error) {
	switch o := s.objects[in].(type) {
	case *buffer:
		row := m.extent[0] * m.pixel
		if pitch := uint64(d.RowPitch); pitch != 0 {
			if pitch < row || m.extent[1]-1 > o.size/pitch {
				return nil, 0, cl.InvalidImageSize
			}
			bytes = pitch*(m.extent[1]-1) + row
		}
		if d.Type != image2D && d.Type != image1DBuffer || bytes > o.size {
			return nil, 0, cl.InvalidImageSize
		}
		return o, o.mem, nil
	case *image:
		if d.Type != image2D || o.extent != m.extent || o.pixel != m.pixel {
			return nil, 0, cl.InvalidImageFormat
		}
		return o.buffer, o.mem, nil
	}
	return nil, 0, cl.InvalidMemObject
}

func (s *Session) newSampler(c *cursor) error {
	body := bytes.Clone(c.b)
	handle, normalized, addressing, filter := c.u32(), c.u32(), c.u32(), c.u32()
	if err := s.free(handle, c); err != nil {
		return err
	}
	if addressing < 0x1130 || addressing > 0x1134 || filter < 0x1140 || filter > 0x1141 {
		return cl.InvalidValue
	}
	h, err := s.Library.NewSampler(s.context, normalized != 0, addressing, filter)
	if err != nil {
		return err
	}
	s.serial++
	s.objects[handle] = &sampler{birth: s.birth(), body: body[:len(body)-len(c.b)], sampler: h, serial: s.serial}
	return nil
}

// formats returns the formats of images of a type, order and type (4 each).
func (s *Session) formats(c *cursor) result {
	flags, kind := c.u64(), c.u32()
	c.u32()
	if c.bad {
		return result{err: cl.InvalidValue}
	}
	list, err := s.Library.ImageFormats(s.context, flags, kind)
	var out []byte
	for _, f := range list {
		// Others have no size here.
		if pixelSize(f) != 0 {
			out = binary.LittleEndian.AppendUint32(out, f.Order)
			out = binary.LittleEndian.AppendUint32(out, f.Type)
		}
	}
	return result{out, err}
}

// pixels returns an image in which a box lies, and the bytes of the box.
func (s *Session) pixels(handle uint32, origin, region [3]uintptr) (*image, uint64, error) {
	m, err := object[*image](s, handle, cl.InvalidMemObject)
	if err != nil {
		return nil, 0, err
	}
	for i, n := range m.extent {
		if r := uint64(region[i]); r == 0 || r > n || uint64(origin[i]) > n-r {
			return nil, 0, cl.InvalidValue
		}
	}
	n, _ := volume(region) // not more than that of the image
	return m, n * m.pixel, nil
}

// startImage enqueues the command of a packet for images.
func (s *Session) startImage(q *queue, h reg.PacketHeader, c *cursor, out *command) (cl.Event, error) {
	switch h.Op {
	case reg.PacketWriteImage, reg.PacketReadImage:
		return s.transferImage(q, h, c, out)
	case reg.PacketCopyImage:
		return s.copyImage(q, c)
	case reg.PacketFillImage:
		return s.fillImage(q, c)
	case reg.PacketImageBuffer, reg.PacketBufferImage:
		return s.copyImageBuffer(q, h, c)
	}
	return 0, cl.InvalidOperation
}

func (s *Session) transferImage(q *queue, h reg.PacketHeader, c *cursor, out *command) (cl.Event, error) {
	handle := c.u32()
	c.u32()
	origin, region, at := c.three(), c.three(), c.u64()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	m, n, err := s.pixels(handle, origin, region)
	if err != nil {
		return 0, err
	}
	if h.Op == reg.PacketWriteImage {
		w, ok := s.window(at, n)
		if !ok {
			return 0, cl.InvalidValue
		}
		s.mark(m.buffer, 0, m.size)
		return s.Library.WriteImage(q.queue, m.mem, origin, region, w, wait)
	}
	w, ok := s.window(h.Out, n)
	if !ok || n > uint64(h.Room) {
		return 0, cl.InvalidValue
	}
	out.out, out.length = h.Out, uint32(n)
	return s.Library.ReadImage(q.queue, m.mem, origin, region, w, wait)
}

func (s *Session) copyImage(q *queue, c *cursor) (cl.Event, error) {
	from, to := c.u32(), c.u32()
	a, b, region := c.three(), c.three(), c.three()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	source, n, err := s.pixels(from, a, region)
	if err != nil {
		return 0, err
	}
	destination, m, err := s.pixels(to, b, region)
	switch {
	case err != nil:
		return 0, err
	case n != m:
		return 0, cl.ImageFormatMismatch
	}
	s.mark(destination.buffer, 0, destination.size)
	return s.Library.CopyImage(q.queue, source.mem, destination.mem, a, b, region, wait)
}

// colorSize is the size of a color, of any format.
const colorSize = 16

func (s *Session) fillImage(q *queue, c *cursor) (cl.Event, error) {
	handle := c.u32()
	c.u32()
	origin, region, color := c.three(), c.three(), c.take(colorSize)
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	m, _, err := s.pixels(handle, origin, region)
	if err != nil {
		return 0, err
	}
	s.mark(m.buffer, 0, m.size)
	return s.Library.FillImage(q.queue, m.mem, color, origin, region, wait)
}

func (s *Session) copyImageBuffer(q *queue, h reg.PacketHeader, c *cursor) (cl.Event, error) {
	of, with := c.u32(), c.u32()
	origin, region, offset := c.three(), c.three(), c.u64()
	wait, err := s.waits(q, c)
	if err != nil {
		return 0, err
	}
	m, n, err := s.pixels(of, origin, region)
	if err != nil {
		return 0, err
	}
	b, err := s.buffer(with, offset, n)
	if err != nil {
		return 0, err
	}
	in := b.whole()
	at := uint64(in.offset) + offset
	if h.Op == reg.PacketImageBuffer {
		s.mark(b, offset, n)
		return s.Library.ImageToBuffer(q.queue, m.mem, in.mem, origin, region, at, wait)
	}
	s.mark(m.buffer, 0, m.size)
	return s.Library.BufferToImage(q.queue, in.mem, m.mem, at, origin, region, wait)
}

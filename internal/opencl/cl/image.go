package cl

import "runtime"

// ImageFormat is cl_image_format.
type ImageFormat struct{ Order, Type uint32 }

// ImageDesc is cl_image_desc.
type ImageDesc struct {
	Type                 uint32
	_                    uint32
	Width, Height, Depth uintptr
	ArraySize            uintptr
	RowPitch, Slice      uintptr
	_, _                 uint32 // levels of a mipmap, samples of a pixel: none
	Buffer               Mem    // of an image in a buffer
}

// NewImage makes an image. flags are those of OpenCL, without those for host pointers.
func (l *Library) NewImage(c Context, flags uint64, f ImageFormat, d ImageDesc) (Mem, error) {
	format, desc := &f, &d
	h, err := l.create(createImage, uintptr(c), uintptr(flags), pointer(format), pointer(desc), 0)
	runtime.KeepAlive(format)
	runtime.KeepAlive(desc)
	return Mem(h), err
}

// ImageFormats returns the formats of images of a type.
func (l *Library) ImageFormats(c Context, flags uint64, kind uint32) ([]ImageFormat, error) {
	n := new(uint32)
	if err := l.call(getSupportedImageFormats, uintptr(c), uintptr(flags), uintptr(kind), 0, 0, pointer(n)); err != nil {
		return nil, err
	}
	list := make([]ImageFormat, min(*n, maxFormats))
	if len(list) == 0 {
		return nil, nil
	}
	err := l.call(getSupportedImageFormats, uintptr(c), uintptr(flags), uintptr(kind), uintptr(len(list)), data(list), 0)
	runtime.KeepAlive(list)
	return list, err
}

// maxFormats bounds the formats of images of a type.
const maxFormats = 1024

// NewSampler makes a sampler.
func (l *Library) NewSampler(c Context, normalized bool, addressing, filter uint32) (Sampler, error) {
	var n uintptr
	if normalized {
		n = 1
	}
	h, err := l.create(createSampler, uintptr(c), n, uintptr(addressing), uintptr(filter))
	return Sampler(h), err
}

// ReadImage copies a box of an image to host memory, which stays valid until the command
// ends. The rows and slices are packed.
func (l *Library) ReadImage(q Queue, m Mem, origin, region [3]uintptr, host []byte, wait []Event) (Event, error) {
	return l.hostImage(enqueueReadImage, q, m, origin, region, host, wait)
}

// WriteImage is the reverse of ReadImage.
func (l *Library) WriteImage(q Queue, m Mem, origin, region [3]uintptr, host []byte, wait []Event) (Event, error) {
	return l.hostImage(enqueueWriteImage, q, m, origin, region, host, wait)
}

func (l *Library) hostImage(f function, q Queue, m Mem, origin, region [3]uintptr, host []byte, wait []Event) (Event, error) {
	box := [][3]uintptr{origin, region}
	e, err := l.enqueue(f, wait, uintptr(q), uintptr(m), 0, pointer(&box[0]), pointer(&box[1]), 0, 0, data(host))
	runtime.KeepAlive(box)
	return e, err
}

// CopyImage copies a box between images.
func (l *Library) CopyImage(q Queue, from, to Mem, a, b, region [3]uintptr, wait []Event) (Event, error) {
	box := [][3]uintptr{a, b, region}
	e, err := l.enqueue(enqueueCopyImage, wait, uintptr(q), uintptr(from), uintptr(to), pointer(&box[0]), pointer(&box[1]), pointer(&box[2]))
	runtime.KeepAlive(box)
	return e, err
}

// FillImage stores a color of 16 bytes in a box of an image.
func (l *Library) FillImage(q Queue, m Mem, color []byte, origin, region [3]uintptr, wait []Event) (Event, error) {
	box := [][3]uintptr{origin, region}
	e, err := l.enqueue(enqueueFillImage, wait, uintptr(q), uintptr(m), data(color), pointer(&box[0]), pointer(&box[1]))
	runtime.KeepAlive(box)
	runtime.KeepAlive(color)
	return e, err
}

// ImageToBuffer copies a box of an image to a buffer, packed.
func (l *Library) ImageToBuffer(q Queue, image, buffer Mem, origin, region [3]uintptr, offset uint64, wait []Event) (Event, error) {
	box := [][3]uintptr{origin, region}
	e, err := l.enqueue(enqueueCopyImageToBuffer, wait, uintptr(q), uintptr(image), uintptr(buffer), pointer(&box[0]), pointer(&box[1]), uintptr(offset))
	runtime.KeepAlive(box)
	return e, err
}

// BufferToImage is the reverse of ImageToBuffer.
func (l *Library) BufferToImage(q Queue, buffer, image Mem, offset uint64, origin, region [3]uintptr, wait []Event) (Event, error) {
	box := [][3]uintptr{origin, region}
	e, err := l.enqueue(enqueueCopyBufferToImage, wait, uintptr(q), uintptr(buffer), uintptr(image), uintptr(offset), pointer(&box[0]), pointer(&box[1]))
	runtime.KeepAlive(box)
	return e, err
}

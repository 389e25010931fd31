package cl

import (
	"runtime"
	"unsafe"
)

// enqueue calls a function that enqueues a command: its last arguments are the events
// that the command waits for, and the place of its own.
func (l *Library) enqueue(f function, wait []Event, args ...uintptr) (Event, error) {
	event := new(Event)
	if err := l.post(f, wait, pointer(event), args...); err != nil {
		return 0, err
	}
	return *event, nil
}

// post is enqueue with a place of the event, or 0 for none.
func (l *Library) post(f function, wait []Event, event uintptr, args ...uintptr) error {
	err := l.call(f, append(args, uintptr(len(wait)), data(wait), event)...)
	runtime.KeepAlive(wait)
	return err
}

// Read copies from a buffer to host memory, which stays valid until the command ends.
func (l *Library) Read(q Queue, m Mem, offset uint64, host []byte, wait []Event) (Event, error) {
	return l.enqueue(enqueueReadBuffer, wait, uintptr(q), uintptr(m), 0, uintptr(offset), uintptr(len(host)), data(host))
}

// Write copies from host memory, which stays valid until the command ends, to a buffer.
func (l *Library) Write(q Queue, m Mem, offset uint64, host []byte, wait []Event) (Event, error) {
	return l.enqueue(enqueueWriteBuffer, wait, uintptr(q), uintptr(m), 0, uintptr(offset), uintptr(len(host)), data(host))
}

// Copy copies between buffers.
func (l *Library) Copy(q Queue, from, to Mem, fromOffset, toOffset, size uint64, wait []Event) (Event, error) {
	return l.enqueue(enqueueCopyBuffer, wait, uintptr(q), uintptr(from), uintptr(to), uintptr(fromOffset), uintptr(toOffset), uintptr(size))
}

// Fill repeats a pattern.
func (l *Library) Fill(q Queue, m Mem, pattern []byte, offset, size uint64, wait []Event) (Event, error) {
	e, err := l.enqueue(enqueueFillBuffer, wait, uintptr(q), uintptr(m), data(pattern), uintptr(len(pattern)), uintptr(offset), uintptr(size))
	runtime.KeepAlive(pattern)
	return e, err
}

// Rect is a box in a buffer.
type Rect struct {
	Origin          [3]uintptr
	RowPitch, Slice uintptr
}

// ReadRect copies a box of a buffer to a packed box in host memory.
func (l *Library) ReadRect(q Queue, m Mem, r Rect, region [3]uintptr, host []byte, wait []Event) (Event, error) {
	return l.hostRect(enqueueReadBufferRect, q, m, r, region, host, wait)
}

// WriteRect copies a packed box in host memory to a box of a buffer.
func (l *Library) WriteRect(q Queue, m Mem, r Rect, region [3]uintptr, host []byte, wait []Event) (Event, error) {
	return l.hostRect(enqueueWriteBufferRect, q, m, r, region, host, wait)
}

func (l *Library) hostRect(f function, q Queue, m Mem, r Rect, region [3]uintptr, host []byte, wait []Event) (Event, error) {
	origins := [][3]uintptr{r.Origin, {}, region}
	e, err := l.enqueue(f, wait, uintptr(q), uintptr(m), 0, pointer(&origins[0]), pointer(&origins[1]), pointer(&origins[2]),
		r.RowPitch, r.Slice, 0, 0, data(host))
	runtime.KeepAlive(origins)
	return e, err
}

// CopyRect copies a box between buffers.
func (l *Library) CopyRect(q Queue, from, to Mem, a, b Rect, region [3]uintptr, wait []Event) (Event, error) {
	origins := [][3]uintptr{a.Origin, b.Origin, region}
	e, err := l.enqueue(enqueueCopyBufferRect, wait, uintptr(q), uintptr(from), uintptr(to),
		pointer(&origins[0]), pointer(&origins[1]), pointer(&origins[2]), a.RowPitch, a.Slice, b.RowPitch, b.Slice)
	runtime.KeepAlive(origins)
	return e, err
}

// NDRange runs a kernel, without an event if quiet. A nil offset or local leaves the choice
// to the platform.
func (l *Library) NDRange(q Queue, k Kernel, offset, global, local []uintptr, wait []Event, quiet bool) (Event, error) {
	event := new(Event)
	place := pointer(event)
	if quiet {
		place = 0
	}
	err := l.post(enqueueNDRangeKernel, wait, place, uintptr(q), uintptr(k), uintptr(len(global)), data(offset), data(global), data(local))
	runtime.KeepAlive(offset)
	runtime.KeepAlive(global)
	runtime.KeepAlive(local)
	if err != nil {
		return 0, err
	}
	return *event, nil
}

// Marker ends after the events, or after everything before it in its queue.
func (l *Library) Marker(q Queue, wait []Event) (Event, error) {
	return l.enqueue(enqueueMarkerWithWaitList, wait, uintptr(q))
}

// Barrier is a marker that later commands of its queue wait for.
func (l *Library) Barrier(q Queue, wait []Event) (Event, error) {
	return l.enqueue(enqueueBarrierWithWaitList, wait, uintptr(q))
}

// Flush starts what is in a queue.
func (l *Library) Flush(q Queue) error { return l.call(flush, uintptr(q)) }

const (
	eventComplete   = 0
	eventQueued     = 3
	eventStatus     = 0x11d3
	profilingQueued = 0x1280 // queued, submitted, started, ended
)

// Wait waits for an event and returns its status: 0, or the error that ended the
// command.
func (l *Library) Wait(e Event) error {
	list := []Event{e}
	err := l.call(waitForEvents, 1, data(list))
	runtime.KeepAlive(list)
	if err == nil {
		return nil
	}
	if s := l.eventStatus(e); s < 0 {
		return s
	}
	return err
}

// Ended reports whether a command has ended, and the error that ended it.
func (l *Library) Ended(e Event) (bool, error) {
	s := l.eventStatus(e)
	if s < 0 {
		return true, s
	}
	return s == eventComplete, nil
}

// eventStatus returns the state of a command: an error, 0 at its end, or more.
func (l *Library) eventStatus(e Event) Status {
	v := new(int32)
	*v = eventQueued // if the query fails, Wait returns the error
	_ = l.call(getEventInfo, uintptr(e), eventStatus, unsafe.Sizeof(*v), pointer(v), 0)
	return Status(*v)
}

// Times returns when a command was queued, submitted, started and ended, in
// nanoseconds of the device.
func (l *Library) Times(e Event) (t [4]uint64) {
	for i := range t {
		t[i] = l.number(getEventProfilingInfo, uintptr(e), profilingQueued+uint32(i), unsafe.Sizeof(t[i]))
	}
	return t
}

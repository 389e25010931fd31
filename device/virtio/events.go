package virtio

// eventPool is the size of the pool of the virtqueue of events in bytes. Linux makes 8
// buffers of 4 bytes available.
const eventPool = 8192

// eventSize is the length of an event (section 5.10.6.5). The only one, the reset of the
// transport, is all zeros.
const eventSize = 4

// events is the Backend of a virtqueue whose requests the device ends itself.
type events struct {
	pool    []byte
	buffers [MaxRequests]buffer // by ID
	waiting fifo                // IDs of those that wait for an event
	pending bool                // an event that no buffer tells yet
}

// buffer is the part of a request that an event is written to.
type buffer struct{ at, size int }

var _ Backend = (*events)(nil)

// ResetTransport tells the driver of a socket device that its connections have ended and
// that its address may have changed (VIRTIO_VSOCK_EVENT_TRANSPORT_RESET): its programs see a
// reset of their connections, and those that listen go on. Without a buffer for the event,
// the driver gets it when it provides one. Several resets in a row may be one event, and an
// event comes twice if the back end is changed in between. Other drivers are not told
// anything.
func (d *Device) ResetTransport() {
	if d.spec.Kind.Events != 0 && d.session.Running {
		d.events.pending = true
	}
}

// ownsQueue reports whether the device ends the requests of a virtqueue itself.
func (d *Device) ownsQueue(q *queue) bool {
	return d.spec.Kind.Events != 0 && q.index == d.spec.Kind.Events
}

// behind returns the back end of a virtqueue, or nil.
func (d *Device) behind(q *queue) Backend {
	if d.ownsQueue(q) {
		return &d.events
	}
	return d.backend
}

// poolSize returns the length of the pool of a virtqueue.
func (d *Device) poolSize(q *queue) int {
	if d.ownsQueue(q) {
		return eventPool
	}
	return largest(d.spec.Pool)
}

// reset forgets the events of a session.
func (e *events) reset() { e.waiting, e.pending = fifo{}, false }

// rewind precedes that of the virtqueue, which submits all buffers again. An event whose
// buffer is not with the driver yet is told again.
func (e *events) rewind(q *queue) {
	e.waiting = fifo{}
	e.pending = e.pending || q.ended.n > 0 || q.back.active
}

// Pool implements Backend.
func (e *events) Pool(int) []byte {
	if e.pool == nil {
		e.pool = make([]byte, eventPool)
	}
	return e.pool
}

// Submit implements Backend.
func (e *events) Submit(_ int, id uint16, at, out, in int) {
	e.buffers[id] = buffer{at + out, in}
	e.waiting.push(id)
}

// Kick implements Backend.
func (e *events) Kick(int) {}

// Used implements Backend.
func (e *events) Used(queue int) (id uint16, n uint32, ok bool) {
	if !e.pending || e.waiting.n == 0 {
		return 0, 0, false
	}
	e.pending = false
	id = e.waiting.pop()
	b := e.buffers[id]
	clear(e.Pool(queue)[b.at:][:b.size]) // also what the driver has put in front of it
	return id, eventSize, true
}

package hostproxy

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// hostTags is the number of the host's non-posted requests that may be outstanding
// to one device. A VMM has one read open at a time; a probe reads the
// configuration space with all of them.
const hostTags = 64

// errBusy means that a request cannot be sent now: no tag is free or the link is
// full. The caller tries again after the next Transmit.
var errBusy = errors.New("hostproxy: no room on the link")

// requestPort is the root port above one slot: it sends the host's requests down
// the link and tracks the outstanding ones. Guarded by the group.
type requestPort struct {
	slot      *slot
	timeout   time.Duration // Completion Timeout
	locked    bool          // a VMM holds its lock while an access waits
	requester *transaction.Requester
	ops       []op
	free      []int
	gone      bool       // the device is gone: requests fail at once
	silent    bool       // no completion has arrived since a Completion Timeout
	packet    tlp.Packet // scratch: the present request
	pad       []byte     // payload of a write that does not start or end at a double word
}

// op is one operation of the host: one or more requests that end together.
// Its index is the requests' cookie.
type op struct {
	left   int // requests outstanding, plus one until release
	failed bool
	config bool           // one of the requests is to configuration space
	status pcie.CplStatus // of the first request that failed

	// The end of the operation answers the VMM's access, or calls done.
	access *vfiouser.Access
	open   *atomic.Int32 // the count of unanswered accesses, decremented at the end
	done   func(e engine.Entry, ok bool, status pcie.CplStatus)
}

// defaultTimeout is the Completion Timeout of a front that does not say.
func defaultTimeout(front Front) time.Duration {
	if holdsLock(front) {
		return 800 * time.Millisecond
	}
	return time.Second
}

// holdsLock reports whether the front plugs devices into a QEMU, whose accesses hold its
// lock. Other clients of a slot's socket wait for their own accesses only.
func holdsLock(front Front) bool {
	vm, ok := front.(*VM)
	return ok && vm.QMP != ""
}

func newRequestPort(s *slot, cfg Config) *requestPort {
	return &requestPort{
		slot: s, timeout: cfg.CompletionTimeout, locked: holdsLock(cfg.Front), pad: make([]byte, pcie.MaxPayload+2*pcie.DW),
		requester: transaction.NewRequester(transaction.RequesterConfig{ID: rootID, Tags: hostTags}),
	}
}

// rootID is the Routing ID of the root complex, which the host's requests carry.
const rootID pcie.BDF = 0

// begin starts an operation. It ends when release was called and all its requests
// have ended.
func (r *requestPort) begin(_ engine.Entry, o op) int {
	if len(r.free) == 0 {
		r.ops = append(r.ops, op{})
		r.free = append(r.free, len(r.ops)-1)
	}
	id := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	o.left = 1
	r.ops[id] = o
	return id
}

// release ends the adding of requests to an operation.
func (r *requestPort) release(e engine.Entry, id int) { r.end(e, id, true, pcie.SuccessfulCompletion) }

// end ends one request of an operation, and with the last one the operation.
func (r *requestPort) end(e engine.Entry, id int, ok bool, status pcie.CplStatus) {
	o := &r.ops[id]
	if !ok && !o.failed {
		o.failed, o.status = true, status
	}
	if o.left--; o.left > 0 {
		return
	}
	ended := *o
	*o = op{}
	r.free = append(r.free, id)
	switch {
	case ended.done != nil:
		ended.done(e, !ended.failed, ended.status)
	case ended.failed:
		ended.access.Fail(nil)
	default:
		ended.access.Reply()
	}
	if ended.open != nil {
		ended.open.Add(-1)
	}
}

// request sends one non-posted request of an operation. The completion's data go
// to dst.
func (r *requestPort) request(e engine.Entry, id int, p *tlp.Packet, dst []byte) error {
	b := r.slot.binding
	if b == nil || r.gone {
		r.ops[id].left++
		r.end(e, id, false, pcie.UnsupportedRequest)
		return nil
	}
	if r.slot.held() || b.Room(e) < len(p.Data) || b.Room(e) == 0 || !r.requester.Begin(e.Now(), e.Now()+r.timeoutNow(&r.ops[id], e.Now()-b.Heard(e)), p, dst, uint64(id)) {
		b.Touch(e) // Transmit is called when there is room
		return errBusy
	}
	r.ops[id].left++
	r.ops[id].config = r.ops[id].config || p.Type.Config()
	// The link has room, so an error means that it goes down, which cancels the
	// outstanding requests.
	_ = r.slot.send(e, p)
	return nil
}

// holds reports whether a VMM holds its lock until the operation ends.
func (r *requestPort) holds(o *op) bool { return r.locked && o.access != nil }

// timeoutNow returns the Completion Timeout of a request that begins. While a VMM holds its
// lock, a request to a box that is silent, for the given time already, ends early after a
// Completion Timeout: the box may be gone.
func (r *requestPort) timeoutNow(o *op, silence time.Duration) time.Duration {
	if r.silent && r.holds(o) && silence > heardWithin {
		return r.timeout / silentPart
	}
	return r.timeout
}

// extension returns the time by which a request may exceed its deadline: slack, see
// slot.slack, or more for a configuration request. One that fails costs more than a late one:
// a guest that reads all ones while it looks for the device concludes that a BAR, or the
// device, does not exist, and does not look again. But a device that has let one request fail
// gets no more time until it answers. While a VMM holds its lock, a box gets none from when it
// is silent.
func (r *requestPort) extension(o transaction.Overdue, slack, heard time.Duration) time.Duration {
	op := &r.ops[o.Cookie]
	if op.config && !r.silent {
		slack = max(slack, min(configTimeouts*r.timeout, maxCompletionTime-answerTime)-o.Timeout)
	}
	if r.holds(op) {
		slack = min(slack, max(heard+heardWithin-o.Deadline, 0))
	}
	return slack
}

// post sends one posted request.
func (r *requestPort) post(e engine.Entry, p *tlp.Packet) error {
	b := r.slot.binding
	if b == nil || r.gone {
		return nil // the device is gone: drop the write
	}
	if r.slot.held() || b.Room(e) < len(p.Data) || b.Room(e) == 0 {
		b.Touch(e)
		return errBusy
	}
	p.Requester = rootID
	_ = r.slot.send(e, p) // the only other error is that the link is going down
	return nil
}

// read sends the requests for the bytes at addr from dst[*at:] on, and advances
// *at past those sent.
func (r *requestPort) read(e engine.Entry, id int, addr uint64, dst []byte, at *int) error {
	for *at < len(dst) {
		n := tlp.NextChunk(addr+uint64(*at), len(dst)-*at, pcie.MaxPayload)
		r.packet = tlp.Packet{Type: tlp.MRd}
		r.packet.SetMemory(addr+uint64(*at), n)
		if err := r.request(e, id, &r.packet, dst[*at:*at+n]); err != nil {
			return err
		}
		*at += n
	}
	return nil
}

// write posts the bytes src[*at:] to addr in requests of up to payload bytes, and
// advances *at past those sent.
func (r *requestPort) write(e engine.Entry, addr uint64, src []byte, payload int, at *int) error {
	for *at < len(src) {
		to := addr + uint64(*at)
		n := tlp.NextChunk(to, len(src)-*at, payload)
		r.packet = tlp.Packet{Type: tlp.MWr}
		r.packet.SetMemory(to, n)
		r.packet.Data = r.align(to, src[*at:*at+n])
		if err := r.post(e, &r.packet); err != nil {
			return err
		}
		*at += n
	}
	return nil
}

// align returns whole double words that hold src at addr's offset in the first
// one: src itself if it is aligned.
func (r *requestPort) align(addr uint64, src []byte) []byte {
	front := int(addr % pcie.DW)
	if front == 0 && len(src)%pcie.DW == 0 {
		return src
	}
	whole := (front + len(src) + pcie.DW - 1) &^ (pcie.DW - 1)
	pad := r.pad[:whole]
	clear(pad)
	copy(pad[front:], src)
	return pad
}

// config returns a configuration request for the double word that holds the n
// bytes at off.
func (r *requestPort) config(typ tlp.Type, off uint16, n int) *tlp.Packet {
	r.packet = tlp.Packet{Type: typ, Target: r.slot.id(), Register: off &^ 3, Length: 1, FirstBE: uint8(1<<n-1) << (off & 3) & 0xf}
	return &r.packet
}

// complete matches a completion with one of the host's requests.
func (r *requestPort) complete(e engine.Entry, p *tlp.Packet) {
	r.silent = false
	if res, ok := r.requester.Complete(p); ok && res.Done {
		r.end(e, int(res.Cookie), res.OK(), res.Status)
	}
}

// maxCompletionTime bounds a Completion Timeout that a slow link extends: QEMU gives
// an answer up after 5 s.
const maxCompletionTime = 4 * time.Second

const (
	// configTimeouts is how many Completion Timeouts a configuration request may take.
	configTimeouts = 3
	// heardWithin is the time after which a box that was not heard counts as silent here. A
	// link that is idle hears its peer every quarter of a second.
	heardWithin = 500 * time.Millisecond
	// silentPart is the part of a Completion Timeout that a request to a silent box has.
	silentPart = 8
	// answerTime is what the end of a request takes until the VMM has the answer.
	answerTime = time.Second
)

// slack returns the time by which requests to the device may exceed the given
// Completion Timeout at present. Where processors are busy, an answer takes as long to
// come through a link as the link's own acknowledgements do, and all ones would make a
// driver give up a device that works. The device itself cannot delay those.
func (s *slot) slack(e engine.Entry, timeout time.Duration) time.Duration {
	if s.binding == nil || s.gone {
		return 0
	}
	return max(min(s.binding.MaxDelay(e), maxCompletionTime)-timeout, 0)
}

// slack returns the time by which a request may exceed its deadline at present. If this process
// has stood still, or did not get a processor to read its sockets, the answer may lie in one of
// them. The silence of a box is judged by its link, unless a VMM holds its lock meanwhile.
func (r *requestPort) slack(e engine.Entry, o transaction.Overdue) time.Duration {
	b := r.slot.binding
	if b == nil {
		return 0
	}
	most := max(maxCompletionTime-answerTime-o.Timeout, 0)
	stood := e.StoodStill(o.Deadline - o.Timeout)
	slack := max(r.slot.slack(e, o.Timeout), min(stood, most))
	unread := b.Unread(e, o.Deadline)
	if !r.holds(&r.ops[o.Cookie]) {
		unread = b.Unheard(e, o.Deadline) + stood
	}
	return max(r.extension(o, slack, b.Heard(e)), min(unread, most))
}

// expire ends the requests whose Completion Timeout has passed.
func (r *requestPort) expire(e engine.Entry) {
	slack := func(o transaction.Overdue) time.Duration { return r.slack(e, o) }
	r.requester.Expire(e.Now(), slack, func(res transaction.Result) { r.timedOut(e, res) })
}

func (r *requestPort) timedOut(e engine.Entry, res transaction.Result) {
	r.silent = true
	r.slot.counters.timeouts.Add(1)
	r.end(e, int(res.Cookie), false, pcie.UnsupportedRequest)
}

// cancel ends all outstanding requests and refuses further ones: the device is
// gone. The slot may have another one then, while a VMM still uses this port.
func (r *requestPort) cancel(e engine.Entry) {
	r.gone = true
	r.requester.CancelAll(e.Now(), func(res transaction.Result) {
		r.end(e, int(res.Cookie), false, pcie.UnsupportedRequest)
	})
}

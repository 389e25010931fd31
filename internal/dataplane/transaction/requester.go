package transaction

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// DefaultQuarantine is how long the tag of a request that timed out stays
// unused: longer than any completion can be under way.
const DefaultQuarantine = time.Second

// RequesterConfig is what a Requester is built from.
type RequesterConfig struct {
	// ID is the Requester ID of the first requests; see SetID.
	ID pcie.BDF
	// Tags is the number of requests that can be outstanding, 1 to
	// pcie.MaxTags; the tags in use are 0 to Tags-1.
	Tags int
	// Quarantine is how long the tag of a request that timed out or was
	// canceled stays unused, so that its late completion is not taken for
	// that of another request. 0 means DefaultQuarantine, less means none.
	Quarantine time.Duration
}

// Outcome says how a request ended.
type Outcome uint8

// Outcomes.
const (
	// Completed: the last completion has come; Status says with what.
	Completed Outcome = iota
	// TimedOut: the deadline has passed (Completion Timeout, section 2.8).
	TimedOut
	// Canceled: CancelAll has ended it.
	Canceled
)

// String returns the name of the outcome in lower case.
func (o Outcome) String() string {
	switch o {
	case Completed:
		return "completed"
	case TimedOut:
		return "timed out"
	case Canceled:
		return "canceled"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Result is the state of a request after a completion, a timeout or a
// cancellation.
type Result struct {
	Cookie  uint64 // as given to Begin
	Tag     pcie.Tag
	Done    bool // the request is over and its tag given back
	Outcome Outcome
	// Status is that of the completion; anything but SuccessfulCompletion
	// ends the request. It is 0 where Outcome is not Completed.
	Status pcie.CplStatus
	// Poisoned says that a completion so far had EP set.
	Poisoned bool
	// N is how many bytes have arrived so far, from the first enabled byte
	// on, and Data the last of them: those of this completion. Data aliases
	// the payload of the completion.
	N    int
	Data []byte
	// Dst is the buffer given to Begin.
	Dst []byte
}

// OK reports whether the request is over and all its data good.
func (r *Result) OK() bool {
	return r.Done && r.Outcome == Completed && r.Status == pcie.SuccessfulCompletion && !r.Poisoned
}

// RequesterCounters count events since the Requester was built.
type RequesterCounters struct {
	Issued    uint64 // non-posted requests
	Succeeded uint64 // requests that ended with Successful Completion
	Failed    uint64 // requests that ended with another status
	TimedOut  uint64
	Canceled  uint64
	Poisoned  uint64 // completions with EP set
	// Unexpected counts completions that match no outstanding request
	// (Unexpected Completion, section 2.3.2), Late those that come for a
	// request that timed out or was canceled. Both are dropped.
	Unexpected uint64
	Late       uint64
}

// Requester issues non-posted requests and matches their completions.
//
// A tag goes around these states:
//
//	        Begin                last completion, error status
//	free ----------> outstanding ------------------------------> free
//	  ^                   |
//	  |                   | Expire, CancelAll
//	  +--- quarantined <--+
//	    after Quarantine
//
// Invariant: free, outstanding and quarantined tags add up to Tags.
type Requester struct {
	cfg      RequesterConfig
	slots    []slot
	free     fifo // tags, reused as late as possible
	held     fifo // quarantined tags by the time they are released
	first    int16
	last     int16 // list of outstanding slots by deadline
	inFlight int
	counters RequesterCounters
}

// NewRequester builds a Requester; Tags outside 1 to pcie.MaxTags is brought
// into that range.
func NewRequester(cfg RequesterConfig) *Requester {
	cfg.Tags = min(max(cfg.Tags, 1), pcie.MaxTags)
	if cfg.Quarantine == 0 {
		cfg.Quarantine = DefaultQuarantine
	}
	cfg.Quarantine = max(cfg.Quarantine, 0)
	r := &Requester{
		cfg:   cfg,
		slots: make([]slot, cfg.Tags),
		free:  newFIFO(cfg.Tags),
		held:  newFIFO(cfg.Tags),
		first: none, last: none,
	}
	for tag := range cfg.Tags {
		r.free.push(int16(tag))
	}
	return r
}

// SetID changes the Requester ID of the requests from now on: a function
// learns its bus and device number from each configuration write (section
// 2.2.6.2). Completions of requests that are out still carry the old one.
func (r *Requester) SetID(id pcie.BDF) { r.cfg.ID = id }

// ID returns the Requester ID of the requests from now on.
func (r *Requester) ID() pcie.BDF { return r.cfg.ID }

// Begin gives p the Requester ID and a free tag and remembers the request; p is
// then ready to be sent. It reports false, and p is as before, when no tag is
// free. A posted request gets the Requester ID only: it always begins and has
// no result.
//
// The bytes that the request reads are put into dst, from the first enabled
// byte on ([tlp.Packet.ByteRange]; the original value for an atomic); what does
// not fit is dropped, and dst may be nil where Result.Data serves. The
// Requester owns dst until a Result with Done.
func (r *Requester) Begin(now, deadline time.Duration, p *tlp.Packet, dst []byte, cookie uint64) bool {
	if !p.Type.NonPosted() {
		p.Requester = r.cfg.ID
		return true
	}
	r.release(now)
	tag, ok := r.free.pop()
	if !ok {
		return false
	}
	p.Requester = r.cfg.ID
	p.Tag = pcie.Tag(tag)
	r.slots[tag].begin(p, deadline, dst, cookie)
	r.link(tag)
	r.inFlight++
	r.counters.Issued++
	return true
}

// Complete takes one completion. It reports false when the completion belongs
// to no outstanding request or does not fit it; such a completion is counted
// and has no effect. p and p.Data are not kept.
func (r *Requester) Complete(p *tlp.Packet) (Result, bool) {
	if int(p.Tag) >= len(r.slots) || !p.Type.Completion() {
		r.counters.Unexpected++
		return Result{}, false
	}
	s := &r.slots[p.Tag]
	if s.state != outstanding || p.Requester != s.requester {
		if s.state == quarantined && p.Requester == s.requester {
			r.counters.Late++
		} else {
			r.counters.Unexpected++
		}
		return Result{}, false
	}
	data, ok := s.take(p)
	if !ok {
		r.counters.Unexpected++
		return Result{}, false
	}
	if p.EP {
		r.counters.Poisoned++
	}
	res := s.result(p.Tag)
	res.Status = p.Status
	res.Data = data
	res.Done = s.count == 0 || p.Status != pcie.SuccessfulCompletion
	if res.Done {
		r.finish(int16(p.Tag), p.Status)
	}
	return res, true
}

// finish gives back the tag of a request that its last completion has ended.
func (r *Requester) finish(tag int16, status pcie.CplStatus) {
	if status == pcie.SuccessfulCompletion {
		r.counters.Succeeded++
	} else {
		r.counters.Failed++
	}
	r.unlink(tag)
	r.inFlight--
	r.slots[tag].clear(unused)
	r.free.push(tag)
}

// Expire ends the requests whose deadline is not after now and calls fn with
// the result of each, in the order of the deadlines; fn may call Begin.
func (r *Requester) Expire(now time.Duration, fn func(Result)) {
	for r.first != none && r.slots[r.first].deadline <= now {
		r.counters.TimedOut++
		r.abandon(now, r.first, TimedOut, fn)
	}
}

// CancelAll ends every outstanding request and calls fn, which must not call
// Begin, with the result of each. Completions that still come are dropped.
func (r *Requester) CancelAll(now time.Duration, fn func(Result)) {
	for r.first != none {
		r.counters.Canceled++
		r.abandon(now, r.first, Canceled, fn)
	}
}

func (r *Requester) abandon(now time.Duration, tag int16, why Outcome, fn func(Result)) {
	s := &r.slots[tag]
	res := s.result(pcie.Tag(tag))
	res.Done = true
	res.Outcome = why
	r.unlink(tag)
	r.inFlight--
	s.clear(quarantined)
	// The deadline has become that of the quarantine. now never goes
	// backwards, so that the queue stays in order.
	s.deadline = machine.After(now, r.cfg.Quarantine)
	r.held.push(tag)
	fn(res)
}

// release ends the quarantines that are over.
func (r *Requester) release(now time.Duration) {
	for {
		tag, ok := r.held.peek()
		if !ok || r.slots[tag].deadline > now {
			return
		}
		r.held.pop()
		r.slots[tag].clear(unused)
		r.free.push(tag)
	}
}

// Wake returns when Expire wants to be called or, where no tag is free, when
// Begin can succeed again; Never when only a completion can bring change.
func (r *Requester) Wake() time.Duration {
	wake := machine.Never
	if r.first != none {
		wake = r.slots[r.first].deadline
	}
	if tag, ok := r.held.peek(); ok && r.free.len() == 0 {
		wake = min(wake, r.slots[tag].deadline)
	}
	return wake
}

// InFlight returns the number of outstanding requests.
func (r *Requester) InFlight() int { return r.inFlight }

// Free returns how many requests can begin now.
func (r *Requester) Free(now time.Duration) int {
	r.release(now)
	return r.free.len()
}

// Tags returns the number of tags, free or not.
func (r *Requester) Tags() int { return len(r.slots) }

// Counters returns a copy of the counters.
func (r *Requester) Counters() RequesterCounters { return r.counters }

// Package transaction is the requester and the completer side of the PCI
// Express transaction layer as pure machines: tags, matching and reassembly of
// completions, completion timeouts; answering reads, writes and atomics.
//
// After construction, nothing in it allocates, apart from SetTags, starts goroutines or reads a
// clock. Times are arguments, relative to a start that the caller chooses.
//
// Section numbers refer to the PCI Express Base Specification, revision 6.0.
package transaction

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// DefaultQuarantine is the time for which the tag of a request that timed out
// stays unused: longer than a completion is in flight, as a rule.
const DefaultQuarantine = time.Second

// RequesterConfig configures a Requester.
type RequesterConfig struct {
	// ID is the Requester ID of the first requests; see SetID.
	ID pcie.BDF
	// Tags is the number of requests that can be outstanding, 1 to
	// pcie.MaxTags; the tags in use are 0 to Tags-1. See SetTags.
	Tags int
	// Quarantine is the time for which the tag of a request that timed out or
	// was canceled stays unused, unless its late completion comes: that could be
	// mistaken for the completion of another request. Afterwards the tag is used
	// only while no other is free, since the completion may come much later.
	// 0 means DefaultQuarantine, a negative value none.
	Quarantine time.Duration
}

// Outcome is the way in which a request ended.
type Outcome uint8

// Outcomes.
const (
	// Completed: the last completion has arrived; Status is its status.
	Completed Outcome = iota
	// TimedOut: the deadline has passed (Completion Timeout, section 2.8).
	TimedOut
	// Canceled: CancelAll has ended it.
	Canceled
)

// String returns the name of the outcome in lower case.
func (o Outcome) String() string {
	if names := [...]string{"completed", "timed out", "canceled"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Result is the state of a request after a completion, a timeout or a
// cancellation.
type Result struct {
	Cookie  uint64 // as given to Begin
	Tag     pcie.Tag
	Done    bool // the request has ended and released its tag
	Outcome Outcome
	// Status is that of the completion; anything but SuccessfulCompletion
	// ends the request. It is 0 where Outcome is not Completed.
	Status pcie.CplStatus
	// Poisoned is set when a completion so far had EP set.
	Poisoned bool
	// N is the number of bytes that have arrived so far, from the first enabled
	// byte on. Data are the bytes of this completion; they alias its payload.
	N    int
	Data []byte
	// Dst is the buffer given to Begin.
	Dst []byte
}

// OK reports whether the request has succeeded and all its data is good.
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
	// (Unexpected Completion, section 2.3.2). Late counts completions of
	// requests that timed out or were canceled. Both are dropped.
	Unexpected uint64
	Late       uint64
}

// Requester issues non-posted requests and matches their completions.
//
// The states of a tag:
//
//	        Begin                last completion, error status
//	free ----------> outstanding ------------------------------> free
//	  ^                 |   ^
//	  |                 |   | Begin, after Quarantine, if none is free
//	  |                 v   |
//	  +------------- quarantined
//	late completion
//
// A request becomes quarantined by Expire and CancelAll.
//
// Invariant: free, outstanding and quarantined tags add up to Tags. Those that SetTags has
// taken out of use, with requests in progress, come in addition.
type Requester struct {
	cfg      RequesterConfig
	slots    []slot        // of all tags that were ever in use
	free     fifo          // tags, reused as late as possible
	open     list          // outstanding tags by deadline
	held     list          // quarantined tags by the end of the quarantine
	aged     list          // those whose quarantine has ended
	slack    time.Duration // by which the first one of open may exceed its deadline
	counters RequesterCounters
}

// NewRequester returns a Requester. It clamps Tags to the range 1 to
// pcie.MaxTags.
func NewRequester(cfg RequesterConfig) *Requester {
	cfg.Tags = min(max(cfg.Tags, 1), pcie.MaxTags)
	cfg.Quarantine = max(cmp.Or(cfg.Quarantine, DefaultQuarantine), 0)
	r := &Requester{
		cfg: cfg, slots: make([]slot, cfg.Tags), free: newFIFO(cfg.Tags), open: newList(), held: newList(), aged: newList(),
	}
	for tag := range cfg.Tags {
		r.free.push(int16(tag))
	}
	return r
}

// SetID changes the Requester ID of future requests: a function captures its bus
// and device number from each configuration write (section 2.2.6.2). Completions
// of outstanding requests still carry the old ID.
func (r *Requester) SetID(id pcie.BDF) { r.cfg.ID = id }

// SetTags changes the number of tags, and clamps it to the range 1 to pcie.MaxTags.
// Outstanding requests go on, and quarantines stay, so a completion that comes later ends no
// other request. Tags from n on are not used again; Begin takes the rest.
func (r *Requester) SetTags(n int) {
	n = min(max(n, 1), pcie.MaxTags)
	if n == r.cfg.Tags {
		return
	}
	for len(r.slots) < n {
		r.slots = append(r.slots, slot{prev: none, next: none})
	}
	old := r.free
	r.free = newFIFO(n)
	for tag, ok := old.pop(); ok; tag, ok = old.pop() {
		if int(tag) < n {
			r.free.push(tag)
		}
	}
	for tag := r.aged.first; tag != none; {
		next := r.slots[tag].next
		if int(tag) >= n {
			r.aged.remove(r.slots, tag)
			r.slots[tag].state = retired
		}
		tag = next
	}
	for tag := r.cfg.Tags; tag < n; tag++ {
		switch s := &r.slots[tag]; s.state {
		case unused:
			r.free.push(int16(tag))
		case retired:
			s.state = aged
			r.aged.insert(r.slots, int16(tag), r.aged.last)
		}
	}
	r.cfg.Tags = n
}

// ID returns the Requester ID of future requests.
func (r *Requester) ID() pcie.BDF { return r.cfg.ID }

// Begin sets the Requester ID and a free tag in p and records the request; p is
// then ready to be sent. When no tag is free, it returns false and leaves p
// unchanged. A posted request gets the Requester ID only: it always begins and
// has no result.
//
// Complete copies the bytes that the request reads into dst, from the first
// enabled byte on ([tlp.Packet.ByteRange]; the original value for an atomic), and
// drops bytes that do not fit. dst may be nil for a caller that uses Result.Data.
// The Requester owns dst until a Result with Done.
func (r *Requester) Begin(now, deadline time.Duration, p *tlp.Packet, dst []byte, cookie uint64) bool {
	if !p.Type.NonPosted() {
		p.Requester = r.cfg.ID
		return true
	}
	r.release(now)
	tag, ok := r.free.pop()
	if !ok {
		if tag = r.aged.first; tag == none {
			return false
		}
		r.aged.remove(r.slots, tag)
	}
	p.Requester = r.cfg.ID
	p.Tag = pcie.Tag(tag)
	r.slots[tag].begin(p, now, deadline, dst, cookie)
	r.link(tag)
	r.counters.Issued++
	return true
}

// Complete processes one completion. It returns false when the completion
// belongs to no outstanding request or does not fit it; such a completion is
// counted and has no effect. Complete keeps no reference to p or p.Data.
func (r *Requester) Complete(p *tlp.Packet) (Result, bool) {
	if int(p.Tag) >= len(r.slots) || !p.Type.Completion() {
		r.counters.Unexpected++
		return Result{}, false
	}
	s := &r.slots[p.Tag]
	if s.state != outstanding || p.Requester != s.requester {
		if s.state >= quarantined && p.Requester == s.requester {
			r.late(p)
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

// late takes a completion of a request that has ended. After the last one the tag is free.
func (r *Requester) late(p *tlp.Packet) {
	r.counters.Late++
	s := &r.slots[p.Tag]
	if _, ok := s.take(p); !ok || s.count > 0 && p.Status == pcie.SuccessfulCompletion {
		return
	}
	switch s.state {
	case quarantined:
		r.held.remove(r.slots, int16(p.Tag))
	case aged:
		r.aged.remove(r.slots, int16(p.Tag))
	}
	r.put(int16(p.Tag))
}

// put takes back a tag that is in no list.
func (r *Requester) put(tag int16) {
	r.slots[tag].clear(unused)
	if int(tag) < r.cfg.Tags {
		r.free.push(tag)
	}
}

// finish releases the tag of a request after its last completion.
func (r *Requester) finish(tag int16, status pcie.CplStatus) {
	if status == pcie.SuccessfulCompletion {
		r.counters.Succeeded++
	} else {
		r.counters.Failed++
	}
	r.unlink(tag)
	r.put(tag)
}

// Overdue is a request whose deadline has passed.
type Overdue struct {
	Cookie   uint64 // as given to Begin
	Deadline time.Duration
	Timeout  time.Duration // between Begin and Deadline
}

// SlackOf returns a function for Expire that asks slack; nil: none.
func SlackOf(slack func(deadline, timeout time.Duration) time.Duration) func(Overdue) time.Duration {
	if slack == nil {
		return nil
	}
	return func(o Overdue) time.Duration { return slack(o.Deadline, o.Timeout) }
}

// Expire ends the requests whose deadline is not after now, and ends the
// quarantines that are over. It calls fn with the result of each request, in the order of the
// deadlines. fn may call Begin. slack returns the
// time by which a request may exceed its deadline at present; nil: none. Expire calls it
// when a deadline has passed, and again when the time has passed that it returned.
func (r *Requester) Expire(now time.Duration, slack func(Overdue) time.Duration, fn func(Result)) {
	r.release(now)
	for r.open.first != none && machine.After(r.slots[r.open.first].deadline, r.slack) <= now {
		if slack != nil {
			if s := slack(r.slots[r.open.first].overdue()); s > r.slack {
				r.slack = s
				continue
			}
		}
		r.counters.TimedOut++
		r.abandon(now, r.open.first, TimedOut, fn)
	}
}

// CancelAll ends every outstanding request and calls fn with the result of each.
// fn must not call Begin. Completions that still arrive are dropped.
func (r *Requester) CancelAll(now time.Duration, fn func(Result)) {
	for r.open.first != none {
		r.counters.Canceled++
		r.abandon(now, r.open.first, Canceled, fn)
	}
}

func (r *Requester) abandon(now time.Duration, tag int16, why Outcome, fn func(Result)) {
	s := &r.slots[tag]
	res := s.result(pcie.Tag(tag))
	res.Done = true
	res.Outcome = why
	r.unlink(tag)
	s.state, s.dst = quarantined, nil
	// deadline is now the end of the quarantine. now never goes backwards, so
	// the list stays in order.
	s.deadline = machine.After(now, r.cfg.Quarantine)
	r.held.insert(r.slots, tag, r.held.last)
	fn(res)
}

// release ends the quarantines that are over.
func (r *Requester) release(now time.Duration) {
	for tag := r.held.first; tag != none && r.slots[tag].deadline <= now; tag = r.held.first {
		r.held.remove(r.slots, tag)
		if int(tag) >= r.cfg.Tags {
			r.slots[tag].state = retired
			continue
		}
		r.slots[tag].state = aged
		r.aged.insert(r.slots, tag, r.aged.last)
	}
}

// Wake returns the time of the next call to Expire or, when no tag is free, the
// time when Begin can succeed again. It returns machine.Never when only a
// completion can change the state.
func (r *Requester) Wake() time.Duration {
	wake := machine.Never
	if r.open.first != none {
		wake = machine.After(r.slots[r.open.first].deadline, r.slack)
	}
	if tag := r.held.first; tag != none && r.free.len()+r.aged.n == 0 {
		wake = min(wake, r.slots[tag].deadline)
	}
	return wake
}

// InFlight returns the number of outstanding requests.
func (r *Requester) InFlight() int { return r.open.n }

// Free returns the number of requests that can begin now.
func (r *Requester) Free(now time.Duration) int {
	r.release(now)
	return r.free.len() + r.aged.n
}

// Tags returns the number of tags that Begin uses, free and in use.
func (r *Requester) Tags() int { return r.cfg.Tags }

// Counters returns a copy of the counters.
func (r *Requester) Counters() RequesterCounters { return r.counters }

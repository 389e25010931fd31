package gpuerr

import (
	"encoding/json"
	"fmt"
	"time"
)

// Service says whether a GPU may get work.
type Service uint8

// Services:
//
//	         ┌── reset ──┐
//	         ▼           │
//	    InService ─▶ ResetDue
//	     │     ▲         │
//	     ▼     └─ reset ─┤
//	OutOfService ── time ┘
const (
	InService    Service = iota
	ResetDue             // the GPU is to be reset before it gets work
	OutOfService         // it gets no work for a while, and is reset then
	services
)

// String names the service.
func (s Service) String() string {
	if s >= services {
		return fmt.Sprintf("Service(%d)", uint8(s))
	}
	return [...]string{"in service", "reset due", "out of service"}[s]
}

// Health follows the errors of one GPU, for an agent without a manager: it takes errors,
// says what they require, and returns the GPU to service by itself, later after each
// time that it was out of service. A program's errors do not take a GPU out of
// service. The zero value is a GPU in service.
type Health struct {
	Backoff Backoff // times out of service; zero: 10 minutes to a day

	recent []Occurrence
	due    bool      // a reset
	until  time.Time // of the time out of service
	times  int       // out of service
	back   time.Time // last return to service
	why    Class
}

func (h *Health) backoff() Backoff {
	if h.Backoff == (Backoff{}) {
		return Backoff{Base: 10 * time.Minute, Max: day}
	}
	return h.Backoff
}

// Report takes errors with one code and returns the action that they require now.
func (h *Health) Report(now time.Time, code uint32, count uint64) (a Action, escalated bool) {
	if count == 0 {
		return Ignore, false
	}
	h.recent = Append(h.recent, Occurrence{code, count, now})
	a, escalated = Assess(h.recent, code, now)
	if a < Reset {
		return a, escalated
	}
	h.due, h.why = true, Lookup(code)
	if a == Replace && h.until.IsZero() {
		if !h.back.IsZero() && now.Sub(h.back) >= h.backoff().Max {
			h.times = 0 // it was in service for long
		}
		h.times++
	}
	if a == Replace || !h.until.IsZero() { // a further error starts the time again
		h.until = now.Add(h.backoff().After(h.times))
	}
	return a, escalated
}

// Service returns the state, and the error that led to it.
func (h *Health) Service(now time.Time) (Service, Class) {
	switch {
	case now.Before(h.until):
		return OutOfService, h.why
	case h.due:
		return ResetDue, h.why
	}
	return InService, Class{}
}

// Reset tells that the GPU was reset, and reports whether it is in service again. A reset
// does not shorten the time out of service.
func (h *Health) Reset(now time.Time) bool {
	if now.Before(h.until) {
		return false
	}
	h.due, h.until, h.back = false, time.Time{}, now
	return true
}

// Clamp takes over times that a clock has told which may have been set since, such as those of a
// file: the time out of service is at most as long as it was made, and no error is later than now.
// A clock that is set after Clamp does not change the time out of service.
func (h *Health) Clamp(now time.Time) {
	if left := h.until.Sub(now); left > 0 {
		h.until = now.Add(min(left, h.backoff().After(h.times)))
	}
	if h.back.After(now) {
		h.back = now
	}
	for i := range h.recent {
		if o := &h.recent[i]; o.Time.After(now) {
			o.Time = now
		}
	}
}

// Known reports whether there is anything to remember of the GPU.
func (h *Health) Known() bool { return h.due || len(h.recent) > 0 || h.times > 0 || !h.until.IsZero() }

// Wake returns when the GPU's time out of service ends; zero: it is not.
func (h *Health) Wake() time.Time { return h.until }

// record is a Health in JSON.
type record struct {
	Recent []Occurrence `json:"recent,omitempty"`
	Due    bool         `json:"reset_due,omitempty"`
	Until  time.Time    `json:"until,omitzero"`
	Times  int          `json:"times,omitempty"`
	Back   time.Time    `json:"back,omitzero"`
	Code   uint32       `json:"code,omitempty"`
}

// MarshalJSON writes the state, without Backoff.
func (h *Health) MarshalJSON() ([]byte, error) {
	return json.Marshal(record{h.recent, h.due, h.until, h.times, h.back, h.why.Code})
}

// UnmarshalJSON reads the state, and keeps Backoff.
func (h *Health) UnmarshalJSON(text []byte) error {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return err
	}
	if len(r.Recent) > maxOccurrences {
		r.Recent = r.Recent[len(r.Recent)-maxOccurrences:]
	}
	*h = Health{Backoff: h.Backoff, recent: r.Recent, due: r.Due, until: r.Until, times: min(max(r.Times, 0), maxTimes), back: r.Back}
	if r.Due || !r.Until.IsZero() {
		h.why = Lookup(r.Code)
	}
	return nil
}

// maxTimes bounds what a file says: the time out of service does not grow beyond it.
const maxTimes = 64

// Repair tells that a person has repaired the GPU: it is in service at once.
func (h *Health) Repair(now time.Time) { h.due, h.until, h.back = false, time.Time{}, now }

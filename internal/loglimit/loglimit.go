// Package loglimit bounds what a proxy logs. A guest, a peer or a device can cause
// many lines of a log at any rate, so each cause has an allowance for each slot. So do the
// programs of a share, for each share and each of its GPUs.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// burst is how many lines of one cause and slot or share pass at once: several attaches,
	// with their failures, in a row.
	burst = 50
	// interval is the time after which one more passes. A cause that goes on for a
	// day fills about a megabyte.
	interval = 10 * time.Second
	// maxCauses bounds the memory. There are fewer messages times slots; beyond it
	// the others share one allowance.
	maxCauses = 4096
)

// Handler is a slog.Handler that drops lines beyond the allowance of their cause:
// their level, message and attributes "slot", "share" and "gpu". The next line of a cause that passes
// has the number of dropped ones in the attribute "suppressed". Lines of level
// Debug are not limited: they are asked for.
type Handler struct {
	next  slog.Handler
	state *state // shared by the handlers that WithAttrs and WithGroup return
	of    string // what its lines are of
}

type state struct {
	suppressed atomic.Uint64

	mu     sync.Mutex // guards causes
	causes map[cause]*allowance
	swept  time.Time // the last search for causes that are over
}

type cause struct {
	level       slog.Level
	message, of string
}

// allowance is a token bucket in time: a line costs interval, and burst of them
// may be spent in advance.
type allowance struct {
	until      time.Time // when all is available again
	suppressed uint64    // lines since the last one that passed
}

// New returns a handler that passes lines to next.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, state: &state{causes: map[cause]*allowance{}}}
}

// Suppressed returns the number of dropped lines.
func (h *Handler) Suppressed() uint64 { return h.state.suppressed.Load() }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		out.note(a)
	}
	return &out
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	out := *h
	out.next = h.next.WithGroup(name)
	return &out
}

// note notes the slot, share or GPU of a line.
func (h *Handler) note(a slog.Attr) {
	switch a.Key {
	case "slot", "share", "gpu":
		h.of += a.Key + "=" + a.Value.String() + "\x00"
	}
}

// Handle implements slog.Handler. It takes the time from the record.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.next.Handle(ctx, r)
	}
	line := *h
	r.Attrs(func(a slog.Attr) bool {
		line.note(a)
		return true
	})
	missed, ok := h.state.spend(cause{r.Level, r.Message, line.of}, r.Time)
	if !ok {
		return nil
	}
	if missed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("suppressed", missed))
	}
	return h.next.Handle(ctx, r)
}

// spend takes a line from the allowance of its cause. It returns the number of
// lines that were dropped before, or false if this one is dropped, too.
func (s *state) spend(c cause, now time.Time) (missed uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.allowance(c, now)
	if a.until.Before(now) {
		a.until = now
	}
	if a.until.Sub(now) > (burst-1)*interval {
		a.suppressed++
		s.suppressed.Add(1)
		return 0, false
	}
	a.until = a.until.Add(interval)
	missed, a.suppressed = a.suppressed, 0
	return missed, true
}

// sweepPause is the least time between two searches: each one looks at all causes.
const sweepPause = interval

// allowance returns that of a cause. To make room it forgets those that are whole: as they are
// over, no line of theirs would tell how many others were dropped, and Suppressed counts those.
func (s *state) allowance(c cause, now time.Time) *allowance {
	if a := s.causes[c]; a != nil {
		return a
	}
	if len(s.causes) >= maxCauses && now.Sub(s.swept) >= sweepPause {
		s.swept = now
		for other, a := range s.causes {
			if a.until.Before(now) {
				delete(s.causes, other)
			}
		}
	}
	if len(s.causes) >= maxCauses {
		c = cause{}
		if a := s.causes[c]; a != nil {
			return a
		}
	}
	a := new(allowance)
	s.causes[c] = a
	return a
}

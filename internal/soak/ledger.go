package soak

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// Account is what was done in a run.
type Account struct {
	// Asked are the bytes of all copies and accesses that were begun. Done are
	// those that came, every one compared; Lost are those of operations whose
	// failure was reported. Nothing else happens to a byte: Asked = Done + Lost.
	Asked uint64 `json:"bytes_asked"`
	Done  uint64 `json:"bytes_done"`
	Lost  uint64 `json:"bytes_lost"`

	Operations     uint64 `json:"operations"`
	LostOperations uint64 `json:"lost_operations"`
	PostedWrites   uint64 `json:"posted_writes"` // numbered ones, all found once and in order
	Interrupts     uint64 `json:"interrupts"`
	// Sessions are bindings that were attached; LostSessions ended in a
	// reported loss, BalancedSessions with the TLP counts of both ends compared.
	Sessions         uint64 `json:"sessions"`
	LostSessions     uint64 `json:"lost_sessions"`
	BalancedSessions uint64 `json:"balanced_sessions"`
	FailedAttaches   uint64 `json:"failed_attaches"`
}

// ledger keeps the account of a run, its violations, and what excuses losses.
type ledger struct {
	began time.Time

	mu         sync.Mutex // guards what follows
	account    Account
	excuses    []*excuse
	excused    time.Duration // in all
	excusedTo  time.Time
	violations []string
	count      int
	stacks     string // of all goroutines, when the first of them was stuck
}

// excuse is a time in which an operation or a binding may be lost.
type excuse struct {
	from, to time.Time
	why      string
}

const (
	maxViolations = 100
	maxExcuses    = 64
)

// add changes the account.
func (l *ledger) add(f func(a *Account)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.account)
}

func (l *ledger) total() Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.account
}

// violate notes what must not be.
func (l *ledger) violate(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; len(l.violations) < maxViolations {
		at := time.Since(l.began).Round(time.Millisecond)
		l.violations = append(l.violations, fmt.Sprintf("%v: %s", at, fmt.Sprintf(format, args...)))
	}
}

// stuck notes what does not end, and where everybody is.
func (l *ledger) stuck(format string, args ...any) {
	l.violate(format, args...)
	stacks := goroutineStacks()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stacks == "" {
		l.stacks = stacks
	}
}

func (l *ledger) violationCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// excuse lets operations and bindings be lost that are under way from now on
// until the end is told.
func (l *ledger) excuse(why string, from time.Time) (end func(to time.Time)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.excuses) == maxExcuses {
		l.excuses = slices.Delete(l.excuses, 0, 1)
	}
	e := &excuse{from: from, to: from.Add(time.Hour), why: why}
	l.excuses = append(l.excuses, e)
	return func(to time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		e.to = to
		if l.excusedTo.After(from) {
			from = l.excusedTo // already counted up to there
		}
		if to.After(from) {
			l.excused += to.Sub(from)
			l.excusedTo = to
		}
	}
}

// lose checks that a loss of what began at a time had a cause.
func (l *ledger) lose(began time.Time, format string, args ...any) {
	l.mu.Lock()
	excused := slices.ContainsFunc(l.excuses, func(e *excuse) bool { return began.Before(e.to) && time.Now().After(e.from) })
	l.mu.Unlock()
	if !excused {
		l.violate("lost without a cause: "+format, args...)
	}
}

package soak

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Account counts the work of a run.
type Account struct {
	// Asked counts the bytes of all copies and accesses. Done counts those received
	// and compared, Lost those of operations that reported a failure.
	// Invariant: Asked = Done + Lost.
	Asked uint64 `json:"bytes_asked"`
	Done  uint64 `json:"bytes_done"`
	Lost  uint64 `json:"bytes_lost"`

	Operations     uint64 `json:"operations"`
	LostOperations uint64 `json:"lost_operations"`
	PostedWrites   uint64 `json:"posted_writes"` // numbered; all arrived once and in order
	Interrupts     uint64 `json:"interrupts"`
	// PeerBytes are those of Done that GPUs exchanged without host memory, FarPeerBytes
	// those of them between two boxes; ServerBytes are those that device servers moved.
	PeerBytes    uint64 `json:"peer_bytes"`
	FarPeerBytes uint64 `json:"far_peer_bytes"`
	ServerBytes  uint64 `json:"server_bytes"`
	// Sessions counts the bindings that were attached. LostSessions ended in a
	// reported loss, BalancedSessions with equal TLP counters at both ends.
	Sessions         uint64 `json:"sessions"`
	LostSessions     uint64 `json:"lost_sessions"`
	BalancedSessions uint64 `json:"balanced_sessions"`
	FailedAttaches   uint64 `json:"failed_attaches"`
}

// ledger keeps the account of a run, its violations and its excuses for losses.
type ledger struct {
	began    time.Time
	progress func(format string, args ...any) // gets each violation at once

	mu         sync.Mutex // guards the fields below
	account    Account
	faults     []pathFault // the last ones
	excuses    []*excuse
	excused    time.Duration // total
	stalled    atomic.Int64  // nanoseconds in which the machine did not run this process
	excusedTo  time.Time
	violations []string
	count      int
	stacks     string // of all goroutines, at the first call of stuck
}

// excuse is a period in which an operation or a binding may be lost.
type excuse struct {
	from, to time.Time
	why      string
}

const (
	maxViolations = 100
	maxExcuses    = 64
	// A violation tells the faults of the paths in the time before it.
	toldFaults, toldTime = 12, 6 * time.Second
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

// end puts the violations and the time of the excuses into the report. A worker that is
// stuck may still go on.
func (l *ledger) end(rep *Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rep.ExcusedNS, rep.Violations, rep.Goroutines = l.excused.Nanoseconds(), slices.Clone(l.violations), l.stacks
}

// violate records a violation.
func (l *ledger) violate(format string, args ...any) {
	text := fmt.Sprintf("%v: %s", time.Since(l.began).Round(time.Millisecond), fmt.Sprintf(format, args...))
	l.mu.Lock()
	l.count++
	room := len(l.violations) < maxViolations
	if room {
		l.violations = append(l.violations, text)
	}
	l.mu.Unlock()
	if room {
		l.progress("VIOLATION after %s", text)
	}
}

// stuck records a violation by something that does not end, with the stacks of all
// goroutines.
func (l *ledger) stuck(format string, args ...any) {
	l.violate(format, args...)
	stacks := goroutineStacks()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stacks == "" {
		l.stacks = stacks
	}
}

// overtime returns a function that returns by how much a limit is to be extended because
// the machine did not run this process since the last call: the work passes several
// threads, each of which waits as long.
func (l *ledger) overtime() (more func() time.Duration) {
	seen, left := l.stalled.Load(), mostOvertime
	return func() time.Duration {
		now := l.stalled.Load()
		d := min(stallGrace*time.Duration(now-seen), left)
		seen, left = now, left-d
		return d
	}
}

// mostOvertime is the most by which a limit is extended, all together: on a machine that
// stalls for a twelfth of the time a limit would never pass otherwise.
const mostOvertime = 5 * time.Minute

// limit calls late, once, if finished is not called within d and its overtime.
// finished waits for late.
func (l *ledger) limit(d time.Duration, late func()) (finished func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	more := l.overtime()
	wg.Go(func() {
		for ; d > 0; d = more() {
			t := time.NewTimer(d)
			select {
			case <-done:
				t.Stop()
				return
			case <-t.C:
			}
		}
		late()
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

func (l *ledger) violationCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// excuse begins a period in which operations and bindings may be lost; end ends
// it.
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

// lose records a violation unless an excuse covers a part of the time since began.
func (l *ledger) lose(began time.Time, format string, args ...any) {
	l.mu.Lock()
	excused := slices.ContainsFunc(l.excuses, func(e *excuse) bool { return began.Before(e.to) && time.Now().After(e.from) })
	l.mu.Unlock()
	if !excused {
		l.violate("lost without a cause: "+format+"; faults before: %s", append(args, l.faultsSince(began.Add(-toldTime)))...)
	}
}

// pathFault is a fault that excuses nothing.
type pathFault struct {
	at   time.Time
	what string
}

// tell keeps a fault of a path for the texts of violations.
func (l *ledger) tell(what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) == toldFaults {
		l.faults = slices.Delete(l.faults, 0, 1)
	}
	l.faults = append(l.faults, pathFault{time.Now(), what})
}

func (l *ledger) faultsSince(from time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := "none"
	for _, f := range l.faults {
		if f.at.After(from) {
			out += fmt.Sprintf(", %v ago %s", time.Since(f.at).Round(time.Millisecond), f.what)
		}
	}
	return strings.TrimPrefix(out, "none, ")
}

package share

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Debt is time of a GPU that a client used beyond its limit, and pays back by waiting. It is
// kept as time of the GPU, and not as the time of the next launch: each limit that the client has
// meanwhile pays its part, so a client whose limit changes often pays neither less nor more.
type Debt struct {
	owed  time.Duration // at from; negative while a launch runs, which the limit has paid for so far
	from  time.Duration // until then limits have paid
	until time.Duration // the client waits no longer than that, whatever its limits are
}

// newDebt returns a debt of which limits have paid nothing since a time.
func newDebt(owed, from time.Duration) Debt {
	return Debt{owed: min(max(owed, 0), maxExpected), from: from, until: machine.Never}
}

// Begin says that a launch begins, which a limit pays for while it runs. The client has paid.
func (d *Debt) Begin(now time.Duration) { *d = Debt{from: now, until: machine.Never} }

// Pay pays by the limit that held since the last call. It is called before a limit changes.
func (d *Debt) Pay(now time.Duration, limit PPM) {
	if now <= d.from {
		return
	}
	d.owed = max(d.owed-limit.Of(now-d.from), -maxExpected)
	d.from = now
}

// End says that the launch has ended, and how long it took. The client waits for it until a
// time at most.
func (d *Debt) End(now, took time.Duration, limit PPM, until time.Duration) {
	d.Pay(now, limit)
	d.owed = min(d.owed+min(took, maxExpected), maxExpected)
	d.until = until
}

// Due returns when the debt is paid, if the limit stays.
func (d *Debt) Due(limit PPM) time.Duration {
	if d.owed <= 0 || limit <= 0 {
		return d.from
	}
	// maxExpected times Whole is in range.
	of, all := time.Duration(limit), time.Duration(Whole)
	return min(d.until, machine.After(d.from, d.owed/of*all+(d.owed%of*all+of-1)/of))
}

// allowance is the time that a limit gave a client in a window. A limit that changes counts for
// as long as it held. It is a little too small for a while after a change, never too large.
type allowance struct {
	past  window        // what former limits gave
	of    time.Duration // length of the window
	since time.Duration // the limit holds
}

// newAllowance returns that of a client whose limit holds for a whole window.
func newAllowance(of time.Duration, buckets int, now time.Duration) allowance {
	a := allowance{past: newWindow(of, buckets), of: of}
	a.since = a.shift(now) - of
	return a
}

// shift keeps the window before the first time above zero.
func (a *allowance) shift(now time.Duration) time.Duration { return now + a.of }

// change says that a limit ends.
func (a *allowance) change(now time.Duration, limit PPM) {
	now = a.shift(now)
	a.past.move(now)
	for from := max(a.since, now-a.of); from < now; {
		n := int64(from / a.past.length)
		end := min(now, time.Duration(n+1)*a.past.length)
		a.past.buckets[n%int64(len(a.past.buckets))] += limit.Of(end - from)
		from = end
	}
	a.since = now
}

// sum returns the time of the window before now.
func (a *allowance) sum(now time.Duration, limit PPM) time.Duration {
	now = a.shift(now)
	if now-a.since >= a.of {
		return limit.Of(a.of)
	}
	a.past.move(now)
	sum := limit.Of(now - a.since)
	for i, b := range a.past.buckets {
		if now%a.past.length == 0 || int64(i) != (a.past.last+1)%int64(len(a.past.buckets)) { // that one has begun before the window
			sum += b
		}
	}
	return sum
}

// steady reports whether the limit has held for a whole window.
func (a *allowance) steady(now time.Duration) bool { return a.shift(now)-a.since >= a.of }

package share

import "time"

const (
	// accountSpan is how finely an account knows when time was used.
	accountSpan = 500 * time.Millisecond
	// maxSpans is the number of spans of a window that moves by a bucket.
	maxSpans = int(geminiWindow/accountSpan) + 2
)

// Account is what a client has used, for a policy that begins again: so the end of an agent forgives
// nothing.
type Account struct {
	Used []time.Duration `json:"used_ns,omitempty"` // in each half second, the last one first
	Owed time.Duration   `json:"owed_ns,omitempty"` // beyond the limit
}

// Zero reports whether nothing was used.
func (a *Account) Zero() bool { return len(a.Used) == 0 && a.Owed <= 0 }

// owed returns what a limit has left of the debt after the time before the policy's zero, in which it paid, too.
func (a *Account) owed(before time.Duration, limit PPM) time.Duration {
	return max(min(a.Owed, maxExpected)-limit.Of(max(before, 0)), 0)
}

// Accountant is a policy whose limits count what clients have used before.
type Accountant interface {
	Policy
	// Account returns what a client has used of its limit.
	Account(now time.Duration, id ClientID) Account
	// Charge gives a client that has just joined what it had used some time ago. The time is
	// that of the policy, and use before its zero does not count.
	Charge(now time.Duration, id ClientID, a Account, ago time.Duration)
}

// spans returns the time used in each half second before now. Time of a bucket counts as used at
// its end.
func (u *usage) spans(now time.Duration) []time.Duration {
	if u.sum(now) == 0 {
		return nil
	}
	out := make([]time.Duration, maxSpans)
	used := 0
	for n := max(u.last-int64(len(u.buckets))+1, 0); n <= u.last; n++ {
		b := u.buckets[n%int64(len(u.buckets))]
		at := min(int((now-min(time.Duration(n+1)*u.length, now))/accountSpan), maxSpans-1)
		if out[at] += b; b > 0 {
			used = max(used, at+1)
		}
	}
	return out[:used]
}

// charge counts the spans of an account that ended some time ago.
func (u *usage) charge(now time.Duration, spans []time.Duration, ago time.Duration) {
	u.sum(now)
	for i, used := range spans[:min(len(spans), maxSpans)] {
		end := now - ago - time.Duration(i)*accountSpan
		if from := max(end-min(max(used, 0), accountSpan), 0); from < end {
			u.put(from, end)
		}
	}
}

// Account implements Accountant. A turn that is too long already counts as if it ended now.
func (p *gemini) Account(now time.Duration, id ClientID) Account {
	p.clock(now)
	p.charge()
	c := p.find(id)
	if c == nil || c.spec.Limit == Whole {
		return Account{}
	}
	debt := c.state.debt
	if used := p.now - p.from; c == p.holder && used > p.most {
		debt.End(p.now, used, c.spec.Limit, 0)
	} else if c != p.holder {
		debt.Pay(p.now, c.spec.Limit)
	}
	return Account{c.state.used.spans(p.now), max(debt.owed, 0)}
}

// Charge implements Accountant.
func (p *gemini) Charge(now time.Duration, id ClientID, a Account, ago time.Duration) {
	p.clock(now)
	if c := p.find(id); c != nil {
		owed := a.owed(ago-p.now, c.spec.Limit)
		ago = min(max(ago, 0), p.now)
		c.state.used.charge(p.now, a.Used, ago)
		c.state.debt = newDebt(owed, p.now-ago)
	}
}

// Account implements Accountant. A bucket has no time of use.
func (p *gaiapi) Account(now time.Duration, id ClientID) Account {
	p.clock(now)
	c := p.find(id)
	if c == nil || c.state.free {
		return Account{}
	}
	p.fill(c)
	return Account{Owed: max(-c.state.bucket, 0)}
}

// Charge implements Accountant.
func (p *gaiapi) Charge(now time.Duration, id ClientID, a Account, ago time.Duration) {
	p.clock(now)
	if c := p.find(id); c != nil {
		s := &c.state
		s.bucket, s.filled = -a.owed(ago-p.now, c.spec.Limit), p.now-min(max(ago, 0), p.now)
		s.free = s.free && s.bucket >= 0
		p.fill(c)
	}
}

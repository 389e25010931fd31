package engine

import "time"

// pace bounds the processor time of a group that always has more work: two devices of a
// tenant may write into each other for ever. The group works and rests in turn, so that
// the goroutines of its neighbours find a free processor half of the time. A group whose
// handlers run out of work is not slowed down, and a copy between two devices of some
// milliseconds is not either.
type pace struct {
	at     time.Duration // up to then credit is counted
	used   time.Duration // what the group has used up of paceBurst
	restTo time.Duration // until then it rests
}

const (
	// paceBurst is the processor time that a group may use at once. A timer of an idle
	// process may be a millisecond late, so rests are longer.
	paceBurst = 4 * time.Millisecond
	// paceShare is the time in which a group gets back a unit of it.
	paceShare = 2
	// restBudget is the budget of an entry during a rest: enough for the datagrams of
	// the tenant that are the reason of the entry.
	restBudget = 16
)

// spent notes that an entry which began at now took d, and left work undone.
func (p *pace) spent(now, d time.Duration, crowd int) {
	share := time.Duration(paceShare * max(crowd, 1))
	p.used = max(p.used-(now+d-p.at)/share, 0)
	p.at = now + d
	p.used = min(p.used+d, 2*paceBurst)
	if p.used >= paceBurst {
		p.restTo = p.at + share*(p.used-paceBurst/2)
	}
}

// Spent notes how long the present entry has taken so far, when the driver is about to
// end it. crowd is the number of groups for each processor that have work left, rounded
// up. A driver without a clock of its own does not call it: its groups never rest.
func (g *Group) Spent(d time.Duration, crowd int) {
	if g.Pending() {
		g.pace.spent(g.now, d, crowd)
	}
}

// Resting reports whether the group does only the work of a small budget now.
func (g *Group) Resting() bool { return g.now < g.pace.restTo }

package manager

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// agingTime is how long a lease waits before it goes ahead of all younger leases of
// its priority, whatever their tenants have. So no lease waits for ever behind those
// of tenants with fewer GPUs.
const agingTime = 10 * time.Minute

const (
	// maxQueued bounds the leases that wait.
	maxQueued = 20_000
	// positionsOneByOne is the number of positions in a transaction that are computed
	// one by one. Beyond it, as for a list, all of them are computed once.
	positionsOneByOne = 16
)

// waitingQueue is the leases that wait, by priority and tenant. It answers the position of a
// lease without putting all of them in order.
type waitingQueue map[int32]*queueClass

// queueClass is the waiting leases of one priority.
type queueClass struct {
	leases int
	lines  map[string]*queueLine // by tenant
}

// queueLine is the waiting leases of a tenant and a priority, oldest first.
type queueLine struct {
	keys []queueKey
	gpus []uint32 // what each of them requests
	sum  uint32   // of gpus
	// before[i] is the sum of gpus[:i]; nil: not computed since the last change.
	before []uint32
}

func (q waitingQueue) add(tenant string, k queueKey, gpus uint32) {
	c := q[k.priority]
	if c == nil {
		c = &queueClass{lines: map[string]*queueLine{}}
		q[k.priority] = c
	}
	l := c.lines[tenant]
	if l == nil {
		l = &queueLine{}
		c.lines[tenant] = l
	}
	at, _ := slices.BinarySearchFunc(l.keys, k, queueKey.compare)
	l.keys, l.gpus = slices.Insert(l.keys, at, k), slices.Insert(l.gpus, at, gpus)
	l.before = nil
	l.sum += gpus
	c.leases++
}

func (q waitingQueue) remove(tenant string, k queueKey) {
	c := q[k.priority]
	if c == nil || c.lines[tenant] == nil {
		return
	}
	l := c.lines[tenant]
	at, ok := slices.BinarySearchFunc(l.keys, k, queueKey.compare)
	if !ok {
		return
	}
	l.sum -= l.gpus[at]
	l.keys, l.gpus = slices.Delete(l.keys, at, at+1), slices.Delete(l.gpus, at, at+1)
	l.before = nil
	if len(l.keys) == 0 {
		delete(c.lines, tenant)
	}
	if c.leases--; c.leases == 0 {
		delete(q, k.priority)
	}
}

// len returns the number of leases that wait.
func (q waitingQueue) len() (n int) {
	for _, c := range q {
		n += c.leases
	}
	return n
}

// sums returns the line's before.
func (l *queueLine) sums() []uint32 {
	if l.before == nil {
		l.before = make([]uint32, len(l.gpus))
		for i := 1; i < len(l.gpus); i++ {
			l.before[i] = l.before[i-1] + l.gpus[i-1]
		}
	}
	return l.before
}

func (k queueKey) aged(now time.Time) bool { return now.UnixNano()-k.created >= int64(agingTime) }

// compareQueued compares two pending leases whose tenants have gpusA and gpusB GPUs:
// by priority, then those that have aged by their age, then the others by the GPUs of
// their tenants.
func (t *tx) compareQueued(a queueKey, gpusA uint32, b queueKey, gpusB uint32) int {
	oldA, oldB := a.aged(t.now), b.aged(t.now)
	switch {
	case a.priority != b.priority:
		return cmp.Compare(b.priority, a.priority)
	case oldA != oldB:
		return rankTrueFirst(oldA, oldB)
	case oldA:
		return a.compare(b)
	}
	return cmp.Or(cmp.Compare(gpusA, gpusB), a.compare(b))
}

func rankTrueFirst(a, b bool) int {
	if a == b {
		return 0
	}
	if a {
		return -1
	}
	return 1
}

// queuePosition returns the position of a lease in the queue, from 1: the order in
// which the leases would get GPUs if each of them fitted. 0: the lease is not pending.
//
// Each lease that gets GPUs counts against its tenant for the next ones. So a lease is
// ordered by the GPUs that its tenant will have when its turn comes, which grow along
// a line: the leases before it are a prefix of every line.
func (t *tx) queuePosition(id string) uint32 {
	t.reindex()
	if t.positionsAsked++; t.positionsAsked > positionsOneByOne {
		return t.allPositions()[id]
	}
	k := t.indexedLeases[id]
	c := t.waiting[k.queueKey.priority]
	if k.shape == "" || c == nil {
		return 0
	}
	own := c.lines[k.tenant]
	at, _ := slices.BinarySearchFunc(own.keys, k.queueKey, queueKey.compare)
	gpus := t.gpusAtTurn(k.tenant, k.queueKey.priority) + own.sums()[at]
	position := 1
	for priority, other := range t.waiting {
		if priority > k.queueKey.priority {
			position += other.leases
		}
	}
	for tenant, l := range c.lines {
		base, before := t.gpusAtTurn(tenant, k.queueKey.priority), l.sums()
		position += sort.Search(len(l.keys), func(i int) bool {
			return t.compareQueued(l.keys[i], base+before[i], k.queueKey, gpus) >= 0
		})
	}
	return uint32(position)
}

// allPositions returns the positions of all leases in the queue.
func (t *tx) allPositions() map[string]uint32 {
	if t.positions != nil {
		return t.positions
	}
	type turn struct {
		queueKey
		gpus uint32 // of the tenant
	}
	var turns []turn
	for priority, c := range t.waiting {
		for tenant, l := range c.lines {
			base, before := t.gpusAtTurn(tenant, priority), l.sums()
			for i, k := range l.keys {
				turns = append(turns, turn{k, base + before[i]})
			}
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return t.compareQueued(a.queueKey, a.gpus, b.queueKey, b.gpus) })
	t.positions = make(map[string]uint32, len(turns))
	for i, o := range turns {
		t.positions[o.id] = uint32(i + 1)
	}
	return t.positions
}

// gpusAtTurn returns how many GPUs a tenant will have when its leases of higher
// priority have got theirs.
func (t *tx) gpusAtTurn(tenant string, priority int32) uint32 {
	gpus := t.gpusOf(tenant)
	for p, c := range t.waiting {
		if l := c.lines[tenant]; p > priority && l != nil {
			gpus += l.sum
		}
	}
	return gpus
}

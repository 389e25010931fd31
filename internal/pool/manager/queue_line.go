package manager

import (
	"cmp"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// agingTime is how long a lease waits before it goes ahead of all younger leases of
// its priority, whatever their tenants have. So no lease waits for ever behind those
// of tenants with fewer GPUs.
const agingTime = 10 * time.Minute

const (
	// maxQueued bounds the leases that wait. A tenant may have as many of the places as
	// remain free: alone half of them, two tenants together three quarters.
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
	asks []ask // what each of them requests
	// total is the GPUs that all of them request, by model; anyModel: of all models.
	total map[string]milliGPU
}

// ask is the GPUs that a lease requests.
type ask struct {
	gpus  milliGPU
	model string // anyModel: not given
}

func (q waitingQueue) add(tenant string, k queueKey, a ask) {
	c := q[k.priority]
	if c == nil {
		c = &queueClass{lines: map[string]*queueLine{}}
		q[k.priority] = c
	}
	l := c.lines[tenant]
	if l == nil {
		l = &queueLine{total: map[string]milliGPU{}}
		c.lines[tenant] = l
	}
	at, _ := slices.BinarySearchFunc(l.keys, k, queueKey.compare)
	l.keys, l.asks = slices.Insert(l.keys, at, k), slices.Insert(l.asks, at, a)
	l.count(a, a.gpus)
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
	l.count(l.asks[at], -l.asks[at].gpus)
	l.keys, l.asks = slices.Delete(l.keys, at, at+1), slices.Delete(l.asks, at, at+1)
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

// of returns the number of leases of a tenant that wait.
func (q waitingQueue) of(tenant string) (n int) {
	for _, c := range q {
		if l := c.lines[tenant]; l != nil {
			n += len(l.keys)
		}
	}
	return n
}

// placeInQueue returns an error if a tenant has too many of the places of the queue. Its
// new lease has one of them already.
func (t *tx) placeInQueue(tenant string) error {
	t.reindex()
	all, own := t.waiting.len(), t.waiting.of(tenant)
	if all > maxQueued {
		return errorf(connect.CodeResourceExhausted, "the queue has %d leases, which is its limit; try again when some have got their GPUs", maxQueued)
	}
	if free := maxQueued - (all - 1); own-1 >= free {
		return errorf(connect.CodeResourceExhausted,
			"tenant %s has %s in the queue, and its %s kept for other tenants; try again when some have got their GPUs", tenant, plural.Count(own-1, "lease", "leases"), plural.Count(free, "free place is", "free places are"))
	}
	return nil
}

// count adds n GPUs, which may be the negative of a number, to the totals of a request.
func (l *queueLine) count(a ask, n milliGPU) {
	l.total[anyModel] += n
	if a.model == anyModel {
		return
	}
	if l.total[a.model] += n; l.total[a.model] == 0 {
		delete(l.total, a.model)
	}
}

func (k queueKey) aged(now time.Time) bool { return now.UnixNano()-k.created >= int64(agingTime) }

// compareQueued compares two pending leases whose tenants have the shares shareA and
// shareB: by priority, then those that have aged by their age, then the others by the
// shares.
func (t *tx) compareQueued(a queueKey, shareA float64, b queueKey, shareB float64) int {
	oldA, oldB := a.aged(t.now), b.aged(t.now)
	switch {
	case a.priority != b.priority:
		return cmp.Compare(b.priority, a.priority)
	case oldA != oldB:
		return rankTrueFirst(oldA, oldB)
	case oldA:
		return a.compare(b)
	}
	return cmp.Or(cmp.Compare(shareA, shareB), a.compare(b))
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
// which the leases would get GPUs if each of them fitted. 0: the lease is not pending. The
// leases of a gang have the position of the first of them.
//
// Each lease that gets GPUs counts against its tenant for the next ones. So a lease is
// ordered by the share that its tenant will have when its turn comes, which grows along
// a line: the leases before it are a prefix of every line.
func (t *tx) queuePosition(id string) uint32 {
	id = t.firstOfGang(id)
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
	share := 0.0
	for i, v := range t.lineShares(k.tenant, k.queueKey.priority, own) {
		if share = v; i == at {
			break
		}
	}
	position := 1
	for priority, other := range t.waiting {
		if priority > k.queueKey.priority {
			position += other.leases
		}
	}
	for tenant, l := range c.lines {
		for i, v := range t.lineShares(tenant, k.queueKey.priority, l) {
			if t.compareQueued(l.keys[i], v, k.queueKey, share) >= 0 {
				break
			}
			position++
		}
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
		share float64 // of the tenant
	}
	var turns []turn
	for priority, c := range t.waiting {
		for tenant, l := range c.lines {
			for i, share := range t.lineShares(tenant, priority, l) {
				turns = append(turns, turn{l.keys[i], share})
			}
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return t.compareQueued(a.queueKey, a.share, b.queueKey, b.share) })
	t.positions = make(map[string]uint32, len(turns))
	for i, o := range turns {
		t.positions[o.id] = uint32(i + 1)
	}
	return t.positions
}

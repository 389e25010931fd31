package manager

import (
	"crypto/sha256"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// liveNode is the part of a node's state that comes from its reports and is not
// stored: the node repeats it within a heartbeat.
type liveNode struct {
	last time.Time // time of the last report; zero: none since the manager started
	// silentSince is when the node's silence began: the time of the last report, or
	// later if the manager itself stalled or let the report wait.
	silentSince time.Time
	timeout     time.Duration // how long it may be silent
	// unanswered counts the reports that wait for the store. The node sends the next
	// one after the answer, so it is not silent meanwhile.
	unanswered int
	told       told
	observed   *dxpuv1.ObservedState
	index      *reportIndex // of a report; nil: none was needed
	digest     []byte       // of observed; nil: the next report counts as a different one
	rates      rates
	uses       uses
	runs       runs
	// certificate is the serial number of the certificate of the last report; "": none.
	certificate string
	published   uint64        // the newest durable revision of the desired state; 0: not known
	changed     chan struct{} // closed and replaced when the desired state changes
	watches     int           // open watches of the desired state
	unwatched   time.Time     // since when there is none; zero: since before the first report
}

// told is what stored events, or those on their way to the store, have told of a node.
type told struct {
	connected bool                  // that it reports
	lost      bool                  // that it is lost, and it has not reported since
	paths     *dxpuv1.ObservedState // which paths failed, as in this report; nil: none did
	budget    pathBudget
	two       time.Time // of two processes with its identity; zero: none did
}

// tell returns what events have told of a node, for changes. They are taken back if the
// transaction is not stored.
func (t *tx) tell(l *liveNode) *told {
	was := l.told
	t.undo = append(t.undo, func() { l.told = was })
	return &l.told
}

func (m *Manager) liveLocked(node string) *liveNode {
	l := m.live[node]
	if l == nil {
		l = &liveNode{changed: make(chan struct{})}
		m.live[node] = l
	}
	return l
}

func (l *liveNode) notifyDesired() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// watchGrace is how long a node may take to open its watch: longer than the longest
// pause between its attempts.
const watchGrace = 5 * time.Second

// announced returns the revision that the answer to a report names, if revision is the
// newest. A node of the previous version that learns of a revision while it has no
// watch cancels its next watch at once, and all that follow. So a node learns of it by
// its watch, unless the watch does not come: then it may hang elsewhere.
func (l *liveNode) announced(revision, applied uint64, now time.Time) uint64 {
	if l.watches > 0 {
		return revision
	}
	if l.unwatched.IsZero() {
		l.unwatched = now
	}
	if now.Sub(l.unwatched) < watchGrace {
		return applied
	}
	return revision
}

// watchEnds counts the end of a watch of a node's desired state; nil: it was not counted.
func (m *Manager) watchEnds(l *liveNode) {
	if l == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.watches--; l.watches == 0 {
		l.unwatched = m.cfg.Now()
	}
}

// connected reports whether a node reports at present.
func (t *tx) connected(node string) bool {
	l := t.live[node]
	return l != nil && !l.last.IsZero() && t.heard.Before(l.lostAt(t.now))
}

// changeConnectivity notes that a node has begun or ceased to report, or to take bindings.
func (t *tx) changeConnectivity(node string) {
	t.connectivityChanged[node], t.nodes.touched[node] = true, true
}

// lostAt returns when the node is lost if it remains silent.
func (l *liveNode) lostAt(now time.Time) time.Time {
	if l.unanswered > 0 {
		return now.Add(l.timeout)
	}
	return l.silentSince.Add(l.timeout)
}

// heartbeat returns the report interval for the current number of nodes.
func (t *tx) heartbeat() time.Duration {
	aRound := float64(t.cfg.ReportRate) * t.cfg.Heartbeat.Seconds() // reports
	return t.cfg.Heartbeat * max(1, time.Duration(math.Ceil(float64(t.nodes.len())/aRound)))
}

// lostTimeout returns how long a node with a report interval may be silent: as
// many heartbeats as LostAfter has of Config.Heartbeat.
func (t *tx) lostTimeout(heartbeat time.Duration) time.Duration {
	return max(t.cfg.LostAfter, time.Duration(float64(t.cfg.LostAfter)/float64(t.cfg.Heartbeat)*float64(heartbeat)))
}

// awayOrSchedule reports whether a node does not report although it has had
// time to find the manager, which may have just begun. If the time is not over,
// it schedules the node.
func (t *tx) awayOrSchedule(node string) bool {
	if t.connected(node) {
		return false
	}
	if l := t.live[node]; l != nil && !l.last.IsZero() {
		return true
	}
	return t.dueOrSchedule(subject{nodeSubject, node}, t.reconnected())
}

// reconnected returns when all living nodes have had time to find the manager, which may
// have just begun.
func (t *tx) reconnected() time.Time {
	return t.began.Add(reconnectTime + t.lostTimeout(t.heartbeat()))
}

// reconnectTime is how long nodes may take to find a manager that has just
// begun: the longest pause between their attempts is 3 s.
const reconnectTime = 5 * time.Second

// has reports whether a binding is one of a node. A node may report those of others.
func (t *tx) has(node, binding string) bool {
	b := t.bindings.get(binding)
	return b != nil && (b.HostID == node || b.BoxID == node)
}

// applied reports whether a node has applied the desired state of a revision
// and has examined itself since. A state that it applied before a restore does not count. A
// revision of before the restore is part of the first state of this incarnation, although its
// number may be larger.
func (t *tx) applied(node string, revision uint64) bool {
	applied := t.live[node].report().GetAppliedRevision()
	least := t.meta.FirstRevision
	if revision <= t.meta.Revision {
		least = max(least, revision)
	}
	return revision != 0 && applied >= least && applied <= t.meta.Revision
}

// confirmedGone reports whether a node has confirmed that nothing is left of a
// binding. dropped is the revision of the desired state without the binding.
func (t *tx) confirmedGone(node string, b *bindingRecord, dropped uint64) bool {
	return t.applied(node, dropped) && t.observed(node, b) == nil && (node != b.HostID || t.migrationAt(node, b) == nil)
}

// digestOf returns a digest of a report without the fields that change all the
// time and decide nothing: sequence number, counters, use and round-trip times.
func digestOf(s *dxpuv1.ObservedState) ([]byte, error) {
	sequence := s.Sequence
	s.Sequence = 0
	restore := []func(){func() { s.Sequence = sequence }}
	for _, slot := range s.Slots {
		b := slot.Binding
		if b == nil {
			continue
		}
		counters, use := b.Counters, b.Use
		b.Counters, b.Use = nil, 0
		restore = append(restore, func() { b.Counters, b.Use = counters, use })
		for _, p := range b.Paths {
			rtt := p.GetRttNs()
			if p != nil {
				p.RttNs = 0
				restore = append(restore, func() { p.RttNs = rtt })
			}
		}
	}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(s)
	for _, f := range restore {
		f()
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(raw)
	return sum[:], nil
}

// rates computes rates from the counters of successive reports of one node. It
// holds the last counters of each binding.
type rates map[string]rateSample

type rateSample struct {
	at             time.Time
	epoch          uint64
	sent, received uint64 // bytes
	sendRate       uint64 // bytes per second, of the interval that ended at time at
	receiveRate    uint64
}

// update sets the rates in a report that arrived at now, and forgets bindings
// that are not in it. It keeps the previous rate if two reports have the same
// time, and starts again if a counter has decreased.
func (r *rates) update(o *dxpuv1.ObservedState, now time.Time) {
	next := rates{}
	for _, s := range o.Slots {
		b := s.GetBinding()
		if b == nil {
			continue
		}
		old, known := (*r)[b.BindingId]
		known = known && old.epoch == b.Epoch
		c := b.Counters
		if c == nil {
			if known {
				next[b.BindingId] = old
			}
			continue
		}
		sample := rateSample{at: now, epoch: b.Epoch, sent: c.BytesSent, received: c.BytesReceived}
		switch elapsed := now.Sub(old.at); {
		case !known:
		case elapsed <= 0:
			sample = old
		default:
			sample.sendRate = perSecond(old.sent, c.BytesSent, elapsed)
			sample.receiveRate = perSecond(old.received, c.BytesReceived, elapsed)
		}
		c.SendRate, c.ReceiveRate = sample.sendRate, sample.receiveRate
		next[b.BindingId] = sample
	}
	*r = next
}

// perSecond returns the mean rate of a counter, 0 if the counter has decreased.
func perSecond(from, to uint64, elapsed time.Duration) uint64 {
	if to < from {
		return 0
	}
	v := float64(to-from) / elapsed.Seconds()
	if v >= math.MaxUint64 { // the node may report any value
		return math.MaxUint64
	}
	return uint64(v + 0.5)
}

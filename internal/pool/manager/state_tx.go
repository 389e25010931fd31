package manager

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// tx is one change of the pool, which happens as a whole or not at all. A
// transaction of readLocked only reads.
type tx struct {
	*state
	now            time.Time
	heard          time.Time // up to when the manager has heard the nodes
	cfg            *Config
	live           map[string]*liveNode
	oldMeta        *meta
	desiredChanged map[string]bool // nodes whose desired state has changed
	events         []*dxpuv1.Event
	call           *call         // the call that it serves; nil: none
	newPool        bool          // it creates the pool
	jump           time.Duration // of the wall clock, which an event of the transaction tells
	traceContext   string        // W3C trace context of the call, empty: not traced

	examined       map[subject]bool // marked subjects that were examined
	alarmed        []subject        // subjects that the clock marked
	undo           []func()         // take back what it has changed in memory, beside the records
	attempts       int              // to grant or replace GPUs
	grants         int
	movedPromises  map[string]bool // leases whose promises have moved
	positionsAsked int
	positions      map[string]uint32 // in the queue, by lease; nil: not computed
	indexFrozen    bool              // reindex does nothing
	tried          trial             // what a decision tries out
	opened         *opened           // nodes in maintenance during several tries; nil: none
	brief          bool              // decisions do not explain at length why they find no place
	explained      int               // decisions that did
	sizes          sizes             // of the pool; nil: not computed
}

// trial is what a decision supposes. The zero value is the present.
type trial struct {
	by     time.Time    // maintenance that is over by then does not count
	begins time.Time    // when a lease begins whose spec names no time; zero: now
	taken  *reservation // GPUs and slots that another lease will have
	needed *reservation // what the first lease of the queue needs of a lease that begins later; nil: nothing
}

func (t *tx) revision() uint64 {
	t.meta.Revision++
	return t.meta.Revision
}

// touch notes that a node's desired state has changed and returns its new
// revision. All changes of a transaction have one revision.
func (t *tx) touch(node string) uint64 {
	n := t.nodes.editUnindexed(node)
	if !t.desiredChanged[node] {
		t.desiredChanged[node] = true
		n.DesiredRevision = t.revision()
		n.ResourceVersion = n.DesiredRevision
	}
	return n.DesiredRevision
}

func (t *tx) editLease(id string) *leaseRecord {
	l := t.leases.edit(id)
	l.ResourceVersion = t.revision()
	return l
}

func (t *tx) event(e *dxpuv1.Event, format string, args ...any) {
	e.Revision = t.revision()
	e.Time = timestamppb.New(t.now)
	e.Message = truncate(fmt.Sprintf(format, args...), maxReason)
	if l := t.leases.get(e.LeaseId); l != nil && e.Tenant == "" {
		e.Tenant = l.spec.Tenant
	}
	if t.call != nil && e.Actor == "" {
		e.Actor = t.call.caller.Actor
	}
	t.events = append(t.events, e)
	t.remember(e)
}

// changes returns the number of records and events that the transaction changes.
func (t *tx) changes() int {
	n := len(t.events)
	if t.newPool {
		n++
	}
	for _, of := range t.tables() {
		n += of.changed()
	}
	return n
}

// beginLocked starts a transaction, which ends with queueLocked or rollback.
func (m *Manager) beginLocked(now time.Time) *tx {
	t := m.readLocked(now)
	next := *t.meta
	t.oldMeta, t.meta = t.meta, &next
	t.desiredChanged, t.examined, t.movedPromises = map[string]bool{}, map[subject]bool{}, map[string]bool{}
	return t
}

// readLocked returns the present state for reading.
func (m *Manager) readLocked(now time.Time) *tx {
	return &tx{state: m.state, now: now, heard: m.heardLocked(now), cfg: &m.cfg, live: m.live}
}

func (t *tx) records() map[string]any {
	records := map[string]any{metaKey: t.meta}
	for _, of := range t.tables() {
		of.collect(records)
	}
	t.packEnded(records)
	return records
}

// rollback takes all changes back. Marked subjects remain to be examined.
func (t *tx) rollback() {
	t.state.meta = t.oldMeta
	for _, of := range t.tables() {
		of.restore()
	}
	undoAll(t.undo)
	t.reindexAll()
	for s := range t.examined {
		t.mark(s)
	}
	for _, s := range t.alarmed {
		t.mark(s)
	}
	t.done()
}

// undoAll takes changes back, the last one first.
func undoAll(changes []func()) {
	for _, undo := range slices.Backward(changes) {
		undo()
	}
}

func (t *tx) done() {
	for _, of := range t.tables() {
		of.done()
	}
	clear(t.connectivityChanged)
}

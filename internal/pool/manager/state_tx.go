package manager

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// tx is one change of the pool: it is seen as a whole or not at all.
type tx struct {
	*state
	now            time.Time
	cfg            *Config
	live           map[string]*liveNode
	oldMeta        *meta
	desiredChanged map[string]bool // nodes whose desired state changes
	events         []*dxpuv1.Event
	call           *call  // that it serves; nil: none
	newPool        bool   // the pool is new
	traceContext   string // W3C trace context of the call, empty: not traced

	examined       map[subject]bool // what was marked and looked at
	alarmed        []subject        // what the clock marked
	newlyLost      []*liveNode
	attempts       int // to grant or replace something
	grants         int
	indexFrozen    bool              // the index stays as it is
	queuePositions map[string]uint32 // in the queue, by lease; nil: not worked out yet
}

// revision returns a new revision.
func (t *tx) revision() uint64 {
	t.meta.Revision++
	return t.meta.Revision
}

// touch says that a node's desired state changes and returns the revision that
// it gets; one for all changes of a transaction.
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

// event records that something happened.
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
}

// changes returns how many records and events the transaction changes.
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
	t.oldMeta = t.meta
	t.meta = t.meta.clone()
	t.desiredChanged = map[string]bool{}
	t.examined = map[subject]bool{}
	return t
}

// readLocked returns the present state to read.
func (m *Manager) readLocked(now time.Time) *tx {
	return &tx{state: m.state, now: now, cfg: &m.cfg, live: m.live}
}

// records returns what the transaction changes in the store.
func (t *tx) records() map[string]any {
	records := map[string]any{metaKey: t.meta}
	for _, of := range t.tables() {
		of.collect(records)
	}
	return records
}

// rollback takes everything back; what was to be done is still to be done.
func (t *tx) rollback() {
	t.state.meta = t.oldMeta
	for _, of := range t.tables() {
		of.restore()
	}
	for _, l := range t.newlyLost {
		l.lost = false
	}
	t.reindex()
	for s := range t.examined {
		t.mark(s)
	}
	for _, s := range t.alarmed {
		t.mark(s)
	}
	t.done()
}

func (t *tx) done() {
	for _, of := range t.tables() {
		of.done()
	}
	clear(t.connectivityChanged)
}

package manager

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// state is everything that is stored, what is derived from it, and what there is
// to do. Manager.mu guards it.
type state struct {
	meta        *meta
	nodes       table[nodeRecord, *nodeRecord]
	bindings    table[bindingRecord, *bindingRecord]
	leases      table[leaseRecord, *leaseRecord]
	tenants     table[tenantRecord, *tenantRecord]
	tokens      table[tokenRecord, *tokenRecord]
	audits      table[auditRecord, *auditRecord]
	secrets     table[secretRecord, *secretRecord]
	credentials credentialIndex
	index
	work
	began time.Time // when the manager began to decide on this state
}

func newState(began time.Time) *state {
	return &state{
		meta:        &meta{},
		nodes:       newTable[nodeRecord](nodePrefix),
		bindings:    newTable[bindingRecord](bindingPrefix),
		leases:      newTable[leaseRecord](leasePrefix),
		tenants:     newTable[tenantRecord](tenantPrefix),
		tokens:      newTable[tokenRecord](tokenPrefix),
		audits:      newTable[auditRecord](auditPrefix),
		secrets:     newTable[secretRecord](secretPrefix),
		credentials: newCredentialIndex(),
		index:       newIndex(),
		work:        newWork(),
		began:       began,
	}
}

// anyTable is a table, whatever its records are.
type anyTable interface {
	changed() int
	collect(into map[string]any)
	all(into map[string]any)
	restore()
	done()
}

// tables are all tables of the state.
func (s *state) tables() [7]anyTable {
	return [...]anyTable{&s.nodes, &s.bindings, &s.leases, &s.tenants, &s.tokens, &s.audits, &s.secrets}
}

// tx is one change of the pool: it is seen as a whole or not at all.
type tx struct {
	*state
	now     time.Time
	cfg     *Config
	live    map[string]*liveNode
	oldMeta *meta
	touched map[string]bool // nodes whose desired state changes
	events  []*dxpuv1.Event
	call    *call  // that it serves; nil: none
	founded bool   // the pool is new
	trace   string // W3C trace context of the call, empty: not traced

	looked     map[subject]bool // what was marked and looked at
	rung       []subject        // what the clock marked
	fellSilent []*liveNode
	tries      int // to grant or replace something
	grants     int
	freeze     bool              // the index stays as it is
	positions  map[string]uint32 // in the queue, by lease; nil: not worked out yet
}

// revision returns a new revision.
func (t *tx) revision() uint64 {
	t.meta.Revision++
	return t.meta.Revision
}

// touch says that a node's desired state changes and returns the revision that
// it gets; one for all changes of a transaction.
func (t *tx) touch(node string) uint64 {
	n := t.nodes.editQuietly(node)
	if !t.touched[node] {
		t.touched[node] = true
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
	e.Message = cut(fmt.Sprintf(format, args...), maxReason)
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
	if t.founded {
		n++
	}
	for _, of := range t.tables() {
		n += of.changed()
	}
	return n
}

// Keys of the store.
const (
	metaKey       = "meta"
	nodePrefix    = "node/"
	bindingPrefix = "binding/"
	leasePrefix   = "lease/"
	tenantPrefix  = "tenant/"
	tokenPrefix   = "token/"
	auditPrefix   = "audit/"
	secretPrefix  = "secret/"
)

// beginLocked starts a transaction, which ends with queueLocked or rollback.
func (m *Manager) beginLocked(now time.Time) *tx {
	t := m.readLocked(now)
	t.oldMeta = t.meta
	t.meta = t.meta.clone()
	t.touched = map[string]bool{}
	t.looked = map[subject]bool{}
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
	for _, l := range t.fellSilent {
		l.lost = false
	}
	t.reindex()
	for s := range t.looked {
		t.mark(s)
	}
	for _, s := range t.rung {
		t.mark(s)
	}
	t.done()
}

func (t *tx) done() {
	for _, of := range t.tables() {
		of.done()
	}
	clear(t.restless)
}

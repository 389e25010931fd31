package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// cloner is a record that can be copied deeply enough to be changed.
type cloner[R any] interface {
	*R
	clone() *R
}

// table is the records of one kind as a transaction sees them: those of before,
// and the changed ones over them. A nil entry in changed is a removed record.
type table[R any, P cloner[R]] struct {
	prefix  string
	base    map[string]*R
	changed map[string]*R
	sorted  []string // IDs of all records in order; nil: to be worked out
}

func newTable[R any, P cloner[R]](prefix string, base map[string]*R) table[R, P] {
	return table[R, P]{prefix: prefix, base: base, changed: map[string]*R{}}
}

// get returns a record to read, nil when there is none.
func (t *table[R, P]) get(id string) *R {
	if r, ok := t.changed[id]; ok {
		return r
	}
	return t.base[id]
}

// edit returns a record to change; it must exist.
func (t *table[R, P]) edit(id string) *R {
	if r, ok := t.changed[id]; ok {
		return r
	}
	r := P(t.base[id]).clone()
	t.changed[id] = r
	return r
}

func (t *table[R, P]) put(id string, r *R) { t.changed[id], t.sorted = r, nil }

func (t *table[R, P]) remove(id string) { t.changed[id], t.sorted = nil, nil }

// ids returns the IDs of all records in order. The result is not changed later.
func (t *table[R, P]) ids() []string {
	if t.sorted != nil {
		return t.sorted
	}
	ids := make([]string, 0, len(t.base)+len(t.changed))
	for id := range t.base {
		if r, ok := t.changed[id]; !ok || r != nil {
			ids = append(ids, id)
		}
	}
	for id, r := range t.changed {
		if r != nil && t.base[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	t.sorted = ids
	return ids
}

// encode adds the changes to what is to be stored.
func (t *table[R, P]) encode(put map[string][]byte, remove *[]string) error {
	for id, r := range t.changed {
		if r == nil {
			*remove = append(*remove, t.prefix+id)
			continue
		}
		raw, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("manager: encode %s%s: %w", t.prefix, id, err)
		}
		put[t.prefix+id] = raw
	}
	return nil
}

func (t *table[R, P]) install() {
	maps.Copy(t.base, t.changed)
	maps.DeleteFunc(t.base, func(_ string, r *R) bool { return r == nil })
}

// tx is one change of the pool: nothing of it is seen before it is stored.
type tx struct {
	now      time.Time
	cfg      *Config
	live     map[string]*liveNode // read only
	meta     *meta
	nodes    table[nodeRecord, *nodeRecord]
	bindings table[bindingRecord, *bindingRecord]
	leases   table[leaseRecord, *leaseRecord]
	tenants  table[tenantRecord, *tenantRecord]
	tokens   table[tokenRecord, *tokenRecord]
	audits   table[auditRecord, *auditRecord]
	byLease  map[string][]string // bindings of each lease, oldest first; nil: to be worked out
	touched  map[string]bool     // nodes whose desired state changes
	silent   []string            // nodes that turned out to be lost
	events   []*dxpuv1.Event
	trace    string // W3C trace context of the call, empty: not traced
}

// revision returns a new revision.
func (t *tx) revision() uint64 {
	t.meta.Revision++
	return t.meta.Revision
}

// touch says that a node's desired state changes and returns the revision that
// it gets; one for all changes of a transaction.
func (t *tx) touch(node string) uint64 {
	n := t.nodes.edit(node)
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
	e.Message = fmt.Sprintf(format, args...)
	t.events = append(t.events, e)
}

func (t *tx) empty() bool {
	return len(t.events)+len(t.nodes.changed)+len(t.bindings.changed)+len(t.leases.changed)+
		len(t.tenants.changed)+len(t.tokens.changed)+len(t.audits.changed) == 0
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
)

// begin starts a transaction.
func (m *Manager) beginLocked(now time.Time) *tx {
	return &tx{
		now:      now,
		cfg:      &m.cfg,
		live:     m.live,
		meta:     m.meta.clone(),
		nodes:    newTable[nodeRecord](nodePrefix, m.nodes),
		bindings: newTable[bindingRecord](bindingPrefix, m.bindings),
		leases:   newTable[leaseRecord](leasePrefix, m.leases),
		tenants:  newTable[tenantRecord](tenantPrefix, m.tenants),
		tokens:   newTable[tokenRecord](tokenPrefix, m.tokens),
		audits:   newTable[auditRecord](auditPrefix, m.audits),
		touched:  map[string]bool{},
	}
}

// commitLocked stores the transaction, makes it the present state and wakes
// those who wait for it.
func (m *Manager) commitLocked(ctx context.Context, t *tx) error {
	if t.empty() {
		return nil
	}
	put := map[string][]byte{}
	var remove []string
	raw, err := json.Marshal(t.meta)
	if err != nil {
		return fmt.Errorf("manager: encode meta: %w", err)
	}
	put[metaKey] = raw
	for _, encode := range []func(map[string][]byte, *[]string) error{
		t.nodes.encode, t.bindings.encode, t.leases.encode, t.tenants.encode, t.tokens.encode, t.audits.encode,
	} {
		if err := encode(put, &remove); err != nil {
			return err
		}
	}
	if err := m.store.Commit(ctx, put, remove); err != nil {
		return err
	}
	m.meta = t.meta
	t.nodes.install()
	t.bindings.install()
	t.leases.install()
	t.tenants.install()
	t.tokens.install()
	t.audits.install()
	m.events.add(t.events)
	for _, node := range t.silent {
		m.live[node].lost = true
	}
	for node := range t.touched {
		m.liveLocked(node).wake()
	}
	for _, e := range t.events {
		m.metrics.event(e)
		traceEvent(e, m.bindings[e.BindingId])
		m.log.Info(e.Message, "event", strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_"), "revision", e.Revision,
			"lease", e.LeaseId, "binding", e.BindingId, "gpu", e.GpuId)
	}
	return nil
}

// load reads the state from the store.
func (m *Manager) load(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	records, err := m.store.Load(ctx)
	if err != nil {
		return err
	}
	for key, raw := range records {
		if err := m.loadRecordLocked(key, raw); err != nil {
			return fmt.Errorf("manager: record %s: %w", key, err)
		}
	}
	return nil
}

func (m *Manager) loadRecordLocked(key string, raw []byte) error {
	decode := func(v any) error { return json.Unmarshal(raw, v) }
	switch {
	case key == metaKey:
		return decode(m.meta)
	case strings.HasPrefix(key, nodePrefix):
		n := &nodeRecord{}
		m.nodes[strings.TrimPrefix(key, nodePrefix)] = n
		return decode(n)
	case strings.HasPrefix(key, bindingPrefix):
		b := &bindingRecord{}
		m.bindings[strings.TrimPrefix(key, bindingPrefix)] = b
		return decode(b)
	case strings.HasPrefix(key, leasePrefix):
		l := &leaseRecord{spec: &dxpuv1.LeaseSpec{}}
		m.leases[strings.TrimPrefix(key, leasePrefix)] = l
		if err := decode(l); err != nil {
			return err
		}
		return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(l.Spec, l.spec)
	case strings.HasPrefix(key, tenantPrefix):
		r := &tenantRecord{}
		m.tenants[strings.TrimPrefix(key, tenantPrefix)] = r
		return decode(r)
	case strings.HasPrefix(key, tokenPrefix):
		r := &tokenRecord{}
		m.tokens[strings.TrimPrefix(key, tokenPrefix)] = r
		return decode(r)
	case strings.HasPrefix(key, auditPrefix):
		r := &auditRecord{}
		m.audits[strings.TrimPrefix(key, auditPrefix)] = r
		return decode(r)
	}
	return fmt.Errorf("unknown kind")
}

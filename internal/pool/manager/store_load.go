package manager

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	mathrand "math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// Store keeps records under keys such as "lease/l-7". It has only what the
// manager needs: one transaction that either happens or does not, as in etcd.
type Store interface {
	// Load returns the records as they are when no other manager can change them any
	// more, without those whose keys begin with except; "": all. The map belongs to
	// the caller.
	Load(ctx context.Context, except string) (map[string][]byte, error)
	// Scan calls page with the records whose keys begin with a prefix, some at a time,
	// until it returns an error. It may run beside Commit, and sees each record before or
	// after a change. A manager that does not lead may call it.
	Scan(ctx context.Context, prefix string, page func(map[string][]byte) error) error
	// Commit writes and removes records in one transaction, which is durable
	// when it returns nil. After an error the changes may have been made or may still be
	// made, all of them or none, unless the error implements NothingStored.
	Commit(ctx context.Context, put map[string][]byte, remove []string) error
}

// NothingStored is implemented by the errors of a Store that has made none of the changes,
// and will not.
type NothingStored interface{ NothingStored() bool }

// Batcher is a Store that bounds the records in a transaction. It stores a
// single change with more records as a whole nevertheless.
type Batcher interface{ MaxRecords() int }

// MemoryStore keeps records until the process ends. The zero value is ready.
type MemoryStore struct {
	mu      sync.Mutex
	records map[string][]byte
}

// Load implements Store.
func (s *MemoryStore) Load(_ context.Context, except string) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records := maps.Clone(s.records)
	maps.DeleteFunc(records, func(key string, _ []byte) bool { return except != "" && strings.HasPrefix(key, except) })
	return records, nil
}

// Scan implements Store.
func (s *MemoryStore) Scan(_ context.Context, prefix string, page func(map[string][]byte) error) error {
	s.mu.Lock()
	records := maps.Clone(s.records)
	s.mu.Unlock()
	maps.DeleteFunc(records, func(key string, _ []byte) bool { return !strings.HasPrefix(key, prefix) })
	return page(records)
}

// Commit implements Store.
func (s *MemoryStore) Commit(_ context.Context, put map[string][]byte, remove []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil {
		s.records = map[string][]byte{}
	}
	apply(s.records, put, remove)
	return nil
}

func apply(records, put map[string][]byte, remove []string) {
	maps.Copy(records, put)
	for _, k := range remove {
		delete(records, k)
	}
}

// recordVersion is the field "v" of stored records. A program refuses records of a
// later version, which it might not understand, and reads all earlier ones:
//
//	0  none: before records carried one
//	1  the same fields, with "v"
const recordVersion = 1

// encode encodes records for a Store: as JSON objects that begin with their
// version. A nil record is to be removed.
func encode(records map[string]any) (put map[string][]byte, remove []string, err error) {
	put = make(map[string][]byte, len(records))
	for key, r := range records {
		if r == nil {
			remove = append(remove, key)
			continue
		}
		raw, err := json.Marshal(r)
		if err != nil {
			return nil, nil, fmt.Errorf("manager: encode %s: %w", key, err)
		}
		out := fmt.Appendf(make([]byte, 0, len(raw)+8), `{"v":%d`, recordVersion)
		if len(raw) > len("{}") {
			out = append(out, ',')
		}
		put[key] = append(out, raw[1:]...)
	}
	slices.Sort(remove)
	return put, remove, nil
}

func decode(raw []byte, into any) error {
	if v := versionOf(raw); v > recordVersion {
		return fmt.Errorf("it has version %d and this program knows versions up to %d: "+
			"run the program that wrote it, or a later one, or restore a backup of the state", v, recordVersion)
	}
	return json.Unmarshal(raw, into)
}

// versionOf returns the version of an encoded record. Every version writes the field
// first, so the record is not decoded for it.
func versionOf(raw []byte) int {
	digits, ok := bytes.CutPrefix(raw, []byte(`{"v":`))
	if !ok {
		return 0
	}
	if end := bytes.IndexAny(digits, ",}"); end >= 0 {
		digits = digits[:end]
	}
	v, err := strconv.Atoi(string(digits))
	if err != nil {
		return math.MaxInt // not a number that this program writes
	}
	return v
}

func (m *Manager) loadLocked(ctx context.Context) error {
	records, err := m.store.Load(ctx, endedPrefix)
	if err != nil {
		return fmt.Errorf("manager: load state: %w", err)
	}
	ended, err := m.readEnded(ctx)
	if err != nil {
		return fmt.Errorf("manager: load state: %w", err)
	}
	if err := m.installLocked(records); err != nil {
		return err
	}
	m.addEndedLocked(ended)
	m.endedCompleteLocked()
	return nil
}

// installLocked makes the records of the store the state.
func (m *Manager) installLocked(records map[string][]byte) error {
	s := newState(m.cfg.Now())
	s.gpuPool.SetInterference(m.cfg.Interference)
	s.alike = m.alike()
	if err := s.loadRecords(records); err != nil {
		return fmt.Errorf("manager: load state: %w", err)
	}
	s.forgetFuture(s.began, m.cfg.Quarantine)
	for key, raw := range records {
		if len(raw) > maxRecord { // an earlier version did not bound it
			m.log.Warn("a record is larger than any that this version makes: delete the lease or the labels that fill it",
				"record", key, "bytes", len(raw), "limit", maxRecord)
		}
	}
	if s.meta.EventRecords == 0 { // an earlier version did not store events
		s.meta.EventsFrom = s.meta.Revision
	}
	events, floor, err := s.storedEvents()
	if err != nil {
		return fmt.Errorf("manager: load state: events: %w", err)
	}
	m.state, m.stateErr, m.last = s, nil, nil
	m.readLocked(s.began).indexAll()
	m.events.reset(events, floor, s.meta.Revision)
	for _, l := range m.live {
		l.published = 0
		l.notifyDesired() // the watch may have missed a change
	}
	if s.meta.ClusterID == "" {
		t := m.beginLocked(s.began)
		t.meta.ClusterID = "c-" + strings.ToLower(rand.Text()[:10])
		t.meta.Incarnation = 1 + mathrand.Uint64N(revision.MaxIncarnation)
		t.meta.NextLease = 1
		t.newPool = true
		m.queueLocked(t)
	}
	return nil
}

// indexAll builds the index of a state that was just loaded, and marks everything that
// the rules may change. Ended leases and released bindings, which are most of a state,
// change no more.
func (t *tx) indexAll() {
	for _, id := range slices.SortedFunc(maps.Keys(t.leases.rows), func(a, b string) int {
		x, y := t.leases.get(a), t.leases.get(b)
		return cmp.Or(x.EndTime.Compare(y.EndTime), x.CreateTime.Compare(y.CreateTime), cmp.Compare(a, b))
	}) { // in this order the index adds to the end of its lists
		t.indexLease(id)
		if !t.leases.get(id).ended() {
			t.mark(subject{leaseSubject, id})
		}
	}
	for id, b := range t.bindings.rows {
		t.indexBinding(id, map[string]bool{})
		if b.State != released {
			t.mark(subject{bindingSubject, id})
		}
	}
	for id := range t.tokens.rows {
		t.mark(subject{tokenSubject, id})
	}
	for id := range t.plans.rows {
		t.mark(subject{planSubject, id})
	}
	stale := map[string]bool{}
	for id := range t.nodes.rows {
		stale[id] = true
		t.mark(subject{nodeSubject, id})
	}
	t.indexNodes(stale)
	t.capacityGrew = true
}

// loadRecords fills a new state.
func (s *state) loadRecords(records map[string][]byte) error {
	decoded, err := decodeAll(records, s.decodeRecord)
	for key, r := range decoded {
		kind, id, _ := strings.Cut(key, "/")
		if m, ok := r.(*meta); ok {
			s.meta = m
			continue
		}
		s.tableOf(kind).loadAny(id, r)
	}
	return err
}

// decodeAll decodes records on all processors. The error names the record.
func decodeAll[R any](records map[string][]byte, one func(key string, raw []byte) (R, error)) (map[string]R, error) {
	keys := slices.Collect(maps.Keys(records))
	decoded := make([]R, len(keys))
	errs := make([]error, len(keys))
	workers := min(runtime.GOMAXPROCS(0), len(keys))
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(keys); i += workers {
				decoded[i], errs[i] = one(keys[i], records[keys[i]])
			}
		})
	}
	wg.Wait()
	out := make(map[string]R, len(keys))
	for i, key := range keys {
		if errs[i] != nil {
			return nil, fmt.Errorf("record %s: %w", key, errs[i])
		}
		out[key] = decoded[i]
	}
	return out, nil
}

// tableOf returns the table for keys such as "lease/l-7", nil for an unknown kind.
func (s *state) tableOf(kind string) anyTable {
	for _, of := range s.tables() {
		if of.keyPrefix() == kind+"/" {
			return of
		}
	}
	return nil
}

// decodeRecord decodes a record without changing the state.
func (s *state) decodeRecord(key string, raw []byte) (any, error) {
	kind, _, _ := strings.Cut(key, "/")
	if kind == metaKey {
		m := &meta{}
		return m, decode(raw, m)
	}
	of := s.tableOf(kind)
	if of == nil {
		return nil, errors.New("unknown kind: a later version of this program wrote it; run that version")
	}
	r, err := of.decode(raw)
	if err != nil {
		return r, err
	}
	switch r := r.(type) {
	case *leaseRecord:
		err = r.decodeSpec()
	case *nodeRecord:
		sortSlots(r.Slots)
	}
	return r, err
}

// decodeSpec completes a record that was decoded.
func (l *leaseRecord) decodeSpec() error {
	if l.State == leaseActive || l.State == leaseDegraded {
		l.Running = cmp.Or(l.Running, l.ActiveTime) // an earlier version did not record it
	}
	l.spec = &dxpuv1.LeaseSpec{}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(l.Spec, l.spec)
}

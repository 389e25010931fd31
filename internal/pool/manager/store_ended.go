package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
)

// A pool remembers up to tens of thousands of leases that have ended, which change no
// more. Each is stored as one record with its bindings, below a prefix of its own, so that
// a manager that takes over answers before it reads them, whatever their number. In
// memory they are records like all others. Until they are read, a call that needs one
// waits; a repeated CreateLease reads only the lease that its first attempt made.
//
// Managers of the previous version cannot read these records. While there are any, leases
// that end keep their single records, which are read at the start.

// endedRecord is a lease that has ended and has nothing on any node.
type endedRecord struct {
	Lease    *leaseRecord     `json:"lease"`
	Bindings []*bindingRecord `json:"bindings,omitempty"`
}

// endedLeaseStore is the part of the state that says which ended leases are in memory.
type endedLeaseStore struct {
	keys     map[string]string   // lease -> the key of its endedRecord; none: it has single records
	complete bool                // all are in memory
	looked   map[requestKey]bool // their leases are in memory, if there are any
	waiting  int                 // calls that wait until they are
	// changed is closed when complete is set, or when the state is dropped.
	changed chan struct{}
}

func newEndedLeaseStore() endedLeaseStore {
	return endedLeaseStore{keys: map[string]string{}, looked: map[requestKey]bool{}, changed: make(chan struct{})}
}

// endedKey returns the key of the record of a lease without its ID. It begins with a hash
// of the request, by which a repeated call finds the lease.
func endedKey(r requestKey) string {
	if r.id == "" {
		return endedPrefix + "-/"
	}
	sum := sha256.Sum256([]byte(r.tenant + "\x00" + r.id))
	return endedPrefix + hex.EncodeToString(sum[:16]) + "/"
}

// endedIsNeeded is the error of a transaction that needs ended leases which are not in
// memory yet: that of a request, or all if it is empty.
type endedIsNeeded struct{ request requestKey }

func (*endedIsNeeded) Error() string { return "manager: leases that have ended are still being read" }

// needEnded returns an error unless all ended leases are in memory.
func (t *tx) needEnded() error {
	if t.ended.complete {
		return nil
	}
	return &endedIsNeeded{}
}

// lease returns a lease for a call: nil if there is none.
func (t *tx) lease(id string) (*leaseRecord, error) {
	if l := t.leases.get(id); l != nil {
		return l, nil
	}
	return nil, t.needEnded()
}

// maxEndedWaits bounds the calls that wait for ended leases, so that there are always turns
// for other calls.
const maxEndedWaits = gateWidth / 4

// withEnded makes another attempt when the ended leases are in memory that the last one
// lacked.
func (m *Manager) withEnded(ctx context.Context, attempt func() error) error {
	for {
		err := attempt()
		var need *endedIsNeeded
		if !errors.As(err, &need) {
			return err
		}
		if err := m.bringEnded(ctx, need.request); err != nil {
			return err
		}
	}
}

// bringEnded reads the ended lease of a request, or waits until all are in memory.
func (m *Manager) bringEnded(ctx context.Context, r requestKey) error {
	m.mu.Lock()
	s := m.state
	wait := s != nil && r.id == "" && !s.ended.complete
	if wait {
		s.ended.waiting++
	}
	full := wait && s.ended.waiting > maxEndedWaits
	m.mu.Unlock()
	switch {
	case s == nil:
		return nil // the next attempt says why
	case r.id != "":
		return m.lookUpEnded(ctx, s, r)
	case !wait:
		return nil
	}
	defer func() {
		m.mu.Lock()
		s.ended.waiting--
		m.mu.Unlock()
	}()
	if full {
		return unavailable("this manager has just taken over and still reads the leases that have ended: try again in a second")
	}
	select {
	case <-s.ended.changed:
		return nil
	case <-ctx.Done():
		return unavailable("this manager still reads the leases that have ended: %w", context.Cause(ctx))
	}
}

// lookUpEnded reads the ended lease of a request.
func (m *Manager) lookUpEnded(ctx context.Context, s *state, r requestKey) error {
	var found []*endedRecord
	if err := m.scanEnded(ctx, endedKey(r), &found); err != nil {
		return unavailable("the leases that have ended cannot be read: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == s && !s.ended.complete {
		m.addEndedLocked(found)
		s.ended.looked[r] = true
	}
	return nil
}

// scanEnded adds the ended leases with a prefix.
func (m *Manager) scanEnded(ctx context.Context, prefix string, into *[]*endedRecord) error {
	return m.store.Scan(ctx, prefix, func(page map[string][]byte) error {
		records, err := decodeAll(page, decodeEnded)
		for _, r := range records {
			*into = append(*into, r)
		}
		return err
	})
}

func decodeEnded(key string, raw []byte) (*endedRecord, error) {
	r := &endedRecord{}
	if err := decode(raw, r); err != nil {
		return nil, err
	}
	if r.Lease == nil || !r.Lease.ended() || !strings.HasSuffix(key, "/"+r.Lease.ID) {
		return nil, errors.New("it has no lease that has ended: restore a backup of the state")
	}
	return r, r.Lease.decodeSpec()
}

// readEnded returns all ended leases, in the order in which the index adds them to the
// ends of its lists.
func (m *Manager) readEnded(ctx context.Context) (all []*endedRecord, err error) {
	err = m.scanEnded(ctx, endedPrefix, &all)
	slices.SortFunc(all, func(a, b *endedRecord) int {
		return cmp.Or(a.Lease.EndTime.Compare(b.Lease.EndTime), cmp.Compare(a.Lease.ID, b.Lease.ID))
	})
	return all, err
}

// endedStep is the number of leases that are added at a time: calls are served between
// two steps.
const endedStep = 256

// loadEnded reads the ended leases of a state while calls are served.
func (m *Manager) loadEnded(ctx context.Context, s *state) {
	for said := ""; ; pause(ctx, s.ended.changed, storeRetryInterval) {
		if ctx.Err() != nil || isClosed(s.ended.changed) {
			return
		}
		all, err := m.readEnded(ctx)
		if err == nil {
			m.addEnded(s, all)
			return
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			m.log.Error("cannot read the leases that have ended", "err", err)
		}
	}
}

// addEnded adds ended leases to a state, unless it has been dropped.
func (m *Manager) addEnded(s *state, all []*endedRecord) {
	for step := range slices.Chunk(all, endedStep) {
		m.mu.Lock()
		if m.state == s {
			m.addEndedLocked(step)
		}
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == s {
		m.endedCompleteLocked()
	}
}

// addEndedLocked adds ended leases that are not in memory: those that ended since the
// state was read are.
func (m *Manager) addEndedLocked(records []*endedRecord) {
	t := m.readLocked(m.state.began)
	for _, r := range records {
		id := r.Lease.ID
		if t.leases.get(id) != nil {
			continue
		}
		t.leases.load(id, r.Lease)
		t.ended.keys[id] = endedKey(requestKey{r.Lease.spec.Tenant, r.Lease.RequestID}) + id
		t.indexLease(id)
		for _, b := range r.Bindings {
			t.bindings.load(b.ID, b)
			t.indexBinding(b.ID, map[string]bool{})
		}
	}
}

// endedCompleteLocked records that all ended leases are in memory. The oldest one is
// forgotten by its own alarm.
func (m *Manager) endedCompleteLocked() {
	s := m.state
	s.ended.complete, s.ended.looked = true, nil
	close(s.ended.changed)
	if len(s.endedLeases) > 0 {
		m.readLocked(s.began).mark(subject{leaseSubject, s.endedLeases[0].id})
	}
}

// packEnded replaces the records of the changed leases that have ended, in the changes of
// the transaction, by one record for each lease. A lease that has it keeps it until it is
// forgotten.
func (t *tx) packEnded(changes map[string]any) {
	changed := map[string][]string{} // lease -> its records that have changed
	for id := range t.leases.before {
		changed[id] = append(changed[id], leasePrefix+id)
	}
	for id, b := range t.bindings.before {
		if b == nil {
			b = t.bindings.get(id)
		}
		if b != nil {
			changed[b.LeaseID] = append(changed[b.LeaseID], bindingPrefix+id)
		}
	}
	for id, keys := range changed {
		key, packed := t.ended.keys[id]
		r := t.endedRecord(id)
		switch {
		case packed: // the single records are not stored
			for _, k := range keys {
				delete(changes, k)
			}
			if r != nil {
				changes[key] = r
			} else { // it was forgotten
				changes[key] = nil
				delete(t.ended.keys, id)
			}
		case r != nil && t.alike:
			changes[leasePrefix+id] = nil
			for _, b := range r.Bindings {
				changes[bindingPrefix+b.ID] = nil
			}
			key = endedKey(requestKey{r.Lease.spec.Tenant, r.Lease.RequestID}) + id
			changes[key], t.ended.keys[id] = r, key
		}
	}
}

// endedRecord returns the record of a lease that has ended and has nothing on any node,
// nil for others.
func (t *tx) endedRecord(id string) *endedRecord {
	l, bindings := t.leases.get(id), t.bindingsByLease[id]
	if l == nil || !l.ended() || len(bindings) > keepReleased {
		return nil
	}
	r := &endedRecord{Lease: l}
	for _, bid := range bindings {
		b := t.bindings.get(bid)
		if b.State != released {
			return nil
		}
		r.Bindings = append(r.Bindings, b)
	}
	if r.sizeBound() > maxRecord {
		return nil // texts as long as this are rare; single records have room for them
	}
	return r
}

// sizeBound returns a size in bytes that the encoded record does not exceed.
func (r *endedRecord) sizeBound() int {
	const (
		escaped = 6   // bytes of a character in JSON
		fixed   = 600 // names, numbers and times of a record
		step    = 150 // those of a step or a GPU
	)
	l := r.Lease
	texts := len(l.Spec) + len(l.ID) + len(l.RequestID) + len(l.StateReason) + len(l.HostID) + len(l.Trace) + len(l.Creator) + len(l.Model)
	n := fixed
	for _, e := range l.Explanation {
		texts, n = texts+len(e), n+step
	}
	for _, g := range l.Avoid {
		texts, n = texts+len(g.Box), n+step
	}
	for _, b := range r.Bindings {
		texts += len(b.ID) + len(b.LeaseID) + len(b.HostID) + len(b.BoxID) + len(b.Detail) + len(b.Replaces) + len(b.Successor) +
			len(b.ReplaceRequest) + len(b.Trace) + len(b.AwaitsGPUOf) + len(b.GPUPromisedTo)
		n += fixed + 2*len(b.Secret)
		for _, s := range b.Steps {
			texts, n = texts+len(s.Name)+len(s.NodeID), n+step
		}
	}
	return n + escaped*texts
}

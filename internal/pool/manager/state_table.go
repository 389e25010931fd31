package manager

import (
	"maps"
	"slices"
)

// cloner is a record that can be copied deeply enough to be changed.
type cloner[R any] interface {
	*R
	clone() *R
}

// table holds the records of one kind. A transaction changes it in place and
// keeps the previous records, so that it can be rolled back. It copies a record
// before its first change, so that readers of the old one may go on.
type table[R any, P cloner[R]] struct {
	prefix    string
	rows      map[string]*R
	before    map[string]*R   // the records before the transaction; nil: there was none
	unsettled map[string]bool // changed since markDependents last ran
	unindexed map[string]bool // changed only in fields without an index
}

func newTable[R any, P cloner[R]](prefix string) table[R, P] {
	return table[R, P]{
		prefix: prefix, rows: map[string]*R{}, before: map[string]*R{}, unsettled: map[string]bool{}, unindexed: map[string]bool{},
	}
}

// get returns a record for reading, nil if there is none.
func (t *table[R, P]) get(id string) *R { return t.rows[id] }

// edit returns a record for changes until the transaction ends; it must exist.
func (t *table[R, P]) edit(id string) *R {
	delete(t.unindexed, id)
	return t.copied(id)
}

// editUnindexed is edit for changes on which no index and no rule depends.
func (t *table[R, P]) editUnindexed(id string) *R {
	if _, ok := t.before[id]; !ok {
		t.unindexed[id] = true
	}
	return t.copied(id)
}

func (t *table[R, P]) copied(id string) *R {
	if !t.unindexed[id] {
		t.unsettled[id] = true
	}
	r := t.rows[id]
	if _, ok := t.before[id]; ok {
		return r
	}
	t.before[id] = r
	r = P(r).clone()
	t.rows[id] = r
	return r
}

// put adds a record or replaces it as a whole.
func (t *table[R, P]) put(id string, r *R) {
	t.keep(id)
	t.rows[id] = r
}

// remove removes a record.
func (t *table[R, P]) remove(id string) {
	t.keep(id)
	delete(t.rows, id)
}

// keep keeps the previous record before a change.
func (t *table[R, P]) keep(id string) {
	delete(t.unindexed, id)
	t.unsettled[id] = true
	if _, ok := t.before[id]; !ok {
		t.before[id] = t.rows[id]
	}
}

func (t *table[R, P]) len() int { return len(t.rows) }

// ids returns the IDs of all records in order. It takes time linear in the size
// of the table. The index has sequences for the large tables.
func (t *table[R, P]) ids() []string { return slices.Sorted(maps.Keys(t.rows)) }

// load adds a record outside of any transaction.
func (t *table[R, P]) load(id string, r *R) {
	t.rows[id] = r
}

// restore takes the transaction's changes back. It leaves before in place, for
// the indexes.
func (t *table[R, P]) restore() {
	for id, r := range t.before {
		if r == nil {
			delete(t.rows, id)
		} else {
			t.rows[id] = r
		}
	}
}

// done ends a transaction.
func (t *table[R, P]) done() {
	clear(t.before)
	clear(t.unsettled)
	clear(t.unindexed)
}

// changed returns the number of records that the transaction has changed.
func (t *table[R, P]) changed() int { return len(t.before) }

// all adds all records, by their keys in the store.
func (t *table[R, P]) all(into map[string]any) {
	for id, r := range t.rows {
		into[t.prefix+id] = r
	}
}

// collect adds the transaction's changes to the records to store: records that
// are not changed any more, nil for those removed.
func (t *table[R, P]) collect(into map[string]any) {
	for id := range t.before {
		if r := t.rows[id]; r != nil {
			into[t.prefix+id] = r
		} else {
			into[t.prefix+id] = nil
		}
	}
}

package manager

import (
	"maps"
	"reflect"
	"slices"
)

// table holds the records of one kind. A transaction changes it in place and
// keeps the previous records, so that it can be rolled back. It copies a record
// before its first change, so that readers of the old one may go on.
type table[R any] struct {
	prefix    string
	times     *timesOf // of its records
	unshare   func(*R) // copies the parts of a copied record that may be changed in place; nil: it has none
	rows      map[string]*R
	before    map[string]*R   // the records before the transaction; nil: there was none
	unsettled map[string]bool // changed since markDependents last ran
	unindexed map[string]bool // changed only in fields without an index
	touched   map[string]bool // changed since the last endStep, or as if it were
}

func newTable[R any](prefix string, unshare func(*R)) table[R] {
	return table[R]{
		prefix: prefix, times: findTimes(reflect.TypeFor[R]()), unshare: unshare, rows: map[string]*R{}, before: map[string]*R{}, unsettled: map[string]bool{}, unindexed: map[string]bool{},
		touched: map[string]bool{},
	}
}

// get returns a record for reading, nil if there is none.
func (t *table[R]) get(id string) *R { return t.rows[id] }

// edit returns a record for changes until the transaction ends; it must exist.
func (t *table[R]) edit(id string) *R {
	delete(t.unindexed, id)
	return t.copied(id)
}

// editUnindexed is edit for changes on which no index and no rule depends.
func (t *table[R]) editUnindexed(id string) *R {
	if _, ok := t.before[id]; !ok {
		t.unindexed[id] = true
	}
	return t.copied(id)
}

func (t *table[R]) copied(id string) *R {
	if !t.unindexed[id] {
		t.unsettled[id], t.touched[id] = true, true
	}
	r := t.rows[id]
	if _, ok := t.before[id]; ok {
		return r
	}
	t.before[id] = r
	c := *r
	if t.unshare != nil {
		t.unshare(&c)
	}
	t.rows[id] = &c
	return &c
}

// put adds a record or replaces it as a whole.
func (t *table[R]) put(id string, r *R) {
	t.keep(id)
	t.rows[id] = r
}

func (t *table[R]) remove(id string) {
	t.keep(id)
	delete(t.rows, id)
}

// keep keeps the previous record before a change.
func (t *table[R]) keep(id string) {
	delete(t.unindexed, id)
	t.unsettled[id], t.touched[id] = true, true
	if _, ok := t.before[id]; !ok {
		t.before[id] = t.rows[id]
	}
}

func (t *table[R]) len() int { return len(t.rows) }

// ids returns the IDs of all records in order. It takes time linear in the size
// of the table. The index has sequences for the large tables.
func (t *table[R]) ids() []string { return slices.Sorted(maps.Keys(t.rows)) }

// load adds a record outside of any transaction.
func (t *table[R]) load(id string, r *R) { t.rows[id] = r }

// decode decodes a record of the table, which loadAny adds.
func (t *table[R]) decode(raw []byte) (any, error) {
	r := new(R)
	return r, decode(raw, r)
}

// loadAny adds a record of decode outside of any transaction.
func (t *table[R]) loadAny(id string, r any) { t.load(id, r.(*R)) }

func (t *table[R]) keyPrefix() string { return t.prefix }

// restore takes the transaction's changes back. It leaves before in place, for
// the indexes.
func (t *table[R]) restore() {
	for id, r := range t.before {
		if r == nil {
			delete(t.rows, id)
		} else {
			t.rows[id] = r
		}
	}
}

func (t *table[R]) done() {
	clear(t.before)
	clear(t.unsettled)
	clear(t.unindexed)
	clear(t.touched)
}

// touch makes reindex look at all records that the transaction has changed in fields with an
// index.
func (t *table[R]) touch() {
	for id := range t.before {
		if !t.unindexed[id] {
			t.touched[id] = true
		}
	}
}

// changed returns the number of records that the transaction has changed.
func (t *table[R]) changed() int { return len(t.before) }

// all adds all records, by their keys in the store.
func (t *table[R]) all(into map[string]any) {
	for id, r := range t.rows {
		into[t.prefix+id] = r
	}
}

// collect adds the transaction's changes to the records to store: records that
// are not changed any more, nil for those removed.
func (t *table[R]) collect(into map[string]any) {
	for id := range t.before {
		into[t.prefix+id] = nil
		if r := t.rows[id]; r != nil {
			into[t.prefix+id] = r
		}
	}
}

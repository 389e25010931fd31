package sqlite

import (
	"maps"
	"slices"
)

// Tables returns the names of the tables in lower case, sorted.
func (db *DB) Tables() []string { return slices.Sorted(maps.Keys(db.tables)) }

package manager

import (
	"context"
	"maps"
	"sync"
)

// Store keeps records under keys such as "lease/l-7". It has only what the
// manager needs: one transaction that either happens or does not, as in etcd.
type Store interface {
	// Load returns all records. The map belongs to the caller.
	Load(ctx context.Context) (map[string][]byte, error)
	// Commit writes and removes records in one transaction, which is durable
	// when it returns nil. After an error none of the changes has been made.
	Commit(ctx context.Context, put map[string][]byte, remove []string) error
}

// Batcher is a Store that bounds the records in a transaction. It stores a
// single change with more records as a whole nevertheless.
type Batcher interface{ MaxRecords() int }

// MemoryStore keeps records until the process ends. The zero value is ready.
type MemoryStore struct {
	mu      sync.Mutex
	records map[string][]byte
}

// Load implements Store.
func (s *MemoryStore) Load(context.Context) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.records), nil
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

package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
)

// Store keeps records under keys such as "lease/l-7". It is small on purpose:
// one transaction that either happens or does not, as etcd has it.
type Store interface {
	// Load returns all records. The map belongs to the caller.
	Load(ctx context.Context) (map[string][]byte, error)
	// Commit writes and removes records in one transaction that is durable
	// when it returns nil. After an error none of the changes has been made.
	Commit(ctx context.Context, put map[string][]byte, remove []string) error
}

// Batcher is a Store that takes only so many records in one transaction of its
// own. A single change of the pool that has more is stored as a whole nevertheless.
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

// fileStoreVersion is the version of the file's envelope.
const fileStoreVersion = 1

// FileStore keeps all records in one file that is replaced as a whole at each
// transaction: right for a pool of some hundred GPUs and one manager.
type FileStore struct {
	path    string
	mu      sync.Mutex
	records map[string]json.RawMessage
}

type fileEnvelope struct {
	Version int                        `json:"version"`
	Records map[string]json.RawMessage `json:"records"`
}

// OpenFileStore opens or creates the store in a directory. The file holds keys:
// the directory is made with mode 0700, the file with 0600.
func OpenFileStore(dir string) (*FileStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("manager: data directory: %w", err)
	}
	s := &FileStore{path: filepath.Join(dir, "pool.json"), records: map[string]json.RawMessage{}}
	raw, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("manager: open store: %w", err)
	}
	var env fileEnvelope
	if err := json.Unmarshal(raw, &env); err != nil {
		return nil, fmt.Errorf("manager: %s is damaged: %w", s.path, err)
	}
	if env.Version != fileStoreVersion {
		return nil, fmt.Errorf("manager: %s has version %d, this program knows %d", s.path, env.Version, fileStoreVersion)
	}
	if env.Records != nil {
		s.records = env.Records
	}
	return s, nil
}

// Load implements Store.
func (s *FileStore) Load(context.Context) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string][]byte, len(s.records))
	for k, v := range s.records {
		out[k] = v
	}
	return out, nil
}

// Commit implements Store.
func (s *FileStore) Commit(_ context.Context, put map[string][]byte, remove []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.records)
	for k, v := range put {
		next[k] = v
	}
	for _, k := range remove {
		delete(next, k)
	}
	raw, err := json.Marshal(fileEnvelope{Version: fileStoreVersion, Records: next})
	if err != nil {
		return fmt.Errorf("manager: encode store: %w", err)
	}
	if err := replaceFile(s.path, raw); err != nil {
		return fmt.Errorf("manager: save store: %w", err)
	}
	s.records = next
	return nil
}

// replaceFile writes a file so that a crash leaves the old or the new one.
func replaceFile(path string, data []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

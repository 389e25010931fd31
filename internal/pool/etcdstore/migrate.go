package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
)

// legacyVersion is the version of the state file of earlier managers.
const legacyVersion = 1

// begin returns the initial state of an empty store.
func (s *Store) begin(ctx context.Context) (map[string][]byte, error) {
	records, err := s.migrate(ctx)
	if err != nil || len(records) > 0 || s.opts.Initial == nil {
		return records, err
	}
	if records, err = s.opts.Initial(); err != nil {
		return nil, fmt.Errorf("etcdstore: %w", err)
	}
	if err := s.Commit(ctx, records, nil); err != nil {
		return nil, err
	}
	s.log.Info("the state was restored", "records", len(records))
	return maps.Clone(records), nil
}

// migrate imports the state file of an earlier version, if it exists. It renames the
// file after the records are stored; after a crash in between it imports them again.
func (s *Store) migrate(ctx context.Context) (map[string][]byte, error) {
	if s.opts.Legacy == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(s.opts.Legacy)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("etcdstore: the state of an earlier version: %w", err)
	}
	var file struct {
		Version int                        `json:"version"`
		Records map[string]json.RawMessage `json:"records"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, fmt.Errorf("etcdstore: %s is damaged: restore it from a backup, or remove it to begin a new pool: %w", s.opts.Legacy, err)
	}
	if file.Version != legacyVersion {
		return nil, fmt.Errorf("etcdstore: %s has version %d, this program knows %d", s.opts.Legacy, file.Version, legacyVersion)
	}
	records := make(map[string][]byte, len(file.Records))
	for k, v := range file.Records {
		records[k] = v
	}
	if len(records) > 0 {
		if err := s.Commit(ctx, records, nil); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(s.opts.Legacy, s.opts.Legacy+".migrated"); err != nil {
		return nil, fmt.Errorf("etcdstore: %w", err)
	}
	s.log.Info("the state of an earlier version was imported", "file", s.opts.Legacy, "records", len(records))
	return records, nil
}

package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/backup"
)

// backupChunk is how much of a backup a message carries, in bytes.
const backupChunk = 256 << 10

// Backup implements dxpuv1connect.PoolServiceHandler. The state is that of one
// moment, and durable; it is encoded while the manager goes on.
func (s *poolService) Backup(ctx context.Context, _ *connect.Request[dxpuv1.BackupRequest], stream *connect.ServerStream[dxpuv1.BackupResponse]) error {
	var h backup.Header
	var records map[string]any
	if err := s.m.viewIn(ctx, func(t *tx) error {
		h = backup.Header{ClusterID: t.meta.ClusterID, Revision: t.meta.Revision, Time: t.now.UTC(), Program: t.cfg.Version}
		records = t.all()
		return nil
	}); err != nil {
		return err
	}
	put, _, err := encode(records)
	if err != nil {
		return err
	}
	w := &chunker{send: func(b []byte) error { return stream.Send(&dxpuv1.BackupResponse{Chunk: b}) }}
	if err := backup.Write(w, h, put); err != nil {
		return err
	}
	return w.flush()
}

// all returns all records. Nobody changes them any more: who does copies them first.
func (t *tx) all() map[string]any {
	records := map[string]any{metaKey: t.meta}
	for _, of := range t.tables() {
		of.all(records)
	}
	return records
}

// chunker makes messages of what is written.
type chunker struct {
	buf  []byte
	send func([]byte) error
}

// Write implements io.Writer.
func (c *chunker) Write(b []byte) (int, error) {
	c.buf = append(c.buf, b...)
	if len(c.buf) < backupChunk {
		return len(b), nil
	}
	return len(b), c.flush()
}

func (c *chunker) flush() error {
	for len(c.buf) > 0 {
		n := min(len(c.buf), backupChunk)
		if err := c.send(c.buf[:n]); err != nil {
			return err
		}
		c.buf = c.buf[n:]
	}
	return nil
}

// After a restore everything that is numbered goes on far above what may have
// been given out since the backup was made: nodes ignore a desired state whose
// revision is not new to them, boxes a binding whose epoch is not.
const (
	restoredRevisions = 1 << 36 // ten thousand a second, for 80 days
	restoredEpochs    = 1 << 22 // four million bindings; datagrams carry 32 bits: a thousand restores
	restoredNodes     = 1 << 10 // datagrams carry 24 bits of boxes' numbers
)

// Restored returns the records of a backup as they become the state again: every
// node is told anew what it should have, whatever it was told since. It refuses
// records that this program would not understand.
func Restored(records map[string][]byte) (map[string][]byte, error) {
	s := newState(time.Time{})
	for key, raw := range records {
		if err := s.loadRecord(key, raw); err != nil {
			return nil, fmt.Errorf("manager: restore: record %s: %w", key, err)
		}
	}
	if s.meta.ClusterID == "" {
		return nil, errors.New("manager: restore: there is no record of the pool itself")
	}
	if s.meta.Revision > math.MaxUint64-restoredRevisions || s.meta.Epoch > math.MaxUint32-restoredEpochs ||
		s.meta.NodeNumber > math.MaxUint32-restoredNodes {
		return nil, errors.New("manager: restore: its numbers are used up")
	}
	s.meta.Revision += restoredRevisions
	s.meta.Epoch += restoredEpochs
	s.meta.NodeNumber += restoredNodes
	changed := map[string]any{metaKey: s.meta}
	for id, n := range s.nodes.rows {
		n.DesiredRevision, n.ResourceVersion = s.meta.Revision, s.meta.Revision
		changed[s.nodes.prefix+id] = n
	}
	put, _, err := encode(changed)
	if err != nil {
		return nil, err
	}
	out := maps.Clone(records)
	maps.Copy(out, put)
	return out, nil
}

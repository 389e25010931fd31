package manager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/backup"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// backupChunk is the size of the backup's part in a message, in bytes.
const backupChunk = 256 << 10

// Backup implements dxpuv1connect.PoolServiceHandler. It encodes the durable
// state of one moment while the manager goes on.
func (s *poolService) Backup(ctx context.Context, _ *connect.Request[dxpuv1.BackupRequest], stream *connect.ServerStream[dxpuv1.BackupResponse]) error {
	var h backup.Header
	var records map[string]any
	if err := s.m.viewIn(ctx, func(t *tx) error {
		if err := t.needEnded(); err != nil {
			return err
		}
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

// all returns all records. They do not change any more: a transaction copies a
// record before it changes it.
func (t *tx) all() map[string]any {
	records := map[string]any{metaKey: t.meta}
	for _, of := range t.tables() {
		of.all(records)
	}
	return records
}

// chunker splits its input into messages.
type chunker struct {
	buf  []byte
	send func([]byte) error
}

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

// After a restore epochs and node numbers continue above those that may have been
// given out since the backup was made. Each restore adds a random part, so that two
// restores of one backup give out different ones.
const (
	restoredEpochs = 1 << 22 // four million bindings; datagrams carry 32 bits: 700 restores
	restoredNodes  = 1 << 10 // datagrams carry 24 bits of boxes' numbers
	// restoredIncarnations bounds the step of the incarnation. Two restores of
	// one backup choose the same step once in 16 million times.
	restoredIncarnations = 1 << 24
)

// Restored returns the records of a backup as the state of a new incarnation of the
// pool. Nodes then apply every desired state, whatever they were told since the backup
// was made. Restored refuses records that this program does not understand.
func Restored(records map[string][]byte) (map[string][]byte, error) {
	s := newState(time.Time{})
	if err := s.loadRecords(records); err != nil {
		return nil, fmt.Errorf("manager: restore: %w", err)
	}
	m := s.meta
	if m.ClusterID == "" {
		return nil, errors.New("manager: restore: the record of the pool itself is missing")
	}
	if m.Epoch > math.MaxUint32-2*restoredEpochs || m.NodeNumber > math.MaxUint32-2*restoredNodes {
		return nil, errors.New("manager: restore: its epochs or node numbers are used up")
	}
	// The revision grows if possible, because agents of earlier versions do not know
	// incarnations and ignore a smaller one.
	if m.NextLease == 0 { // its revision will not tell the number any more
		m.NextLease = revision.Changes(m.Revision) + 1
	}
	m.Incarnation = (revision.Incarnation(m.Revision)+rand.Uint64N(restoredIncarnations))%revision.MaxIncarnation + 1
	m.FirstRevision = revision.First(m.Incarnation)
	m.Revision = m.FirstRevision
	m.EventRecords = 0 // the events of the old incarnation are not those of this pool
	m.Epoch += restoredEpochs + rand.Uint64N(restoredEpochs)
	m.NodeNumber += restoredNodes + rand.Uint32N(restoredNodes)
	changed := map[string]any{metaKey: m}
	for id, n := range s.nodes.rows {
		n.DesiredRevision, n.ResourceVersion = m.Revision, m.Revision
		changed[s.nodes.prefix+id] = n
	}
	put, _, err := encode(changed)
	if err != nil {
		return nil, err
	}
	out := maps.Clone(records)
	maps.DeleteFunc(out, func(key string, _ []byte) bool { return strings.HasPrefix(key, eventPrefix) })
	maps.Copy(out, put)
	return out, nil
}

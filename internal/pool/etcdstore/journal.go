package etcdstore

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A change with more records than an etcd transaction takes is atomic too. The leader
// writes it to a journal first, in pieces. The key journal/complete commits the
// change. Then the leader changes the records and removes the journal. A new leader
// that finds a complete journal carries it out; it removes an incomplete one. Only
// leaders read the records.
//
//	journal/000000, journal/000001, ...  the change in JSON, in pieces
//	journal/complete                     the number of pieces

type change struct {
	Put    map[string][]byte `json:"put,omitempty"`
	Remove []string          `json:"remove,omitempty"`
}

const completeKey = "complete"

func (s *Store) commitLarge(ctx context.Context, put map[string][]byte, remove []string) error {
	c := &change{put, remove}
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("etcdstore: journal: %w", err)
	}
	pieces := 0
	for piece := range slices.Chunk(raw, s.maxBytes/2) {
		op := clientv3.OpPut(s.key(fmt.Sprintf("journal/%06d", pieces)), string(piece))
		if err := s.write(ctx, []clientv3.Op{op}, s.leadingUnchanged()); err != nil {
			return err
		}
		pieces++
	}
	op := clientv3.OpPut(s.key("journal/"+completeKey), fmt.Sprint(pieces))
	if err := s.write(ctx, []clientv3.Op{op}, s.leadingUnchanged()); err != nil {
		return err
	}
	return s.carryOut(ctx, c)
}

// carryOut changes the records of a complete journal and removes it.
func (s *Store) carryOut(ctx context.Context, c *change) error {
	ops := s.ops(c.Put, c.Remove)
	for len(ops) > 0 {
		n, size := 0, 0
		for n < len(ops) && n < s.maxOps && (n == 0 || size+len(ops[n].ValueBytes()) <= s.maxBytes) {
			size += len(ops[n].ValueBytes())
			n++
		}
		if err := s.write(ctx, slices.Clone(ops[:n]), s.leadingUnchanged()); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return s.removeJournal(ctx)
}

func (s *Store) removeJournal(ctx context.Context) error {
	return s.write(ctx, []clientv3.Op{clientv3.OpDelete(s.key("journal/"), clientv3.WithPrefix())}, s.leadingUnchanged())
}

// replayJournal completes or removes the change that an earlier leader left in the
// journal. A complete journal can be carried out: Commit refuses a record that etcd
// does not take before it writes the first piece.
func (s *Store) replayJournal(ctx context.Context) error {
	pieces, err := s.read(ctx, [2]string{s.key("journal/"), clientv3.GetPrefixRangeEnd(s.key("journal/"))})
	if err != nil {
		return fmt.Errorf("etcdstore: read the journal: %w", err)
	}
	if len(pieces) == 0 {
		return nil
	}
	want, complete := pieces[completeKey]
	if !complete {
		return s.removeJournal(ctx)
	}
	delete(pieces, completeKey)
	if fmt.Sprint(len(pieces)) != string(want) {
		return fmt.Errorf("etcdstore: the journal has %d of %s pieces: restore a backup of the state", len(pieces), want)
	}
	var raw strings.Builder
	for _, k := range slices.Sorted(maps.Keys(pieces)) {
		raw.Write(pieces[k])
	}
	c := &change{}
	if err := json.Unmarshal([]byte(raw.String()), c); err != nil {
		return fmt.Errorf("etcdstore: the journal is damaged: restore a backup of the state: %w", err)
	}
	for k, v := range c.Put {
		if s.tooLarge(v) {
			// An earlier version wrote it, which did not bound records. It told its
			// caller that the change may not have happened. Leave the record out, so
			// that a manager can lead.
			s.log.Error("the journal has a record that is too large to store: leaving it out",
				"record", k, "bytes", len(v), "limit", s.maxRecord)
			delete(c.Put, k)
		}
	}
	s.log.Info("carrying out a change that the last leader left in the journal", "records", len(c.Put)+len(c.Remove))
	return s.carryOut(ctx, c)
}

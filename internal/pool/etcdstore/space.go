package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// compactEvery is the number of bytes written between two compactions. The history is
// not used, and counts against the quota.
const compactEvery = 32 << 20

// checkDisk returns an error while the disk is nearly full: the embedded server ends
// the process when it cannot write.
func (s *Store) checkDisk() error { return s.checkSpace("and the manager continues by itself") }

// checkSpace is checkDisk with what follows when there is room again.
func (s *Store) checkSpace(next string) error {
	if len(s.opts.Endpoints) > 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.opts.Dir, &st); err != nil {
		return fmt.Errorf("etcdstore: %s: %w", s.opts.Dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < s.opts.MinFree {
		return fmt.Errorf("the disk is full: %s has %d MiB left, of which %d stay free: "+
			"make room there, %s", s.opts.Dir, free>>20, s.opts.MinFree>>20, next)
	}
	return nil
}

// compact removes the history from time to time. It leaves an existing cluster alone,
// which may have other users.
func (s *Store) compact(ctx context.Context) {
	if s.server == nil || s.garbage < compactEvery {
		return
	}
	s.garbage = 0
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	if _, err := s.client.Compact(ctx, s.guard); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		s.log.Warn("the history of the state was not compacted", "err", err)
	}
}

func isNoSpace(err error) bool { return errors.Is(err, rpctypes.ErrNoSpace) }

// tryWithRoom makes room and repeats a write that exceeded the quota. It does not
// repeat a write that has happened: etcd reports an error for the write that reaches
// the quota, but applies it.
func (s *Store) tryWithRoom(ctx context.Context, ops []clientv3.Op, conditions []clientv3.Cmp, mark string) (*clientv3.TxnResponse, error) {
	if err := s.reclaim(ctx); err != nil {
		return nil, err
	}
	getting, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	now, err := s.client.Get(getting, s.key("guard"))
	if err != nil {
		return nil, err
	}
	if len(now.Kvs) == 1 && string(now.Kvs[0].Value) == mark {
		now.Header.Revision = now.Kvs[0].ModRevision
		return &clientv3.TxnResponse{Header: now.Header, Succeeded: true}, nil
	}
	return s.try(ctx, ops, conditions)
}

// reclaim compacts and defragments a full database, and disarms etcd's alarm.
func (s *Store) reclaim(ctx context.Context) error {
	if s.server == nil {
		return s.quotaError()
	}
	s.log.Warn("the state has reached its quota: making room")
	ctx, cancel := context.WithTimeout(ctx, 4*commitTimeout)
	defer cancel()
	res, err := s.client.Get(ctx, s.key("guard"))
	if err != nil {
		return fmt.Errorf("etcdstore: make room: %w", err)
	}
	if _, err := s.client.Compact(ctx, res.Header.Revision, clientv3.WithCompactPhysical()); err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("etcdstore: make room: compact: %w", err)
	}
	if err := s.server.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("etcdstore: make room: %w", err)
	}
	if _, err := s.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		return fmt.Errorf("etcdstore: make room: lift the alarm: %w", err)
	}
	return nil
}

func (s *Store) quotaError() error {
	if s.server == nil {
		return errors.New("etcdstore: the etcd cluster has reached its quota (NOSPACE): compact and defragment it, " +
			"or raise its --quota-backend-bytes, then \"etcdctl alarm disarm\"; the manager continues by itself")
	}
	return fmt.Errorf("etcdstore: the state does not fit into its quota of %d MiB: start the manager with a larger --etcd-quota", s.opts.Quota>>20)
}

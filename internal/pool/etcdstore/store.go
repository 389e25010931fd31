// Package etcdstore keeps the state of a pool in etcd: embedded in the manager
// alone, embedded in three managers, or an existing cluster.
//
// One process leads at a time, by an election on an etcd lease. Every write is one
// etcd transaction under two conditions: that the leader's election key is the one
// it won with, and that nobody has written since it read the state. So whoever was
// deposed without knowing it, frozen for an hour say, cannot write, and what it
// sent long ago cannot arrive after a new leader has begun.
//
// Keys, under a prefix:
//
//	state/...     the records
//	guard         rewritten by every write; its revision is the second condition
//	election/...  one key per manager, the oldest leads
//	journal/...   a change that is too large for one transaction (journal.go)
package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Options say where etcd is. With Endpoints it is a cluster that exists, else one
// of this process.
type Options struct {
	// Endpoints of an existing cluster, such as "https://etcd1:2379".
	Endpoints []string
	// CAFile, CertFile and KeyFile are PEM files for TLS: with Endpoints of the
	// client, else between the members.
	CAFile, CertFile, KeyFile string
	// Prefix of all keys. Empty: "/dxpu/".
	Prefix string

	// Dir is the data directory of the embedded server.
	Dir string
	// Name, PeerListen and InitialCluster make the embedded server one of
	// several: its name, the URL on which it listens for the others (empty: that
	// by which they know it), and all of them as "name=URL,name=URL,...". Empty:
	// it is alone.
	Name, PeerListen, InitialCluster string
	// Quota bounds the database of the embedded server, in bytes. 0: 4 GiB.
	Quota int64
	// MinFree is how much of Dir's file system is left free, in bytes. 0: 64 MiB.
	MinFree uint64
	// Legacy is a file of the store of earlier versions: where there is no state
	// yet, what is in it becomes the state, and the file gets the suffix
	// ".migrated". Empty, or a file that does not exist: nothing.
	Legacy string
	// Initial returns what becomes the state where there is none, and no legacy
	// either; nil: nothing. Its error is that of Load.
	Initial func() (map[string][]byte, error)

	// TTL is how long a leader that is gone goes on to count as the leader, in
	// whole seconds. 0: 2 s.
	TTL time.Duration
	// Self is how others learn of this manager: its ID, URL and version.
	Self *dxpuv1.ManagerInfo
	// Log gets warnings of the server too; nil: nothing.
	Log *slog.Logger
}

const (
	defaultPrefix  = "/dxpu/"
	defaultQuota   = 4 << 30
	defaultMinFree = 64 << 20
	defaultTTL     = 2 * time.Second

	// commitTimeout bounds a write: a healthy cluster takes milliseconds, one
	// that elects a leader of its own a second.
	commitTimeout = 5 * time.Second
	// pageSize is how many records Load asks for at a time.
	pageSize = 2000

	// Of an existing cluster nothing is known but etcd's defaults: 128 operations
	// in a transaction, one for the guard, and requests of 1.5 MiB.
	externalOps   = 120
	externalBytes = 1 << 20
	// The embedded server is told to take these and some more.
	embeddedOps   = 4096
	embeddedBytes = 6 << 20
)

// ErrDeposed says that another manager leads or may lead: the write did not happen.
var ErrDeposed = errors.New("etcdstore: this manager does not lead any more")

// Store implements manager.Cluster. Load and Commit are for one caller at a time.
type Store struct {
	opts     Options
	log      *slog.Logger
	client   *clientv3.Client
	server   *embed.Etcd // nil: an existing cluster
	unlock   func() error
	silence  func() // the embedded server's log
	maxOps   int
	maxBytes int

	term     atomic.Pointer[term] // nil: this manager has not led yet
	managers atomic.Pointer[[]*dxpuv1.ManagerInfo]

	guard   int64 // revision of the last write
	writes  int   // tried
	garbage int   // bytes written since the history was compacted last

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Open starts the embedded server, or connects to the cluster. Neither need have
// a quorum yet: Campaign waits for it.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.Prefix = strings.TrimSuffix(cmp.Or(o.Prefix, defaultPrefix), "/") + "/"
	o.Quota, o.MinFree, o.TTL = cmp.Or(o.Quota, defaultQuota), cmp.Or(o.MinFree, defaultMinFree), cmp.Or(o.TTL, defaultTTL)
	if o.Self == nil {
		o.Self = &dxpuv1.ManagerInfo{}
	}
	s := &Store{opts: o, log: o.Log, maxOps: externalOps, maxBytes: externalBytes, unlock: func() error { return nil }}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if len(o.Endpoints) > 0 {
		err = s.dial()
	} else {
		err = s.embed()
	}
	if err != nil {
		return nil, fmt.Errorf("etcdstore: %w", err)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.wg.Go(func() { s.watchManagers(run) })
	return s, nil
}

// Close ends everything that Open began. Resign first.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	err := s.client.Close()
	if s.server != nil {
		s.silence() // it takes its own end for a fault
		s.server.Close()
		if errors.Is(err, context.Canceled) {
			err = nil // what a client without connections says
		}
	}
	return errors.Join(err, s.unlock())
}

// Client is the client of etcd, for measurements and tests.
func (s *Store) Client() *clientv3.Client { return s.client }

// MaxRecords implements manager.Batcher.
func (s *Store) MaxRecords() int { return s.maxOps / 2 }

func (s *Store) key(k string) string      { return s.opts.Prefix + k }
func (s *Store) stateKey(k string) string { return s.opts.Prefix + "state/" + k }

// Load implements manager.Store: it waits out what this manager itself sent
// before, and reads the state as nobody else can change it any more.
func (s *Store) Load(ctx context.Context) (map[string][]byte, error) {
	// The writes that are on their way still are conditional on the guard of
	// before: after this they cannot happen any more.
	if err := s.write(ctx, nil, s.leading()); err != nil {
		return nil, err
	}
	if err := s.replayJournal(ctx); err != nil {
		return nil, err
	}
	records, err := s.list(ctx, s.stateKey(""))
	if err != nil {
		return nil, fmt.Errorf("etcdstore: read the state: %w", err)
	}
	if len(records) == 0 {
		return s.begin(ctx)
	}
	return records, nil
}

// list returns everything below a prefix as of the last write.
func (s *Store) list(ctx context.Context, prefix string) (map[string][]byte, error) {
	out := map[string][]byte{}
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		page, cancel := context.WithTimeout(ctx, commitTimeout)
		res, err := s.client.Get(page, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(s.guard))
		cancel()
		if err != nil {
			return nil, err
		}
		for _, kv := range res.Kvs {
			out[strings.TrimPrefix(string(kv.Key), prefix)] = kv.Value
		}
		if !res.More {
			return out, nil
		}
		from = string(res.Kvs[len(res.Kvs)-1].Key) + "\x00"
	}
}

// Commit implements manager.Store.
func (s *Store) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	if err := s.checkDisk(); err != nil {
		if t := s.term.Load(); t != nil && !s.alone() {
			t.lose() // another manager may have room
		}
		return err
	}
	size := 0
	for k, v := range put {
		size += len(k) + len(v)
	}
	if len(put)+len(remove) > s.maxOps || size > s.maxBytes {
		return s.commitLarge(ctx, put, remove)
	}
	return s.write(ctx, s.ops(put, remove), s.notDeposed())
}

func (s *Store) ops(put map[string][]byte, remove []string) []clientv3.Op {
	ops := make([]clientv3.Op, 0, len(put)+len(remove)+1)
	for k, v := range put {
		ops = append(ops, clientv3.OpPut(s.stateKey(k), string(v)))
	}
	for _, k := range remove {
		ops = append(ops, clientv3.OpDelete(s.stateKey(k)))
	}
	return ops
}

// leading is the condition that this manager won the last election, and
// notDeposed that nobody else has written since either.
func (s *Store) leading() []clientv3.Cmp {
	t := s.term.Load()
	if t == nil {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.revision)}
}

func (s *Store) notDeposed() []clientv3.Cmp {
	return append(s.leading(), clientv3.Compare(clientv3.ModRevision(s.key("guard")), "=", s.guard))
}

// write makes a write under conditions.
func (s *Store) write(ctx context.Context, ops []clientv3.Op, conditions []clientv3.Cmp) error {
	t := s.term.Load()
	if t == nil || t.isLost() {
		return ErrDeposed
	}
	s.writes++
	mark := fmt.Sprintf("%s %x %d", s.opts.Self.Id, t.session.Lease(), s.writes)
	ops = append(ops, clientv3.OpPut(s.key("guard"), mark))
	res, err := s.try(ctx, ops, conditions)
	if isNoSpace(err) {
		if res, err = s.tryWithRoom(ctx, ops, conditions, mark); isNoSpace(err) {
			return s.quotaError()
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("etcdstore: write: %w", err)
	case !res.Succeeded:
		return s.refused(ctx, t)
	}
	s.guard = res.Header.Revision
	for _, op := range ops {
		s.garbage += len(op.KeyBytes()) + len(op.ValueBytes())
	}
	s.compact(ctx)
	return nil
}

func (s *Store) try(ctx context.Context, ops []clientv3.Op, conditions []clientv3.Cmp) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	return s.client.Txn(ctx).If(conditions...).Then(ops...).Commit()
}

// refused finds out why a write did not happen.
func (s *Store) refused(ctx context.Context, t *term) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	res, err := s.client.Get(ctx, t.key)
	if err == nil && len(res.Kvs) == 1 && res.Kvs[0].CreateRevision == t.revision {
		// An earlier write of ours that was given up has happened after all.
		return errors.New("etcdstore: the state has changed since it was read")
	}
	t.lose()
	return ErrDeposed
}

// Package etcdstore stores the state of a pool in etcd: a server embedded in the only
// manager, servers embedded in three managers, or an existing cluster.
//
// One manager leads at a time, by an election on an etcd lease. Every write is one
// etcd transaction under two conditions: the leader's election key still exists, and
// no other write has happened since the leader read the state. So a leader that was
// deposed without noticing it, for example while it was frozen, cannot write, and its
// late writes fail after a new leader has started.
//
// Keys, under a prefix:
//
//	state/...     the records
//	guard         rewritten by every write; its revision is the second condition
//	election/...  one key per manager; the oldest key is the leader's
//	journal/...   a change that is too large for one transaction (journal.go)
package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Options configure a Store. Without Endpoints it runs an embedded server.
type Options struct {
	// Endpoints of an existing cluster, such as "https://etcd1:2379".
	Endpoints []string
	// CAFile, CertFile and KeyFile are PEM files for TLS: of the client of an
	// existing cluster, or between embedded servers.
	CAFile, CertFile, KeyFile string
	// Prefix is the prefix of all keys. Empty: "/dxpu/".
	Prefix string

	// Dir is the data directory of the embedded server.
	Dir string
	// Name, PeerListen and InitialCluster make the embedded server a member of a
	// cluster: its name, the URL on which it listens for peers (empty: its URL in
	// InitialCluster), and all members as "name=URL,name=URL,...". With an empty
	// InitialCluster it is the only member.
	Name, PeerListen, InitialCluster string
	// Join makes a server without data a member of the running cluster, in the place of
	// one that ReplaceMember has removed.
	Join bool
	// Quota bounds the database of the embedded server, in bytes. 0: 4 GiB.
	Quota int64
	// MinFree is the space in bytes that writes leave free on Dir's disk. 0: 64 MiB.
	MinFree uint64
	// Legacy is the state file of earlier versions. If the store is empty, Load
	// imports it and renames it with the suffix ".migrated". It need not exist.
	Legacy string
	// Initial returns the initial state of a store that is empty and has no legacy
	// file. Load returns its error. nil: the state starts empty.
	Initial func() (map[string][]byte, error)

	// TTL is the lifetime of the leader's lease, in whole seconds. After it, another
	// manager takes over from a leader that has failed. 0: 2 s, or a minute for the
	// only manager.
	TTL time.Duration
	// Self describes this manager to the others: its ID, URL and version.
	Self *dxpuv1.ManagerInfo
	// Log receives messages, and the embedded server's warnings. nil: none.
	Log *slog.Logger
}

const (
	defaultPrefix  = "/dxpu/"
	defaultQuota   = 4 << 30
	defaultMinFree = 64 << 20
	defaultTTL     = 2 * time.Second
	// No other manager waits for the lease of the only one. Its term must not end while
	// busy processors or a slow disk delay the renewal for some seconds.
	aloneTTL = time.Minute

	// commitTimeout bounds a write. A healthy cluster takes milliseconds; one that
	// elects its own leader takes about a second.
	commitTimeout = 5 * time.Second
	// pageSize is the number of records in a request of Load.
	pageSize = 2000

	// An existing cluster is assumed to have etcd's default limits: 128 operations in
	// a transaction, one of them for the guard, and 1.5 MiB in a request.
	externalOps     = 120
	externalBytes   = 1 << 20
	externalRequest = 1.5 * (1 << 20)
	// The embedded server's limits are set slightly above these.
	embeddedOps     = 4096
	embeddedBytes   = 6 << 20
	embeddedRequest = 9 << 20
	// requestSlack is the room in a request for the key, conditions and guard.
	requestSlack = 64 << 10
)

// ErrDeposed is returned for a write refused because another manager may lead.
var ErrDeposed = errors.New("etcdstore: this manager is no longer the leader")

// Store implements manager.Cluster. Load and Commit must not be called concurrently;
// Scan may be.
type Store struct {
	opts     Options
	log      *slog.Logger
	client   *clientv3.Client
	server   *embed.Etcd // nil: an existing cluster
	unlock   func() error
	silence  func() // turns off the embedded server's log
	maxOps   int
	maxBytes int
	// maxRecord is the size in bytes of the largest record that etcd takes.
	maxRecord int

	now      func() time.Duration // sinceBoot, or the clock of a test
	term     atomic.Pointer[term] // nil: this manager has not led yet
	managers atomic.Pointer[[]*dxpuv1.ManagerInfo]
	absent   atomic.Pointer[[]string]

	guard   int64 // revision of the last write
	writes  int   // attempts; makes each value of the guard unique
	garbage int   // bytes written since the last compaction

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Open starts the embedded server or connects to the cluster. It does not wait for a
// quorum; Campaign does.
func Open(ctx context.Context, o Options) (*Store, error) {
	o.Prefix = strings.TrimSuffix(cmp.Or(o.Prefix, defaultPrefix), "/") + "/"
	o.Quota, o.MinFree = cmp.Or(o.Quota, defaultQuota), cmp.Or(o.MinFree, defaultMinFree)
	if o.Self == nil {
		o.Self = &dxpuv1.ManagerInfo{}
	}
	s := &Store{opts: o, log: o.Log, maxOps: externalOps, maxBytes: externalBytes, maxRecord: externalRequest - requestSlack, unlock: func() error { return nil }, now: sinceBoot}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var err error
	if len(o.Endpoints) > 0 {
		err = s.dial()
	} else {
		err = s.embed(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("etcdstore: %w", err)
	}
	if s.opts.TTL = cmp.Or(s.opts.TTL, defaultTTL); s.alone() && o.TTL == 0 {
		s.opts.TTL = aloneTTL
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	s.wg.Go(func() { s.watchManagers(run) })
	return s, nil
}

// Close stops everything that Open started. Call Resign first.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	err := s.client.Close()
	if s.server != nil {
		s.silence() // etcd logs an orderly stop as an error
		s.server.Close()
		if errors.Is(err, context.Canceled) {
			err = nil // a client without connections returns this
		}
	}
	return errors.Join(err, s.unlock())
}

// Client returns the etcd client, for measurements and tests.
func (s *Store) Client() *clientv3.Client { return s.client }

// MaxRecords implements manager.Batcher.
func (s *Store) MaxRecords() int { return s.maxOps / 2 }

// Prefix returns the prefix of all keys, with a slash at its end.
func (s *Store) Prefix() string { return s.opts.Prefix }

func (s *Store) key(k string) string      { return s.opts.Prefix + k }
func (s *Store) stateKey(k string) string { return s.opts.Prefix + "state/" + k }

// Load implements manager.Store. It fences this manager's own earlier writes and
// returns the state, which only this manager can change from then on.
func (s *Store) Load(ctx context.Context, except string) (map[string][]byte, error) {
	// Writes still under way depend on the guard's previous value, and now fail.
	if err := s.write(ctx, nil, s.leading()); err != nil {
		return nil, err
	}
	if err := s.replayJournal(ctx); err != nil {
		return nil, err
	}
	from, end := s.stateKey(""), clientv3.GetPrefixRangeEnd(s.stateKey(""))
	ranges := [][2]string{{from, end}}
	if except != "" {
		ranges = [][2]string{{from, s.stateKey(except)}, {clientv3.GetPrefixRangeEnd(s.stateKey(except)), end}}
	}
	records, err := s.read(ctx, ranges...)
	if err != nil {
		return nil, fmt.Errorf("etcdstore: read the state: %w", err)
	}
	if len(records) == 0 {
		return s.begin(ctx)
	}
	return records, nil
}

// Scan implements manager.Store.
func (s *Store) Scan(ctx context.Context, prefix string, page func(map[string][]byte) error) error {
	from := s.stateKey(prefix)
	if err := s.pages(ctx, from, clientv3.GetPrefixRangeEnd(from), 0, page); err != nil {
		return fmt.Errorf("etcdstore: read the records %s...: %w", prefix, err)
	}
	return nil
}

// read returns the records of some ranges as of the last write.
func (s *Store) read(ctx context.Context, ranges ...[2]string) (map[string][]byte, error) {
	records := map[string][]byte{}
	for _, r := range ranges {
		if err := s.pages(ctx, r[0], r[1], s.guard, func(page map[string][]byte) error {
			maps.Copy(records, page)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// pages reads the keys from one up to another, of the state or the journal, as of a
// revision; 0: each page as of the time at which it is read.
func (s *Store) pages(ctx context.Context, from, end string, revision int64, page func(map[string][]byte) error) error {
	prefix := s.key("")
	for {
		reading, cancel := context.WithTimeout(ctx, commitTimeout)
		res, err := s.client.Get(reading, from, clientv3.WithRange(end), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return err
		}
		records := make(map[string][]byte, len(res.Kvs))
		for _, kv := range res.Kvs {
			_, key, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), prefix), "/")
			records[key] = kv.Value
		}
		if err := page(records); err != nil || !res.More {
			return err
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
		return nothingStored{err}
	}
	size := 0
	for k, v := range put {
		if s.tooLarge(v) {
			return &TooLargeError{k, len(v), s.maxRecord}
		}
		size += len(k) + len(v)
	}
	if len(put)+len(remove) > s.maxOps || size > s.maxBytes {
		return s.commitLarge(ctx, put, remove)
	}
	return s.write(ctx, s.ops(put, remove), s.leadingUnchanged())
}

// nothingStored is an error of a change of which nothing was sent to etcd. It implements
// manager.NothingStored.
type nothingStored struct{ error }

func (nothingStored) NothingStored() bool { return true }
func (e nothingStored) Unwrap() error     { return e.error }

// NothingStored implements manager.NothingStored.
func (*TooLargeError) NothingStored() bool { return true }

// TooLargeError names a record larger than etcd takes. Nothing was written.
type TooLargeError struct {
	Key         string
	Size, Limit int // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("etcdstore: record %s has %d bytes, at most %d can be stored", e.Key, e.Size, e.Limit)
}

func (s *Store) tooLarge(record []byte) bool { return len(record) > s.maxRecord }

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

// leading returns the condition that this manager won the last election.
func (s *Store) leading() []clientv3.Cmp {
	t := s.term.Load()
	if t == nil {
		return nil
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(t.key), "=", t.revision)}
}

// leadingUnchanged returns the conditions that this manager won the last election and
// that there was no other write since its last one.
func (s *Store) leadingUnchanged() []clientv3.Cmp {
	return append(s.leading(), clientv3.Compare(clientv3.ModRevision(s.key("guard")), "=", s.guard))
}

// write applies operations in one transaction, under conditions, and moves the guard.
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

// refused returns the reason why the conditions of a write were not met.
func (s *Store) refused(ctx context.Context, t *term) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	res, err := s.client.Get(ctx, t.key)
	if err == nil && len(res.Kvs) == 1 && res.Kvs[0].CreateRevision == t.revision {
		// An earlier write of this manager, which timed out, has happened.
		return errors.New("etcdstore: the state has changed since it was read")
	}
	t.lose()
	return ErrDeposed
}

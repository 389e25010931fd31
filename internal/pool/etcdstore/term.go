package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// term is the time from winning an election until the lease behind it ends.
type term struct {
	session  *concurrency.Session
	election *concurrency.Election
	key      string // in the election
	revision int64  // at which key was created

	now    func() time.Duration // sinceBoot, or the clock of a test
	until  atomic.Int64         // when the lease may end, on that clock
	margin time.Duration
	lost   chan struct{}
	once   sync.Once
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (t *term) lose() { t.once.Do(func() { close(t.lost) }) }

func (t *term) isLost() bool {
	select {
	case <-t.lost:
		return true
	default:
		return false
	}
}

// left returns the minimum remaining lifetime of the lease.
func (t *term) left() time.Duration { return time.Duration(t.until.Load()) - t.now() }

// sinceBoot returns the time since the machine started. This clock cannot be set, and
// unlike the clock of Go's runtime it does not stop while the machine is suspended,
// when etcd's leases end too.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("etcdstore: CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Valid implements manager.Cluster. It returns true while no other manager can lead:
// the lease is counted from when its renewal was sent, not from the answer.
func (s *Store) Valid() bool {
	t := s.term.Load()
	return t != nil && !t.isLost() && t.left() > t.margin
}

// errTermEnded is returned by Campaign if the lease ended before this manager was elected.
var errTermEnded = errors.New("the lease ended during the election")

// Campaign implements manager.Cluster.
func (s *Store) Campaign(ctx context.Context) (<-chan struct{}, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if !s.alone() {
		if err := s.checkDisk(); err != nil {
			return nil, err // a manager that cannot write must not lead
		}
	}
	t, err := s.newTerm(ctx)
	if err != nil {
		return nil, fmt.Errorf("etcdstore: election: %w", err)
	}
	value, err := protojson.Marshal(s.opts.Self)
	if err != nil {
		return nil, errors.Join(err, t.end(ctx))
	}
	// Stop waiting when the term ends: the manager has to start again with a new lease.
	campaign, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(t.session.Ctx(), cancel)
	err = t.election.Campaign(campaign, string(value))
	stop()
	cancel()
	if ctx.Err() == nil && (t.isLost() || t.left() <= 0) {
		err = errTermEnded // one that was frozen can win before it notices the end
	}
	if err != nil {
		_ = t.end(context.WithoutCancel(ctx)) // after an error the lease ends by itself
		return nil, fmt.Errorf("etcdstore: election: %w", err)
	}
	t.key, t.revision = t.election.Key(), t.election.Rev()
	s.term.Store(t)
	s.readManagers(ctx) // a leader asks at once whether the others run its version
	return t.lost, nil
}

// newTerm gets a lease for an election and starts to renew it.
func (s *Store) newTerm(ctx context.Context) (*term, error) {
	if s.alone() {
		// Only this manager uses the data directory. Any candidate is this manager
		// before a restart, so there is no lease to wait for.
		if err := s.removeCandidates(ctx); err != nil {
			return nil, err
		}
	}
	begun := s.now()
	granting, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	lease, err := s.client.Grant(granting, int64(s.opts.TTL/time.Second))
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	session, err := concurrency.NewSession(s.client, concurrency.WithLease(lease.ID), concurrency.WithContext(run),
		concurrency.WithTTL(int(s.opts.TTL/time.Second)))
	if err != nil {
		stop()
		return nil, err
	}
	t := &term{
		session: session, election: concurrency.NewElection(session, s.key("election")),
		now: s.now, margin: s.opts.TTL / 8, lost: make(chan struct{}), cancel: stop,
	}
	t.until.Store(int64(begun + s.opts.TTL))
	t.wg.Go(func() { s.renew(run, t) })
	return t, nil
}

func (s *Store) removeCandidates(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	_, err := s.client.Delete(ctx, s.key("election/"), clientv3.WithPrefix())
	return err
}

// renew renews the lease until it is lost or ctx ends. The session renews it too, but
// does not report when it sent the request: it ends with the term, and so a campaign does.
func (s *Store) renew(ctx context.Context, t *term) {
	defer t.cancel()
	defer t.lose()
	every := time.NewTicker(s.opts.TTL / 5)
	defer every.Stop()
	for {
		sent := t.now()
		asking, cancel := context.WithTimeout(ctx, max(t.left(), time.Millisecond))
		res, err := s.client.KeepAliveOnce(asking, t.session.Lease())
		cancel()
		switch {
		case err == nil:
			t.until.Store(int64(sent + time.Duration(res.TTL)*time.Second))
		case errors.Is(err, rpctypes.ErrLeaseNotFound), t.left() <= 0, ctx.Err() != nil:
			return
		}
		select {
		case <-every.C:
		case <-t.session.Done():
			return
		}
	}
}

// end revokes the lease.
func (t *term) end(ctx context.Context) error {
	t.lose()
	stop, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := t.session.Client().Revoke(stop, t.session.Lease())
	t.cancel()
	t.session.Orphan()
	t.wg.Wait()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// Resign implements manager.Cluster.
func (s *Store) Resign(ctx context.Context) error {
	t := s.term.Load()
	if t == nil {
		return nil
	}
	return t.end(ctx)
}

// managersInterval is the interval between two reads of the list of managers, and
// absentRounds how many of them pass between two looks at which are missing.
const (
	managersInterval = 300 * time.Millisecond
	absentRounds     = 10
)

// watchManagers reads the list of managers, and of those that are absent, until ctx ends.
func (s *Store) watchManagers(ctx context.Context) {
	if s.ready(ctx) != nil {
		return
	}
	tick := time.NewTicker(managersInterval)
	defer tick.Stop()
	for round := 1; ; round++ {
		s.readManagers(ctx)
		if round%absentRounds == 0 { // the first: when the others have had time to begin, too
			s.readAbsent(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Store) readManagers(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	res, err := s.client.Get(ctx, s.key("election/"), clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return // keep the last list
	}
	var out []*dxpuv1.ManagerInfo
	for i, kv := range res.Kvs {
		m := &dxpuv1.ManagerInfo{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(kv.Value, m); err == nil {
			m.Leader = i == 0
			out = append(out, m)
		}
	}
	s.managers.Store(&out)
}

// Managers implements manager.Cluster.
func (s *Store) Managers() []*dxpuv1.ManagerInfo {
	p := s.managers.Load()
	if p == nil {
		return nil
	}
	var out []*dxpuv1.ManagerInfo
	for _, m := range *p {
		out = append(out, proto.CloneOf(m))
	}
	return out
}

package etcdstore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A leader whose lease may have ended is not valid, although nothing has told it: it may
// have been frozen while another one was elected.
func TestValidDependsOnTime(t *testing.T) {
	s := &Store{}
	if s.Valid() {
		t.Error("valid before the first election")
	}
	x := &term{now: sinceBoot, margin: time.Second, lost: make(chan struct{})}
	s.term.Store(x)
	for _, tt := range []struct {
		left time.Duration
		want bool
	}{
		{time.Hour, true},
		{x.margin / 2, false}, // another clock may run faster
		{0, false},
		{-time.Hour, false},
	} {
		x.until.Store(int64(sinceBoot() + tt.left))
		if got := s.Valid(); got != tt.want {
			t.Errorf("valid %v before the end of the lease: %v, want %v", tt.left, got, tt.want)
		}
	}
	x.until.Store(int64(sinceBoot() + time.Hour))
	x.lose()
	if s.Valid() {
		t.Error("valid after the lease was lost")
	}
}

// slowLease delays the answers about leases on a clock of its own, and records when it got the
// requests.
type slowLease struct {
	clientv3.Lease
	late     atomic.Int64 // by which the clock is ahead of sinceBoot
	received atomic.Int64 // when the newest request arrived
	renewed  chan time.Duration
}

const answerDelay = 100 * time.Millisecond

func (l *slowLease) now() time.Duration { return sinceBoot() + time.Duration(l.late.Load()) }

func (l *slowLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	l.received.Store(int64(l.now()))
	res, err := l.Lease.Grant(ctx, ttl)
	l.late.Add(int64(answerDelay))
	return res, err
}

func (l *slowLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	at := l.now()
	res, err := l.Lease.KeepAliveOnce(ctx, id)
	l.late.Add(int64(answerDelay))
	select {
	case l.renewed <- at:
	default:
	}
	return res, err
}

// The lease of a leader is counted from when its request was sent: etcd may count it from
// any time between that and the answer, which may be late.
func TestLeaseIsCountedFromTheRequest(t *testing.T) {
	s := open(t, Options{Endpoints: []string{external(t)}})
	slow := &slowLease{Lease: s.client.Lease, renewed: make(chan time.Duration)}
	s.client.Lease, s.now = slow, slow.now
	x, err := s.newTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.end(context.WithoutCancel(t.Context())) }()
	if end := time.Duration(x.until.Load()); end > time.Duration(slow.received.Load())+s.opts.TTL {
		t.Errorf("a new lease is counted for %v too long", end-time.Duration(slow.received.Load())-s.opts.TTL)
	}
	<-slow.renewed
	at := <-slow.renewed // the answer to the first one has been taken
	if end := time.Duration(x.until.Load()); end > at+s.opts.TTL {
		t.Errorf("a renewed lease is counted for %v too long", end-at-s.opts.TTL)
	}
}

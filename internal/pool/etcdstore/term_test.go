package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestRestartAfterKill checks that a manager does not wait for its own lease after it
// was killed.
func TestRestartAfterKill(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), TTL: time.Hour})
	lead(t, s)
	lead(t, s) // another process would not have resigned either
}

// TestOnlyManagerKeepsItsTerm checks that the only manager leads although it could not
// renew its lease for longer than several managers may.
func TestOnlyManagerKeepsItsTerm(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	lead(t, s)
	if left := s.term.Load().left(); left < 10*defaultTTL {
		t.Errorf("the term of the only manager ends %v after a renewal", left)
	}
	several := open(t, Options{Endpoints: []string{external(t)}})
	lead(t, several)
	if left := several.term.Load().left(); left > defaultTTL {
		t.Errorf("another manager takes over after %v, want %v", left, defaultTTL)
	}
}

// awaitManagers waits until n managers are in the election, and reads their list.
func awaitManagers(t *testing.T, s *Store, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	news := s.Client().Watch(ctx, s.key("election/"), clientv3.WithPrefix(), clientv3.WithRev(1))
	for seen := map[string]bool{}; len(seen) < n; {
		change, ok := <-news
		if !ok || change.Err() != nil {
			t.Fatalf("%d managers in the election, want %d: %v", len(seen), n, change.Err())
		}
		for _, e := range change.Events {
			if e.Type == clientv3.EventTypePut {
				seen[string(e.Kv.Key)] = true
			} else {
				delete(seen, string(e.Kv.Key))
			}
		}
	}
	s.readManagers(ctx)
}

// A leader knows the managers as soon as it leads: it asks whether they run its version.
func TestLeaderKnowsTheManagers(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	if _, err := s.Campaign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := s.Managers(); len(all) != 1 || !all[0].Leader {
		t.Errorf("the managers are %v", all)
	}
}

// TestFencing checks that of two managers one leads, that the other takes over, and
// that the first one cannot write afterwards.
func TestFencing(t *testing.T) {
	at := external(t)
	first := open(t, Options{Endpoints: []string{at}, Self: &dxpuv1.ManagerInfo{Id: "m1", Url: "http://m1"}})
	second := open(t, Options{Endpoints: []string{at}, Self: &dxpuv1.ManagerInfo{Id: "m2", Url: "http://m2"}})
	lost, _ := lead(t, first)
	if err := first.Commit(t.Context(), record("1"), nil); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	campaign := make(chan error, 1)
	wg.Go(func() {
		_, err := second.Campaign(ctx)
		campaign <- err
	})
	defer wg.Wait()
	defer cancel()
	awaitManagers(t, second, 2)
	if m := second.Managers(); m[0].Id != "m1" || !m[0].Leader || m[1].Url != "http://m2" || m[1].Leader {
		t.Errorf("managers: %v", m)
	}

	// The first one is frozen: its lease ends, but it does not notice.
	frozen := first.term.Load()
	if _, err := second.Client().Revoke(t.Context(), frozen.session.Lease()); err != nil {
		t.Fatal(err)
	}
	if err := <-campaign; err != nil {
		t.Fatal(err)
	}
	blind := &term{now: sinceBoot, key: frozen.key, revision: frozen.revision, session: frozen.session, lost: make(chan struct{})}
	first.term.Store(blind)
	if err := first.Commit(t.Context(), record("stale"), nil); !errors.Is(err, ErrDeposed) || !blind.isLost() {
		t.Errorf("a write of a deposed leader: %v", err)
	}
	first.term.Store(frozen)
	<-lost

	records, err := second.Load(t.Context(), "")
	if err != nil || text(records) != "lease/1=1" {
		t.Errorf("the second one loads %s, %v", text(records), err)
	}
	if first.Valid() || !second.Valid() {
		t.Error("the deposed leader is valid, or the new one is not")
	}
}

// TestLateWriteIsFenced checks that a write which timed out, and arrives after the
// state was loaded again, fails.
func TestLateWriteIsFenced(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	lead(t, s)
	late := s.leadingUnchanged()
	if _, err := s.Load(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	res, err := s.Client().Txn(t.Context()).If(late...).Then(s.ops(record("late"), nil)...).Commit()
	if err != nil || res.Succeeded {
		t.Errorf("the late write: %v, %v", res, err)
	}
	// If it arrived before, the next write fails, once.
	if _, err := s.Client().Put(t.Context(), s.key("guard"), "somebody"); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), record("1"), nil); err == nil || errors.Is(err, ErrDeposed) {
		t.Errorf("a write to a state that has changed: %v", err)
	}
	if _, err := s.Load(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

// TestFullDiskEndsTheTerm checks that of several managers one with a full disk lets
// another lead.
func TestFullDiskEndsTheTerm(t *testing.T) {
	peer := fmt.Sprintf("http://127.88.%d.%d:2380", rand.N(256), 1+rand.N(254)) // not used by other tests
	s := open(t, Options{Dir: t.TempDir(), Name: "m1", PeerListen: peer, InitialCluster: "m1=" + peer})
	lost, _ := lead(t, s)
	s.opts.MinFree = 1 << 62
	if err := s.Commit(t.Context(), record("1"), nil); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("got %v", err)
	}
	<-lost
	if s.Valid() {
		t.Error("a manager with a full disk still leads")
	}
	if _, err := s.Campaign(t.Context()); err == nil || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("a manager with a full disk campaigns: %v", err)
	}
	if err := s.Resign(t.Context()); err != nil {
		t.Error(err)
	}
	s.opts.MinFree = 1
	lead(t, s)
	if err := s.Commit(t.Context(), record("1"), nil); err != nil {
		t.Error(err)
	}
}

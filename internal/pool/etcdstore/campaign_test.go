package etcdstore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lateLease renews leases until its clock jumps ahead, and from then on does not answer.
type lateLease struct {
	clientv3.Lease
	ahead atomic.Int64
}

func (l *lateLease) now() time.Duration { return sinceBoot() + time.Duration(l.ahead.Load()) }

func (l *lateLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	if l.ahead.Load() == 0 {
		return l.Lease.KeepAliveOnce(ctx, id)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A manager whose term ends while it waits in the election does not become the leader,
// although etcd still has its lease: it was frozen, or could not renew the lease.
func TestTermEndsDuringElection(t *testing.T) {
	for _, tt := range []struct {
		name string
		wins bool // the leader resigns, too
	}{{"it waits", false}, {"it wins", true}} {
		t.Run(tt.name, func(t *testing.T) {
			at := external(t)
			first, second := open(t, Options{Endpoints: []string{at}, TTL: time.Hour}), open(t, Options{Endpoints: []string{at}})
			lead(t, first)
			late := &lateLease{Lease: second.client.Lease}
			second.client.Lease, second.now = late, late.now

			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			campaign := make(chan error, 1)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := second.Campaign(ctx)
				campaign <- err
			})
			defer wg.Wait()
			defer cancel()
			awaitManagers(t, second, 2)
			late.ahead.Store(int64(time.Hour))
			if tt.wins {
				if err := first.Resign(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-campaign; !errors.Is(err, errTermEnded) {
				t.Errorf("the end of the campaign: %v", err)
			}
			if second.term.Load() != nil {
				t.Error("the manager leads in a term that has ended")
			}
		})
	}
}

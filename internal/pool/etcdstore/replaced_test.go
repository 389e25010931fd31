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
)

// openMembers opens n members of one cluster.
func openMembers(t *testing.T, n int) []*Store {
	t.Helper()
	network := rand.N(256) // not used by other tests
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=http://127.91.%d.%d:2380", i, network, i+1))
	}
	stores := make([]*Store, n)
	var opening sync.WaitGroup
	for i := range n {
		o := Options{Dir: t.TempDir(), Name: fmt.Sprint("m", i), InitialCluster: strings.Join(all, ",")}
		opening.Go(func() {
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Error(err)
				return
			}
			stores[i] = s
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return stores
}

// A manager whose embedded server has stopped ends with the reason. It may have been away
// when its member was removed.
func TestStoppedManagerSaysWhy(t *testing.T) {
	for _, tt := range []struct {
		name          string
		removed, away bool
		want          error
	}{
		{"removed", true, false, ErrReplaced},
		{"removed while it was away", true, true, ErrReplaced},
		{"still a member", false, false, errStopped},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stores := openMembers(t, 3)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for _, s := range stores {
				if err := s.ready(ctx); err != nil {
					t.Fatal(err)
				}
			}
			last := stores[2]
			id := uint64(last.server.Server.MemberID())
			if tt.away {
				if err := last.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if tt.removed {
				// etcd would ask for connections that are some seconds old.
				stores[0].server.Server.Cfg.StrictReconfigCheck = false
				if _, err := stores[0].client.MemberRemove(ctx, id); err != nil {
					t.Fatal(err)
				}
			} else {
				last.server.Server.HardStop()
			}
			if tt.away {
				var err error
				if last, err = Open(ctx, last.opts); err != nil {
					t.Fatal(err)
				}
			}
			select {
			case <-last.server.Server.StopNotify():
			case <-ctx.Done():
				t.Fatal("the server of a removed member goes on")
			}
			if _, err := last.Campaign(ctx); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			for _, s := range []*Store{last, stores[1], stores[0]} {
				closeStore(t, s)
			}
		})
	}
}

package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// flakyStore fails each tenth commit, half of them after it has stored the change: as a leader
// does that loses its office.
type flakyStore struct {
	MemoryStore
	on      atomic.Bool
	commits atomic.Int64
}

func (s *flakyStore) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	n := s.commits.Add(1)
	if !s.on.Load() || n%10 != 0 {
		return s.MemoryStore.Commit(ctx, put, remove)
	}
	if n%20 == 0 {
		if err := s.MemoryStore.Commit(ctx, put, remove); err != nil {
			return err
		}
	}
	return errors.New("the leader has changed")
}

// Three hundred nodes join at once, five of each of some names, while calls are given up and the
// store fails: each name has one node, with a number of its own and the credential of one of those
// that were told so.
func TestManyJoinsAtOnce(t *testing.T) {
	const nodes, alike = 300, 5
	s := &flakyStore{}
	w := newWorld(t, Config{Store: s})
	s.on.Store(true)
	var mu sync.Mutex
	told := map[string][]string{} // name: credentials
	name := func(i int) string {
		if i < 100 {
			return fmt.Sprintf("same-%d", i/alike)
		}
		return fmt.Sprintf("n-%d", i)
	}
	service := &nodeService{m: w.m}
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			req := &dxpuv1.EnrollRequest{Name: name(i), Kind: dxpuv1.NodeKind_NODE_KIND_HOST, JoinToken: "token-for-tests"}
			for try := 0; ; try++ {
				ctx, cancel := context.WithCancel(t.Context())
				if i%7 == 0 && try < 3 {
					cancel() // it dies while it joins
				}
				res, err := service.Enroll(ctx, connect.NewRequest(req))
				cancel()
				switch code := connect.CodeOf(err); {
				case err == nil:
					mu.Lock()
					told[req.Name] = append(told[req.Name], res.Msg.Credential)
					mu.Unlock()
					return
				case code != connect.CodeUnavailable && code != connect.CodeCanceled && code != connect.CodeResourceExhausted || try > 1000:
					t.Errorf("%s: %v", req.Name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.on.Store(false)
	check := func(when string) {
		_ = w.m.view(func(t *tx) error {
			numbers := map[uint32]string{}
			for _, id := range t.nodes.ids() {
				n := t.nodes.get(id)
				if other := numbers[n.Number]; other != "" {
					w.t.Fatalf("%s: %s and %s have number %d", when, id, other, n.Number)
				}
				numbers[n.Number] = id
				if !slices.ContainsFunc(told[id], func(c string) bool { return bytes.Equal(auth.Hash(c), n.CredentialHash) }) {
					w.t.Fatalf("%s: %s has a credential that no node was told", when, id)
				}
			}
			if got, want := t.nodes.len(), 100/alike+nodes-100; got != want || len(told) != want {
				w.t.Fatalf("%s: %d nodes, want %d", when, got, want)
			}
			return nil
		})
	}
	check("after the joins")
	w.m.mu.Lock()
	w.m.dropStateLocked(nil)
	w.m.mu.Unlock()
	check("after a change of leader")
}

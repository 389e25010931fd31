package capacity

import (
	"context"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// timedStore records the times of commits.
type timedStore struct {
	manager.Store

	mu      sync.Mutex
	commits []commit
}

// commit is one transaction on the store.
type commit struct {
	began time.Time
	took  time.Duration
}

func (s *timedStore) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	at := time.Now()
	err := s.Store.Commit(ctx, put, remove)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits = append(s.commits, commit{at, time.Since(at)})
	return err
}

// last returns the duration of the last commit that began and ended between from and
// to; 0: none.
func (s *timedStore) last(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.commits) - 1; i >= 0; i-- {
		c := s.commits[i]
		if end := c.began.Add(c.took); end.After(to) {
			continue
		}
		if c.began.Before(from) {
			return 0
		}
		return c.took
	}
	return 0
}

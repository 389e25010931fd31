package web

import (
	"context"
	"errors"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// sharedFor is how old a rendering may be that answers a live page: its ages
	// and counters are as old.
	sharedFor = time.Second
	// sharedPause is how many times as long as a rendering took nothing renders
	// that page again for live pages: they take a fifth of one CPU at most.
	sharedPause = 4
	// maxShared bounds the pages of which a rendering is kept.
	maxShared = 128
	// renderTimeout bounds a rendering, which does not end with whoever began it.
	renderTimeout = 30 * time.Second
)

// rendering is the content of a page, without what is one viewer's own: its
// frame, and the token in its forms, for which formPlace stands.
type rendering struct {
	content  []byte
	revision uint64 // the content tells of every event up to this one
	title    string
	nav      string
	poll     int
	pool     *dxpuv1.Pool
}

// shares lets all who look at the same page at the same time share one
// rendering of it.
type shares struct {
	renders chan struct{} // one entry per rendering that runs

	mu   sync.Mutex // guards what follows
	kept map[string]*share
}

// share is one page as callers of one kind see it.
type share struct {
	last    *rendering
	at      time.Time // when last was begun
	next    time.Time // when a live page may have it rendered again
	begun   uint64    // renderings that were begun
	running *flight   // nil: none
}

// flight is a rendering that runs.
type flight struct {
	number uint64
	done   chan struct{} // closed once what follows is set
	out    *rendering
	err    error
}

func newShares(most int) *shares {
	return &shares{renders: make(chan struct{}, most), kept: map[string]*share{}}
}

// get returns a rendering of a page that tells of everything that happened
// before the call. A live page that knows of a revision only needs one that
// tells of that: it is served what is kept, and waits rather than renders too often.
func (s *shares) get(ctx context.Context, key string, live bool, revision uint64, render func(context.Context) (*rendering, error)) (*rendering, error) {
	need := uint64(0)
	for {
		f, lead, out, pause := s.look(key, live, revision, &need)
		switch {
		case out != nil:
			return out, nil
		case pause > 0:
			if !wait(ctx, pause) {
				return nil, ctx.Err()
			}
		case lead:
			s.lead(ctx, key, f, render)
			return f.out, f.err
		default:
			select {
			case <-f.done:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if f.number >= need || live && f.err == nil && f.out.revision >= revision {
				return f.out, f.err
			}
		}
	}
}

// look finds what to do: take a rendering, wait for one that runs, wait a while,
// or render. need is the number of the first rendering that began after the caller came.
func (s *shares) look(key string, live bool, revision uint64, need *uint64) (f *flight, lead bool, out *rendering, pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[key]
	if k == nil {
		s.sweepLocked()
		k = &share{}
		s.kept[key] = k
	}
	if *need == 0 {
		*need = k.begun + 1
	}
	now := time.Now()
	if live && k.last != nil && k.last.revision >= revision && now.Sub(k.at) < sharedFor {
		return nil, false, k.last, 0
	}
	if k.running != nil {
		return k.running, false, nil, 0
	}
	if pause := k.next.Sub(now); live && pause > 0 {
		return nil, false, nil, pause
	}
	k.begun++
	k.at = now
	k.running = &flight{number: k.begun, done: make(chan struct{})}
	return k.running, true, nil, 0
}

var errNoRendering = errors.New("the page could not be rendered")

// lead renders for all who wait.
func (s *shares) lead(ctx context.Context, key string, f *flight, render func(context.Context) (*rendering, error)) {
	s.renders <- struct{}{}
	begin := time.Now()
	f.err = errNoRendering // should render panic, which net/http survives
	defer func() {
		<-s.renders
		s.land(key, f, time.Since(begin))
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renderTimeout)
	defer cancel()
	f.out, f.err = render(ctx)
}

func (s *shares) land(key string, f *flight, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[key]
	k.running, k.last = nil, f.out
	k.next = time.Now().Add(min(2*sharedFor, sharedPause*took))
	close(f.done)
}

// sweepLocked makes room for one more: pages that nobody looks at go.
func (s *shares) sweepLocked() {
	now := time.Now()
	for pass := range 2 {
		for key, k := range s.kept {
			if k.running == nil && (now.Sub(k.at) > 10*sharedFor || pass > 0 && len(s.kept) >= maxShared) {
				delete(s.kept, key)
			}
		}
	}
}

package web

import (
	"context"
	"errors"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// sharedFor is the maximum age of a rendering that is sent to a live page.
	sharedFor = time.Second
	// sharedPause is the pause between two renderings of a page for live pages, in
	// multiples of the time that a rendering takes. So a page takes at most a fifth of
	// one CPU.
	sharedPause = 4
	// maxShared bounds the cached renderings.
	maxShared = 128
	// renderTimeout bounds a rendering, which outlives the request that started it.
	renderTimeout = 30 * time.Second
)

// rendering is the content of a page without the parts of one viewer: the frame, and
// the token in forms, for which formPlaceholder stands.
type rendering struct {
	content  []byte
	revision uint64 // the content includes all events up to this revision
	title    string
	nav      string
	poll     int
	pool     *dxpuv1.Pool
}

// shares caches renderings, so that viewers with the same access share the
// rendering of a page that they open at the same time.
type shares struct {
	renders chan struct{} // one entry per rendering in progress

	mu   sync.Mutex // guards the fields below
	kept map[string]*share
}

// share is one page for viewers with the same access.
type share struct {
	last    *rendering
	at      time.Time // when the last rendering started
	next    time.Time // earliest time of the next rendering for live pages
	begun   uint64    // number of renderings started
	running *flight   // nil: none
}

// flight is a rendering in progress.
type flight struct {
	number uint64
	done   chan struct{} // closed after the fields below are set
	out    *rendering
	err    error
}

func newShares(most int) *shares {
	return &shares{renders: make(chan struct{}, most), kept: map[string]*share{}}
}

// get returns a rendering of a page that started after the call. For a live page it
// need only include a revision: get returns a cached one, or waits if the page was
// rendered recently.
func (s *shares) get(ctx context.Context, key string, live bool, revision uint64, render func(context.Context) (*rendering, error)) (*rendering, error) {
	need := uint64(0)
	for {
		f, mine, out, pause := s.next(key, live, revision, &need)
		switch {
		case out != nil:
			return out, nil
		case pause > 0:
			if !wait(ctx, pause) {
				return nil, ctx.Err()
			}
		case mine:
			s.run(ctx, key, f, render)
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

// next returns the next step of a caller of get: return the rendering out, wait for
// the flight f, run f itself (mine), or wait for pause. It sets need to the number of
// the first rendering that starts after the caller's first step.
func (s *shares) next(key string, live bool, revision uint64, need *uint64) (f *flight, mine bool, out *rendering, pause time.Duration) {
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

// run renders a page for all waiting callers.
func (s *shares) run(ctx context.Context, key string, f *flight, render func(context.Context) (*rendering, error)) {
	s.renders <- struct{}{}
	begin := time.Now()
	f.err = errNoRendering // in case render panics, which net/http recovers
	defer func() {
		<-s.renders
		s.finish(key, f, time.Since(begin))
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renderTimeout)
	defer cancel()
	f.out, f.err = render(ctx)
}

func (s *shares) finish(key string, f *flight, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept[key]
	k.running, k.last = nil, f.out
	k.next = time.Now().Add(min(2*sharedFor, sharedPause*took))
	close(f.done)
}

// sweepLocked removes pages not requested recently, and others if there is no room.
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

package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestLivePagesShareRenderings checks that a thousand live pages, which update themselves
// after every event, need a bounded number of renderings, and that each page includes
// the event.
func TestLivePagesShareRenderings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		a.takes = 50 * time.Millisecond
		s := serve(a)
		const viewers, rounds = 1000, 3
		for range rounds {
			a.happen(1, "x")
			revision := a.revision()
			var all sync.WaitGroup
			for range viewers {
				all.Go(func() {
					w := fetch(t, s, "operator", "/ui/tenants", fmt.Sprint(revision))
					if !strings.HasPrefix(w.Body.String(), `<div id="content">`) || w.Code != http.StatusOK {
						t.Errorf("%d: %s", w.Code, w.Body)
					}
				})
			}
			all.Wait()
			time.Sleep(100 * time.Millisecond)
		}
		if a.pools > 2*rounds {
			t.Errorf("%d renderings for %d fetches after %d events", a.pools, viewers*rounds, rounds)
		}
	})
}

// TestIdentityIsCached checks that the identity of a live page is reused for a second,
// and that of a page that is loaded, or with another credential, is not.
func TestIdentityIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		status := func(token, after string) int { return fetch(t, s, token, "/ui/tenants", after).Code }
		if got := status("one", ""); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
		a.mu.Lock()
		a.bad["one"], a.bad["two"] = true, true
		a.mu.Unlock()
		for _, tt := range []struct {
			name, token, after string
			want               int
		}{
			{"live, within a second", "one", "1", http.StatusOK},
			{"loaded", "one", "", http.StatusSeeOther},
			{"another token", "two", "1", http.StatusSeeOther},
			{"no token", "", "1", http.StatusSeeOther},
		} {
			if got := status(tt.token, tt.after); got != tt.want {
				t.Errorf("%s: status %d, want %d", tt.name, got, tt.want)
			}
		}
		time.Sleep(knownFor)
		if got := status("one", "1"); got != http.StatusSeeOther {
			t.Errorf("live, after a second: status %d", got)
		}
	})
}

func fetch(t *testing.T, s *Server, token, path, after string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if after != "" {
		r.Header.Set(afterHeader, after)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// shared is a page for tests. Its rendering has the revision at its start.
type shared struct {
	now   uint64 // current revision
	begun int
	takes time.Duration
	err   error
}

func (p *shared) render(context.Context) (*rendering, error) {
	p.begun++
	out := &rendering{revision: p.now}
	time.Sleep(p.takes)
	return out, p.err
}

func TestShares(t *testing.T) {
	get := func(t *testing.T, s *shares, p *shared, live bool, revision uint64) *rendering {
		t.Helper()
		out, err := s.get(t.Context(), "page", live, revision, p.render)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	t.Run("only a live page takes a cached rendering", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{now: 7}
			first := get(t, s, p, false, 0)
			if get(t, s, p, true, 7) != first || get(t, s, p, true, 3) != first || p.begun != 1 {
				t.Errorf("a live page was rendered again: %d", p.begun)
			}
			if get(t, s, p, false, 0) == first {
				t.Error("a page that is loaded got a cached rendering")
			}
			time.Sleep(sharedFor)
			if get(t, s, p, true, 7) == first || p.begun != 3 {
				t.Error("a live page got a rendering older than a second")
			}
		})
	})
	t.Run("a request during a rendering gets the next one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{now: 1, takes: time.Second}
			var all sync.WaitGroup
			all.Go(func() { get(t, s, p, false, 0) })
			synctest.Wait()
			p.now = 2
			for range 100 {
				all.Go(func() {
					if out := get(t, s, p, false, 0); out.revision != 2 {
						t.Errorf("a page has revision %d, want 2", out.revision)
					}
				})
			}
			all.Wait()
			if p.begun != 2 {
				t.Errorf("%d renderings, want 2", p.begun)
			}
		})
	})
	t.Run("a live page with a newer revision waits, and renderings pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{now: 1, takes: 100 * time.Millisecond}
			get(t, s, p, false, 0)
			begin := time.Now()
			for range 10 {
				p.now++
				if out := get(t, s, p, true, p.now); out.revision < p.now {
					t.Errorf("revision %d, want %d", out.revision, p.now)
				}
			}
			if took, want := time.Since(begin), 10*(1+sharedPause)*p.takes; took != want {
				t.Errorf("ten renderings in %v, want %v", took, want)
			}
		})
	})
	t.Run("errors are shared and not kept", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{err: errors.New("broken")}
			if _, err := s.get(t.Context(), "page", false, 0, p.render); !errors.Is(err, p.err) {
				t.Errorf("error %v", err)
			}
			p.err = nil
			get(t, s, p, true, 0)
		})
	})
	t.Run("a rendering does not end with its request", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{now: 1, takes: time.Second}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { _, _ = s.get(ctx, "page", false, 0, p.render) })
			synctest.Wait()
			all.Go(func() { get(t, s, p, true, 0) })
			synctest.Wait()
			cancel()
			all.Wait()
			if p.begun != 1 {
				t.Errorf("%d renderings, want 1", p.begun)
			}
		})
	})
	t.Run("kept pages are bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{}
			for i := range 3 * maxShared {
				if _, err := s.get(t.Context(), fmt.Sprint(i), false, 0, p.render); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(s.kept); n > maxShared {
				t.Errorf("%d pages are kept, want at most %d", n, maxShared)
			}
			time.Sleep(11 * sharedFor)
			get(t, s, p, false, 0)
			if n := len(s.kept); n != 1 {
				t.Errorf("%d pages are kept, want only the one requested recently", n)
			}
		})
	})
	t.Run("a rendering that panics ends", func(t *testing.T) {
		s := newShares(1)
		func() {
			defer func() { _ = recover() }()
			_, _ = s.get(t.Context(), "page", false, 0, func(context.Context) (*rendering, error) { panic("test") })
		}()
		get(t, s, &shared{}, false, 0)
	})
}

// TestSharesAreSeparate checks that renderings are shared only with viewers of the same
// access, and that forms have the token of the viewer's browser.
func TestSharesAreSeparate(t *testing.T) {
	w, lease := busyWorld(t)
	mine, other := strings.Repeat("A", 26), strings.Repeat("B", 26)
	for _, token := range []string{mine, other} {
		_, body := get(t, w.url+"/ui/leases/"+lease, "Cookie", formCookie+"="+token)
		if strings.Count(body, token) != 2 || strings.Contains(body, formPlaceholder) {
			t.Error("the forms of a page do not have the browser's token")
		}
		_, body = get(t, w.url+"/ui/leases/"+lease, "Cookie", formCookie+"="+token, afterHeader, "1")
		if strings.Count(body, token) != 2 || strings.Contains(body, formPlaceholder) {
			t.Errorf("the forms of a live page do not have the browser's token: %s", body)
		}
	}
	_, body := get(t, w.url+"/ui/leases/"+lease, "Cookie", formCookie+`=%22%3E%3Cscript%3Exxxxxxxxxxxxx`)
	if strings.Contains(body, "xxxxxxxxxxxxx") {
		t.Error("the page contains a cookie that no page has set")
	}
	speech := "Bearer " + w.token(dxpuv1.Role_ROLE_TENANT, "speech")
	if _, body := get(t, w.url+"/ui/leases/"+lease, "Authorization", speech, afterHeader, "1"); !strings.Contains(body, "does not exist") {
		t.Errorf("another tenant sees the lease:\n%s", body)
	}
}

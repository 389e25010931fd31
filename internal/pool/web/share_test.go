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

// A thousand live pages that look again with every event cost the manager a
// bounded number of renderings, and each tells of the event that made it look.
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

// A live page that asks again within a second is believed to be the caller's
// still; one that is loaded, and any with another credential, is not.
func TestIdentities(t *testing.T) {
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

// shared is a test's page: what was true when its rendering began.
type shared struct {
	truth uint64
	begun int
	takes time.Duration
	err   error
}

func (p *shared) render(context.Context) (*rendering, error) {
	p.begun++
	out := &rendering{revision: p.truth}
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
	t.Run("a live page takes what is kept, another does not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{truth: 7}
			first := get(t, s, p, false, 0)
			if get(t, s, p, true, 7) != first || get(t, s, p, true, 3) != first || p.begun != 1 {
				t.Errorf("a live page was rendered again: %d", p.begun)
			}
			if get(t, s, p, false, 0) == first {
				t.Error("a page that was loaded is an old one")
			}
			time.Sleep(sharedFor)
			if get(t, s, p, true, 7) == first || p.begun != 3 {
				t.Error("a live page is older than a second")
			}
		})
	})
	t.Run("who comes while a page is rendered gets the next", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{truth: 1, takes: time.Second}
			var all sync.WaitGroup
			all.Go(func() { get(t, s, p, false, 0) })
			synctest.Wait()
			p.truth = 2
			for range 100 {
				all.Go(func() {
					if out := get(t, s, p, false, 0); out.revision != 2 {
						t.Errorf("a page tells of revision %d, want 2", out.revision)
					}
				})
			}
			all.Wait()
			if p.begun != 2 {
				t.Errorf("%d renderings, want 2", p.begun)
			}
		})
	})
	t.Run("a live page that knows more waits for that, and not too often", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{truth: 1, takes: 100 * time.Millisecond}
			get(t, s, p, false, 0)
			begin := time.Now()
			for range 10 {
				p.truth++
				if out := get(t, s, p, true, p.truth); out.revision < p.truth {
					t.Errorf("revision %d, want %d", out.revision, p.truth)
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
	t.Run("who goes does not take the rendering along", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, p := newShares(2), &shared{truth: 1, takes: time.Second}
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
				t.Errorf("%d pages are kept of which nobody looks at but one", n)
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

// Nobody gets what was rendered for a caller who sees something else, and forms
// carry the token of the browser that gets them.
func TestSharedPagesAreOnesOwn(t *testing.T) {
	w, lease := livelyWorld(t)
	mine, other := strings.Repeat("A", 26), strings.Repeat("B", 26)
	for _, token := range []string{mine, other} {
		_, body := get(t, w.url+"/ui/leases/"+lease, "Cookie", formCookie+"="+token)
		if strings.Count(body, token) != 1 || strings.Contains(body, formPlace) {
			t.Error("the forms of a page do not carry the browser's token")
		}
		_, body = get(t, w.url+"/ui/leases/"+lease, "Cookie", formCookie+"="+token, afterHeader, "1")
		if strings.Count(body, token) != 1 || strings.Contains(body, formPlace) {
			t.Errorf("the forms of a live page do not carry the browser's token: %s", body)
		}
	}
	_, body := get(t, w.url+"/ui/leases/"+lease, "Cookie", formCookie+`=%22%3E%3Cscript%3Exxxxxxxxxxxxx`)
	if strings.Contains(body, "xxxxxxxxxxxxx") {
		t.Error("a cookie that no page made is in the page")
	}
	speech := "Bearer " + w.token(dxpuv1.Role_ROLE_TENANT, "speech")
	if _, body := get(t, w.url+"/ui/leases/"+lease, "Authorization", speech, afterHeader, "1"); !strings.Contains(body, "does not exist") {
		t.Errorf("another tenant sees the lease:\n%s", body)
	}
}

package client

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// told collects what a client tells its user.
type told struct {
	mu  sync.Mutex
	all []string
}

func (l *told) tell(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, reason)
}

func (l *told) check(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.all, want) {
		t.Errorf("the user is told %q, want %q", l.all, want)
	}
}

// A client says that it waits for a leader, once, and when there is one.
func TestWaitForALeaderIsTold(t *testing.T) {
	for _, tt := range []struct {
		name     string
		election time.Duration
		want     []string
	}{
		{"short", 200 * time.Millisecond, nil},
		{"long", 5 * time.Second, []string{"none of the managers leads yet", ""}},
		{"without end", time.Hour, []string{"none of the managers leads yet"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var list told
				c := followers(t, time.Now().Add(tt.election), &list, "http://m1", "http://m2")
				_ = post(t.Context(), c, nil)
				_ = post(t.Context(), c, nil)
				list.check(t, tt.want...)
			})
		})
	}
}

// Calls that come while no manager leads share the searches for one: all of them fail after
// the time for an election, not one after the other.
func TestCallsShareAFailedSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list told
		c := followers(t, time.Now().Add(time.Hour), &list, "http://m1", "http://m2")
		start := time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if got := post(t.Context(), c, nil); got == "leads" {
					t.Error("a manager leads")
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > defaultElectionTimeout+probeTimeout {
			t.Errorf("took %v", took)
		}
	})
}

// A call that waited for a search which its own caller ended does not end with the error of an
// older one: a manager may lead by now.
func TestOldFailureEndsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		us, err := parseURLs([]string{"http://m1", "http://m2"})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		at := newLeaderTransport(us, freezing{follower(start.Add(time.Minute + 1200*time.Millisecond)), start.Add(time.Minute)}, "", time.Second)
		c := &http.Client{Transport: at}
		_ = post(t.Context(), c, nil)
		time.Sleep(time.Minute - time.Since(start))
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			defer cancel()
			_ = post(ctx, c, nil)
		})
		synctest.Wait() // it looks for the leader
		if got := post(t.Context(), c, nil); got != "leads" {
			t.Errorf("got %q", got)
		}
		wg.Wait()
	})
}

// freezing is a manager that does not answer from a moment on until it leads.
type freezing struct {
	follower
	from time.Time
}

func (f freezing) RoundTrip(r *http.Request) (*http.Response, error) {
	if now := time.Now(); !now.Before(f.from) && now.Before(time.Time(f.follower)) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return f.follower.RoundTrip(r)
}

// The only manager that a client knows waits for an election, too.
func TestWaitOfAFollowerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list told
		c := followers(t, time.Now().Add(5*time.Second), &list, "http://m1")
		if got := post(t.Context(), c, nil); got != "leads" {
			t.Errorf("got %q", got)
		}
		list.check(t, "m1 knows no leader yet", "")
	})
}

// followers returns a client of managers that lead from a moment on.
func followers(t *testing.T, led time.Time, list *told, urls ...string) *http.Client {
	t.Helper()
	us, err := parseURLs(urls)
	if err != nil {
		t.Fatal(err)
	}
	at := newLeaderTransport(us, follower(led), "", defaultElectionTimeout)
	at.waits.tell = list.tell
	return &http.Client{Transport: at}
}

// follower is a manager that leads from a moment on.
type follower time.Time

func (f follower) RoundTrip(r *http.Request) (*http.Response, error) {
	res := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
	if time.Now().Before(time.Time(f)) {
		res.StatusCode = http.StatusServiceUnavailable
		res.Header.Set(LeaderHeader, NoLeader)
		return res, nil
	}
	res.Body = io.NopCloser(strings.NewReader("leads"))
	return res, nil
}

// A manager that answers probes, and says that it does not lead, does not end the wait for a
// leader, however slowly it refuses the call itself.
func TestWaitForALeaderIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list told
		led := follower(time.Now().Add(20 * time.Second))
		us, err := parseURLs([]string{"http://m1"})
		if err != nil {
			t.Fatal(err)
		}
		at := newLeaderTransport(us, slowCalls{led}, "", time.Minute)
		at.waits.tell = list.tell
		if got := post(t.Context(), &http.Client{Transport: at}, nil); got != "leads" {
			t.Errorf("got %q", got)
		}
		list.check(t, "m1 knows no leader yet", "")
	})
}

// slowCalls answers probes at once and calls after three seconds.
type slowCalls struct{ http.RoundTripper }

func (s slowCalls) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/readyz" {
		time.Sleep(3 * time.Second)
	}
	return s.RoundTripper.RoundTrip(r)
}

// A user who follows the pool for long hears of a manager that does not answer any more
// within two seconds.
func TestFrozenManagerIsToldSoonAfterALongSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list told
		froze := time.Now().Add(time.Hour + 10*time.Second)
		c := silentClient(t, func(r *http.Request) string {
			if r.URL.Host != "m1" || r.URL.Path != "/readyz" || time.Now().After(froze) {
				<-r.Context().Done()
				return ""
			}
			return "of " + r.URL.Host
		})
		var after time.Duration
		c.Transport.(*leaderTransport).waits.tell = func(reason string) {
			list.tell(reason)
			after = time.Since(froze)
		}
		_ = post(t.Context(), c, nil)
		list.check(t, "m1 does not answer")
		if after > 2*time.Second {
			t.Errorf("told after %v", after)
		}
	})
}

// A client says that the manager with its call does not answer, and when it does again: it
// was frozen for a while, or only the probe was lost. A slow call says nothing.
func TestWaitForAFrozenManagerIsTold(t *testing.T) {
	for _, tt := range []struct {
		name         string
		answer, wake time.Duration // of the call, of the probes
		want         []string
	}{
		{"slow call", time.Minute, 0, nil},
		{"frozen for a while", 4 * time.Second, 3900 * time.Millisecond, []string{"m1 does not answer", ""}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var list told
				var called atomic.Int64 // when the call came
				c := silentClient(t, func(r *http.Request) string {
					switch {
					case r.URL.Host != "m1":
						return ""
					case r.URL.Path != "/readyz":
						called.Store(time.Now().UnixNano())
						time.Sleep(tt.answer)
					case called.Load() != 0:
						time.Sleep(tt.wake - time.Since(time.Unix(0, called.Load())))
					}
					return "of " + r.URL.Host
				})
				c.Transport.(*leaderTransport).waits.tell = list.tell
				if got := post(t.Context(), c, nil); got != "of m1" {
					t.Errorf("got %q", got)
				}
				list.check(t, tt.want...)
			})
		})
	}
}

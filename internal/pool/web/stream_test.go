package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// sink is the browser's end of a stream. While it is held, writes block.
type sink struct {
	header http.Header
	cancel context.CancelFunc
	done   chan struct{}

	hold     chan struct{} // full: writes wait
	late     chan struct{} // closed when a deadline has passed: the end of the stream, as in HTTP/2
	mu       sync.Mutex    // guards the fields below
	status   int
	body     strings.Builder
	deadline *time.Timer
}

func newSink() *sink {
	return &sink{header: http.Header{}, done: make(chan struct{}), hold: make(chan struct{}, 1), late: make(chan struct{})}
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *sink) Write(b []byte) (int, error) {
	select {
	case s.hold <- struct{}{}:
		defer func() { <-s.hold }()
	case <-s.late:
		return 0, os.ErrDeadlineExceeded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.body.Write(b)
}

func (s *sink) Flush() {}

func (s *sink) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deadline != nil && !s.deadline.Stop() {
		return nil // it has passed
	}
	if s.deadline = nil; t.IsZero() {
		return nil
	}
	s.deadline = time.AfterFunc(time.Until(t), func() {
		if s.cancel != nil {
			s.cancel()
		}
		close(s.late)
	})
	return nil
}

// got returns the IDs of the received events of a type.
func (s *sink) got(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for e := range strings.SplitSeq(s.body.String(), "\n\n") {
		if strings.Contains(e, "event: "+name+"\n") {
			id, _, _ := strings.Cut(strings.TrimPrefix(e, "id: "), "\n")
			out = append(out, id)
		}
	}
	return out
}

func (s *sink) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// watch opens a stream.
func watch(t *testing.T, s *Server, token, query string, header ...string) *sink {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/ui/stream?"+query, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	out := newSink()
	out.cancel = cancel
	go func() {
		defer close(out.done)
		s.ServeHTTP(out, r)
	}()
	synctest.Wait()
	return out
}

func numbers(from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

func wantIDs(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: events %v, want %v", what, got, want)
	}
}

// later waits until all pending work is done.
func later() {
	time.Sleep(2 * rowPace)
	synctest.Wait()
}

// TestStreamResumes checks that a browser that reconnects with its last event ID gets
// each event since then once and in order, with and without other viewers.
func TestStreamResumes(t *testing.T) {
	for _, others := range []int{0, 3} {
		t.Run(fmt.Sprintf("%d others", others), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newFakeAPI()
				s := serve(a)
				a.happen(5, "x")
				for range others {
					defer watch(t, s, "operator", "rows=1").cancel()
				}
				first := watch(t, s, "operator", "rows=1&after=3")
				a.happen(1, "x")
				later()
				wantIDs(t, "from the page's revision on", first.got("change"), numbers(4, 6))
				first.cancel()
				a.happen(4, "x")
				later()
				again := watch(t, s, "operator", "rows=1&after=3", "Last-Event-ID", "6")
				a.happen(2, "x")
				later()
				wantIDs(t, "after the reconnect", again.got("change"), numbers(7, 12))
				again.cancel()
			})
		})
	}
}

// TestStreamResets checks that a browser gets a reset if the events since its last one
// are no longer available.
func TestStreamResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		a.happen(5, "x")
		a.forget()
		v := watch(t, s, "operator", "after=3")
		if !v.over() || len(v.got("reset")) != 1 {
			t.Errorf("want a reset: over %v, %q", v.over(), v.body.String())
		}
	})
}

// TestStreamCoalesces checks that pages other than that of events get the newest event
// only, at most once in pagePace.
func TestStreamCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		v := watch(t, s, "operator", "after=0")
		a.happen(1, "x")
		synctest.Wait()
		wantIDs(t, "at once", v.got("change"), numbers(1, 1))
		a.happen(50, "x")
		a.happen(50, "x")
		synctest.Wait()
		wantIDs(t, "within the pace", v.got("change"), numbers(1, 1))
		time.Sleep(pagePace)
		synctest.Wait()
		wantIDs(t, "after it", v.got("change"), []string{"1", "101"})
		v.cancel()
	})
}

func TestStreamFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		one := watch(t, s, "operator", "rows=1&host=h-a&type=lease")
		none := watch(t, s, "operator", "rows=1&type=binding")
		a.happen(2, "a")
		a.happen(2, "b")
		later()
		wantIDs(t, "of one host", one.got("change"), numbers(1, 2))
		wantIDs(t, "of another type", none.got("change"), nil)
		// Events that do not pass the filter advance the ID too.
		time.Sleep(streamAlive)
		synctest.Wait()
		wantIDs(t, "signs of life", none.got("alive"), []string{"4"})
		one.cancel()
		none.cancel()
	})
}

// TestViewersShareOneWatch checks that a thousand viewers need one watch for each kind of
// access, that a row is rendered once, and that tenants do not see each other's events.
func TestViewersShareOneWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		var mu sync.Mutex
		rendered := 0
		render := s.feeds.event
		s.feeds.event = func(e *dxpuv1.Event) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			rendered++
			return render(e)
		}
		tokens := []string{"operator", "tenant/a", "tenant/b", "operator"}
		var all []*sink
		for i := range 1000 {
			all = append(all, watch(t, s, tokens[i%4], "rows=1"))
		}
		a.happen(20, "a")
		a.happen(20, "b")
		later()
		for i, v := range all {
			want := [][]string{numbers(1, 40), numbers(1, 20), numbers(21, 40), numbers(1, 40)}[i%4]
			if got := v.got("change"); !slices.Equal(got, want) {
				t.Fatalf("viewer %d: %v, want %v", i, got, want)
			}
			if token := tokens[i%4]; token == "tenant/a" && strings.Contains(v.body.String(), "of b") {
				t.Fatal("tenant a sees an event of tenant b")
			}
		}
		if a.watches != 3 || rendered != 80 {
			t.Errorf("%d watches and %d rows were made for 1000 viewers, want 3 and 80", a.watches, rendered)
		}
		for _, v := range all {
			v.cancel()
		}
		synctest.Wait()
		if n := len(s.feeds.open); n != 0 {
			t.Errorf("%d feeds are open without viewers", n)
		}
	})
}

// TestManyViewersAtOnce checks that a thousand viewers that connect at the same time, as
// after a change of the leader, share few watches.
func TestManyViewersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		a.happen(5, "x")
		ctx, cancel := context.WithCancel(t.Context())
		var all []*sink
		for i := range 1000 {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("/ui/stream?rows=1&after=%d", 1+i%5), nil)
			r.Header.Set("Authorization", "Bearer operator")
			v := newSink()
			all = append(all, v)
			go func() {
				defer close(v.done)
				s.ServeHTTP(v, r)
			}()
		}
		later()
		for i, v := range all {
			wantIDs(t, fmt.Sprint(i), v.got("change"), numbers(2+i%5, 5))
		}
		if a.watches > 5 { // at most one for each starting revision
			t.Errorf("%d watches were made", a.watches)
		}
		cancel()
		synctest.Wait()
		if len(s.feeds.open) != 0 {
			t.Error("a feed is open without viewers")
		}
	})
}

// TestSlowViewerIsDropped checks that a browser which does not read its stream does not delay
// others, loses the stream, and gets a reset when it reconnects.
func TestSlowViewerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		slow, quick := watch(t, s, "operator", "rows=1"), watch(t, s, "operator", "rows=1")
		a.happen(1, "x")
		later()
		slow.hold <- struct{}{}
		for range 6 * feedKeeps / 500 {
			a.happen(500, "x")
			time.Sleep(2 * rowPace)
		}
		later()
		wantIDs(t, "the quick one", quick.got("change"), numbers(1, 6*feedKeeps+1))
		<-slow.hold
		later()
		if !slow.over() || len(slow.got("reset")) != 1 {
			t.Errorf("the slow viewer: over %v, %d resets", slow.over(), len(slow.got("reset")))
		}
		quick.cancel()
	})
}

// A browser that takes nothing loses its stream; one that has nothing to take keeps it. The
// server's deadlines end a stream of HTTP/2 also while nothing is written.
func TestStuckStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		stuck, idle := watch(t, s, "operator", "rows=1"), watch(t, s, "operator", "rows=1&host=none")
		later()
		stuck.hold <- struct{}{}
		a.happen(1, "x")
		time.Sleep(defaultWriteTimeout + time.Second)
		if !stuck.over() {
			t.Error("the stuck one is open")
		}
		time.Sleep(10 * defaultWriteTimeout)
		if idle.over() {
			t.Error("the idle one is over")
		}
		idle.cancel()
	})
}

// TestStreamEndsWithItsToken checks that a stream ends after its token was deleted: at
// the next event or the next alive message.
func TestStreamEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		first, idle, good := watch(t, s, "one", "rows=1"), watch(t, s, "two", "rows=1"), watch(t, s, "three", "rows=1&host=none")
		time.Sleep(2 * streamCheck)
		a.mu.Lock()
		a.bad["two"] = true
		a.mu.Unlock()
		a.happen(1, "x")
		later()
		if len(first.got("change")) != 1 || len(idle.got("change")) != 0 || !idle.over() {
			t.Errorf("%d and %d events came, the second is over: %v", len(first.got("change")), len(idle.got("change")), idle.over())
		}
		// The feed ends with the credential that opened it; the others reconnect.
		a.mu.Lock()
		a.bad["one"] = true
		a.mu.Unlock()
		a.happen(1, "x")
		later()
		if !first.over() || len(first.got("change")) != 1 || !good.over() {
			t.Errorf("over: %v and %v; %d events", first.over(), good.over(), len(first.got("change")))
		}
		again := watch(t, s, "three", "rows=1", "Last-Event-ID", "1")
		later()
		wantIDs(t, "after the reconnect", again.got("change"), numbers(2, 2))
		if refused := watch(t, s, "one", "rows=1"); refused.status != http.StatusUnauthorized {
			t.Errorf("a bad token gets status %d", refused.status)
		}
		again.cancel()
	})
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(newFakeAPI(), func(c *Config) { c.MaxStreams = 2 })
		one, two := watch(t, s, "operator", ""), watch(t, s, "operator", "")
		if v := watch(t, s, "operator", ""); v.status != http.StatusServiceUnavailable || v.header.Get("Retry-After") == "" {
			t.Errorf("the third: %d %v", v.status, v.header)
		}
		one.cancel()
		synctest.Wait()
		if v := watch(t, s, "operator", ""); v.over() {
			t.Errorf("after one has gone: %d", v.status)
		} else {
			v.cancel()
		}
		two.cancel()
	})
}

// A browser that claims to have seen the last of all revisions gets no event, and not the
// same ones again with each new one.
func TestForgedRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		honest := watch(t, s, "operator", "rows=1")
		a.happen(3, "x")
		later()
		forger := watch(t, s, "operator", "rows=1&after=18446744073709551615")
		for range 5 {
			a.happen(1, "x")
			later()
		}
		wantIDs(t, "the honest one", honest.got("change"), numbers(1, 8))
		if got := forger.got("change"); len(got) > 0 {
			t.Errorf("the forger gets %v", got)
		}
		honest.cancel()
		forger.cancel()
	})
}

// A tenant cannot take the streams of the operators and of other tenants.
func TestStreamsOfTenantsAreBounded(t *testing.T) {
	c := viewers{open: map[string]int{}}
	const most = 4
	enter := func(me *dxpuv1.WhoAmIResponse) bool {
		_, ok := c.enter(scopeOf(me), most)
		return ok
	}
	one := &dxpuv1.WhoAmIResponse{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "one"}
	leave, _ := c.enter(scopeOf(one), most)
	for range most - 1 {
		enter(one)
	}
	if enter(one) {
		t.Error("one more of the tenant is let in")
	}
	if !enter(&dxpuv1.WhoAmIResponse{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "two"}) {
		t.Error("another tenant is refused")
	}
	for range 10 * most {
		if !enter(&dxpuv1.WhoAmIResponse{Role: dxpuv1.Role_ROLE_OPERATOR}) || !enter(&dxpuv1.WhoAmIResponse{Role: dxpuv1.Role_ROLE_ADMIN}) {
			t.Fatal("an operator is refused")
		}
	}
	if leave(); !enter(one) {
		t.Error("the tenant is refused after one has left")
	}
}

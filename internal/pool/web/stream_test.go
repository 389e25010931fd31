package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// sink is a browser's end of a stream. While held, it takes nothing.
type sink struct {
	header http.Header
	cancel context.CancelFunc
	done   chan struct{}

	hold     chan struct{} // full: writes wait
	mu       sync.Mutex    // guards what follows
	status   int
	body     strings.Builder
	deadline time.Time
}

func (s *sink) Header() http.Header { return s.header }

func (s *sink) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *sink) Write(b []byte) (int, error) {
	s.hold <- struct{}{}
	defer func() { <-s.hold }()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.body.Write(b)
}

func (s *sink) Flush() {}

func (s *sink) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	return nil
}

// got lists the events of a type that came, by their IDs.
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

// watch opens a stream as a browser does.
func watch(t *testing.T, s *Server, token, query string, header ...string) *sink {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/ui/stream?"+query, nil)
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	out := &sink{header: http.Header{}, cancel: cancel, done: make(chan struct{}), hold: make(chan struct{}, 1)}
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

// later lets everything happen that is under way.
func later() {
	time.Sleep(2 * streamPace)
	synctest.Wait()
}

// A browser that comes again names what it saw last, and gets what it missed:
// each event once, in their order, whether others looked on meanwhile or nobody.
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
				wantIDs(t, "after coming again", again.got("change"), numbers(7, 12))
				again.cancel()
			})
		})
	}
}

// Where the events are forgotten the browser is told to look at everything again.
func TestStreamResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		a.happen(5, "x")
		a.forget()
		v := watch(t, s, "operator", "after=3")
		if !v.over() || len(v.got("reset")) != 1 {
			t.Errorf("forgotten by the manager: over %v, %q", v.over(), v.body.String())
		}
	})
}

// A page that is not of the events hears of the newest only: it looks at all of it anyway.
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
		time.Sleep(lookPace)
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
		// What is filtered out has been seen, too.
		time.Sleep(streamAlive)
		synctest.Wait()
		wantIDs(t, "signs of life", none.got("alive"), []string{"4"})
		one.cancel()
		none.cancel()
	})
}

// A thousand viewers cost the manager one watch for each kind of caller, and a
// row is rendered once. Nobody sees what is another's.
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
				t.Fatal("tenant a sees what is b's")
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
			t.Errorf("%d feeds are open with nobody there", n)
		}
	})
}

// A thousand who come at once, as when a manager has begun to lead, open one watch.
func TestViewersComeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeAPI()
		s := serve(a)
		a.happen(5, "x")
		ctx, cancel := context.WithCancel(t.Context())
		var all []*sink
		for i := range 1000 {
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("/ui/stream?rows=1&after=%d", 1+i%5), nil)
			r.Header.Set("Authorization", "Bearer operator")
			v := &sink{header: http.Header{}, done: make(chan struct{}), hold: make(chan struct{}, 1)}
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
		if a.watches > 5 { // one for each place to begin at, at most
			t.Errorf("%d watches were made", a.watches)
		}
		cancel()
		synctest.Wait()
		if len(s.feeds.open) != 0 {
			t.Error("a feed is open with nobody there")
		}
	})
}

// Who does not take what is sent holds up nobody, loses the stream, and is told
// to look again.
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
			time.Sleep(2 * streamPace)
		}
		later()
		wantIDs(t, "the quick one", quick.got("change"), numbers(1, 6*feedKeeps+1))
		if d := time.Until(slow.deadline); d > defaultWriteTimeout {
			t.Errorf("the slow one's write ends in %v", d)
		}
		<-slow.hold
		later()
		if !slow.over() || len(slow.got("reset")) != 1 {
			t.Errorf("the slow one: over %v, %d resets", slow.over(), len(slow.got("reset")))
		}
		quick.cancel()
	})
}

// A stream ends with its token: when there is something to tell, or at the next sign of life.
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
		// The feed ends with who opened it; the others come again and open theirs.
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
		wantIDs(t, "who came again", again.got("change"), numbers(2, 2))
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

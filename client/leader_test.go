package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestParseManagers(t *testing.T) {
	tests := []struct{ name, list, want string }{
		{"one", "http://m1:7470", "[http://m1:7470]"},
		{"three", "https://m1:7470, https://m2:7470,https://[::1]:7470", "[https://m1:7470 https://m2:7470 https://[::1]:7470]"},
		{"none", "", `"" is not the URL of a manager`},
		{"an empty one", "http://m1,", `"" is not the URL of a manager`},
		{"no scheme", "m1:7470", `"m1:7470" is not the URL of a manager`},
		{"no host", "http://", `"http://" is not the URL of a manager`},
		{"another scheme", "ftp://m1", `"ftp://m1" is not the URL of a manager`},
		{"mixed", "http://m1,https://m2", "http://m1 and https://m2: the managers of one pool all use https, or all http"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			us, err := ParseManagers(tt.list)
			got := fmt.Sprint(us)
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// fakeManagers are managers of which at most one leads.
type fakeManagers struct {
	servers []*httptest.Server
	mu      sync.Mutex
	leader  int // -1: none
	hint    bool
	hangs   map[int]bool
	calls   []int
	done    chan struct{}
}

func newFakeManagers(t *testing.T, n int) *fakeManagers {
	f := &fakeManagers{hint: true, hangs: map[int]bool{}, done: make(chan struct{})}
	for i := range n {
		f.servers = append(f.servers, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.serve(i, w, r) })))
		t.Cleanup(f.servers[i].Close)
	}
	t.Cleanup(func() { close(f.done) })
	return f
}

func (f *fakeManagers) serve(i int, w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	leader, hint, hangs := f.leader, f.hint, f.hangs[i]
	if r.URL.Path != "/readyz" {
		f.calls = append(f.calls, i)
	}
	f.mu.Unlock()
	if hangs {
		select {
		case <-r.Context().Done():
		case <-f.done:
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	if i != leader {
		if hint && leader >= 0 {
			w.Header().Set(LeaderHeader, f.servers[leader].URL)
		} else {
			w.Header().Set(LeaderHeader, NoLeader)
		}
		http.Error(w, "follower", http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintf(w, "%d got %s", i, body)
}

func (f *fakeManagers) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeManagers) client(t *testing.T, timeout time.Duration, of ...int) *http.Client {
	var urls []string
	for _, i := range of {
		urls = append(urls, f.servers[i].URL)
	}
	us, err := parseURLs(urls)
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: newLeaderTransport(us, base, "", timeout)}
}

// stop stops a manager and closes the client's idle connections to it.
func (f *fakeManagers) stop(i int, c *http.Client) {
	f.servers[i].Close()
	c.CloseIdleConnections()
}

func post(ctx context.Context, c *http.Client, body io.Reader) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ignored/call", body)
	if err != nil {
		return err.Error()
	}
	res, err := c.Do(r)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	raw, _ := io.ReadAll(res.Body)
	return strings.TrimSpace(string(raw))
}

// A manager that refuses a call may still read its body while the call is sent to another
// one, which gets the whole body nevertheless.
func TestRefusedCallIsReadLate(t *testing.T) {
	us, err := parseURLs([]string{"http://m1"})
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: newLeaderTransport(us, &lateReader{}, "", time.Minute)}
	body := strings.NewReader("hello")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://ignored/call", io.NopCloser(body))
	if err != nil {
		t.Fatal(err)
	}
	r.GetBody = func() (io.ReadCloser, error) { // as that of connect
		_, err := body.Seek(0, io.SeekStart)
		return io.NopCloser(body), err
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if got, err := io.ReadAll(res.Body); string(got) != "hello" {
		t.Errorf("the leader got %q, %v", got, err)
	}
}

// lateReader is the network to a follower m1 and a leader m2. The body of a call to m1 is
// sent after it has refused the call.
type lateReader struct{ late io.Reader }

func (n *lateReader) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host == "m1" {
		n.late = r.Body
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{LeaderHeader: {"http://m2"}}, Body: http.NoBody, Request: r}, nil
	}
	if _, err := io.Copy(io.Discard, n.late); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: r.Body, Request: r}, nil
}

func TestLeaderIsFound(t *testing.T) {
	f := newFakeManagers(t, 3)
	c := f.client(t, 0, 0, 1, 2)
	for _, leader := range []int{1, 1, 2, 0} { // the former leader names its successor
		f.set(func() { f.leader = leader })
		if got, want := post(t.Context(), c, strings.NewReader("x")), fmt.Sprintf("%d got x", leader); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := fmt.Sprint(f.calls); got != "[1 1 1 2 2 0]" {
		t.Errorf("calls: %s", got)
	}
	f.set(func() { f.hint, f.leader = false, 1 }) // no manager knows the leader: all are probed
	if got := post(t.Context(), c, strings.NewReader("y")); got != "1 got y" {
		t.Errorf("without a hint: %s", got)
	}
	f.stop(1, c)
	f.set(func() { f.leader = 2 })
	if got := post(t.Context(), c, strings.NewReader("z")); got != "2 got z" {
		t.Errorf("after the leader stopped: %s", got)
	}
}

// One manager is enough to find the others.
func TestFollowersNameTheLeader(t *testing.T) {
	f := newFakeManagers(t, 2)
	f.leader = 1
	c := f.client(t, 0, 0)
	if got := post(t.Context(), c, strings.NewReader("x")); got != "1 got x" {
		t.Errorf("got %s", got)
	}
	f.stop(1, c) // the configured manager is tried again
	f.set(func() { f.leader = 0 })
	if got := post(t.Context(), c, strings.NewReader("y")); got != "0 got y" {
		t.Errorf("after the leader stopped: %s", got)
	}
	f.set(func() { f.leader = -1 })
	if got := post(t.Context(), c, strings.NewReader("z")); got != "follower" {
		t.Errorf("while no manager leads: %s", got)
	}
	time.AfterFunc(50*time.Millisecond, func() { f.set(func() { f.leader = 0 }) })
	if got := post(t.Context(), f.client(t, time.Minute, 0), strings.NewReader("x")); got != "0 got x" {
		t.Errorf("after an election: %s", got)
	}
}

// A manager that has taken the place of another one at a URL of its own leads. The clients do
// not know it, and the leader before is gone.
func TestUnknownManagerLeads(t *testing.T) {
	f := newFakeManagers(t, 4)
	c := f.client(t, time.Minute, 0, 1, 2)
	f.set(func() { f.hangs[1] = true })
	if got := post(t.Context(), c, strings.NewReader("x")); got != "0 got x" {
		t.Fatalf("got %s", got)
	}
	f.set(func() { f.leader = 3 })
	f.stop(0, c)
	if got := post(t.Context(), c, strings.NewReader("y")); got != "3 got y" {
		t.Errorf("got %s", got)
	}
	if got := post(t.Context(), f.client(t, 0, 1, 2), strings.NewReader("z")); got != "3 got z" {
		t.Errorf("without time for a second probe: %s", got)
	}
}

// Followers that each name another manager do not make a client probe without end.
func TestManyNamedLeaders(t *testing.T) {
	var us []*url.URL
	for i := range 2 * maxNamed {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(LeaderHeader, fmt.Sprintf("http://127.0.0.1:%d", 1+i)) // where nothing listens
			http.Error(w, "follower", http.StatusServiceUnavailable)
		}))
		t.Cleanup(s.Close)
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		us = append(us, u)
	}
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	_, err := newLeaderTransport(us, base, "", 0).find(t.Context())
	if n := strings.Count(fmt.Sprint(err), "dial tcp"); n != maxNamed {
		t.Errorf("%d named managers were probed, want %d: %v", n, maxNamed, err)
	}
}

func TestNoManagerLeads(t *testing.T) {
	f := newFakeManagers(t, 3)
	f.leader = -1
	f.servers[2].Close()
	got := post(t.Context(), f.client(t, 0, 0, 1, 2), strings.NewReader("x"))
	for _, want := range []string{"none of the managers leads", f.servers[0].URL + ": follower", f.servers[2].URL + ": dial tcp"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	// With a timeout, the request waits for the election.
	time.AfterFunc(50*time.Millisecond, func() { f.set(func() { f.leader = 1 }) })
	if got := post(t.Context(), f.client(t, time.Minute, 0, 1, 2), strings.NewReader("x")); got != "1 got x" {
		t.Errorf("after an election: %s", got)
	}
}

// Where no certificate holds, the client does not wait for an election, and the caller gets
// the reason with its type.
func TestNoManagerIsTrusted(t *testing.T) {
	var urls []string
	for range 3 {
		s := httptest.NewTLSServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		t.Cleanup(s.Close)
		urls = append(urls, s.URL)
	}
	us, err := parseURLs(urls)
	if err != nil {
		t.Fatal(err)
	}
	base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}}
	t.Cleanup(base.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = newLeaderTransport(us, base, "", time.Hour).find(ctx)
	if authority := (x509.UnknownAuthorityError{}); !errors.As(err, &authority) || strings.Contains(err.Error(), "leads") {
		t.Errorf("by an authority: %v", err)
	}
	pinned := &http.Transport{DialTLSContext: pinnedDialer("sha256:"+strings.Repeat("0", 64), nil, &tls.Config{})}
	t.Cleanup(pinned.CloseIdleConnections)
	_, err = newLeaderTransport(us, pinned, "", time.Hour).find(ctx)
	if err == nil || !strings.HasPrefix(err.Error(), "auth: the manager's authority is not the one with the hash") {
		t.Errorf("by a hash: %v", err)
	}
}

// A manager that hangs does not delay clients that look for the leader. A client
// that waited for it in vain uses another manager for the next request, and does
// not repeat the lost one.
func TestHangingManager(t *testing.T) {
	f := newFakeManagers(t, 3)
	c := f.client(t, 0, 0, 1, 2)
	if got := post(t.Context(), c, strings.NewReader("1")); got != "0 got 1" {
		t.Fatalf("got %s", got)
	}
	f.set(func() { f.hangs[0], f.leader = true, 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := post(ctx, c, strings.NewReader("2")); !strings.Contains(got, "deadline") {
		t.Errorf("got %s", got)
	}
	if got := post(t.Context(), c, strings.NewReader("3")); got != "1 got 3" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(f.calls); got != "[0 0 1]" {
		t.Errorf("calls: %s", got)
	}
}

// A request whose body cannot be read twice is not repeated; the caller gets the
// follower's answer.
func TestBodyCannotBeRepeated(t *testing.T) {
	f := newFakeManagers(t, 2)
	c := f.client(t, 0, 0, 1)
	post(t.Context(), c, nil)
	f.set(func() { f.leader = 1 })
	if got := post(t.Context(), c, io.MultiReader(strings.NewReader("x"))); got != "follower" {
		t.Errorf("got %s", got)
	}
	if got := post(t.Context(), c, strings.NewReader("y")); got != "1 got y" {
		t.Errorf("got %s", got)
	}
}

func TestNoRedirectFromTLS(t *testing.T) {
	us, err := parseURLs([]string{"https://m1"})
	if err != nil {
		t.Fatal(err)
	}
	tr := newLeaderTransport(us, nil, "", 0)
	at, err := tr.find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tr.follow(at, "http://m2")
	if at, _ := tr.find(t.Context()); at.String() != "https://m1" {
		t.Errorf("followed to %s", at)
	}
}

package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// A manager that does not lead answers with the header LeaderHeader. Its value
// is the leader's URL, or NoLeader during an election.
const (
	LeaderHeader = "Dxpu-Leader"
	NoLeader     = "none"
)

const (
	// probeTimeout bounds a probe, which a healthy manager answers at once.
	probeTimeout = 2 * time.Second
	// silence is the time without an answer after which a client probes the manager that
	// has its request. After silentProbes without an answer it gives up.
	silence, longestSilence = 2 * time.Second, time.Minute
	// userSilence is the same for a user, who hears of it two seconds after the last sign of
	// the manager: a person waits, and there are few.
	userSilence  = 2*time.Second - slowProbe
	silentProbes = 2
	// The pauses between two probes of a manager: an election takes seconds, and
	// thousands of nodes wait for its end.
	firstPause, lastPause = 100 * time.Millisecond, time.Second
	// maxTries bounds how often one request is sent: to the former leader, to
	// the one it names, and both again when the leader has just changed.
	maxTries = 4
	// maxAnswer bounds how much of a refusal is read, in bytes.
	maxAnswer = 4 << 10
	// maxNamed bounds how many managers are probed that others name.
	maxNamed = 4
)

// leaderTransport is an http.RoundTripper that sends requests to the manager
// that leads, whatever host they name.
type leaderTransport struct {
	managers []*url.URL
	base     http.RoundTripper
	token    string
	timeout  time.Duration // for an election
	probing  chan struct{} // holds one element while a goroutine looks for the leader
	waits    waits

	mu     sync.Mutex // guards the fields below
	leader *url.URL   // nil: unknown
	failed failure    // the last search for the leader
}

// failure is a search for the leader that found none.
type failure struct {
	err error // nil: it found one
	at  time.Time
}

func newLeaderTransport(managers []*url.URL, base http.RoundTripper, token string, timeout time.Duration) *leaderTransport {
	return &leaderTransport{managers: managers, base: base, token: token, timeout: timeout, probing: make(chan struct{}, 1)}
}

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (t *leaderTransport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *leaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	r, err := withOwnBodies(r)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		at, err := t.find(r.Context())
		if err != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
		res, err := t.send(r, at)
		refused := err == nil && res.Header.Get(LeaderHeader) != ""
		switch {
		case err == nil && !refused:
			t.waits.over()
			return res, nil
		case err != nil:
			t.forget(at)
		default:
			t.follow(at, res.Header.Get(LeaderHeader))
		}
		again := try < maxTries && (refused || notSent(err)) && t.hasAlternative(at)
		if waited := time.Since(start); refused && !again && waited < t.timeout {
			if waited > longElection {
				t.waits.say(at.Host + " knows no leader yet")
			}
			again = pause(r.Context(), firstPause) // the only known manager waits for the election, too
		}
		if again = again && r.Context().Err() == nil; again {
			r, again = rewind(r)
		}
		if !again {
			return res, err
		}
		if res != nil {
			_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) // so that the connection can be used again
			_ = res.Body.Close()
		}
	}
}

// addressed returns the request for one manager, with the token.
func (t *leaderTransport) addressed(ctx context.Context, r *http.Request, at *url.URL) *http.Request {
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host = at.Scheme, at.Host, ""
	if t.token != "" {
		out.Header.Set("Authorization", "Bearer "+t.token)
	}
	return out
}

// withOwnBodies returns a request that gives each attempt a body of its own, if its body
// can be read twice. connect's GetBody returns the same body each time, which an attempt
// that was refused early may still read while the next one begins.
func withOwnBodies(r *http.Request) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody || r.GetBody == nil {
		return r, nil
	}
	raw, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
	out.Body, _ = out.GetBody()
	return out, nil
}

// rewind returns a request to send again, or false if its body cannot be read twice.
func rewind(r *http.Request) (*http.Request, bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, true
	}
	if r.GetBody == nil {
		return r, false
	}
	body, err := r.GetBody()
	if err != nil {
		return r, false
	}
	out := r.Clone(r.Context())
	out.Body = body
	return out, true
}

// notSent reports whether a request failed before any manager received it.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// forget records that a manager did not answer.
func (t *leaderTransport) forget(at *url.URL) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader == at {
		t.leader = nil
	}
}

// follow records the leader that a follower names.
func (t *leaderTransport) follow(at *url.URL, leader string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader != at {
		return // another goroutine has newer information
	}
	t.leader = named(at, leader)
}

// named returns the leader that a manager names in the header; nil: no other, or by
// cleartext after TLS.
func named(at *url.URL, leader string) *url.URL {
	u, err := url.Parse(leader)
	if err != nil || u.Scheme != at.Scheme || u.Host == "" || u.Host == at.Host {
		return nil
	}
	return u
}

// hasAlternative reports whether a manager other than at is known.
func (t *leaderTransport) hasAlternative(at *url.URL) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.managers) > 1 || t.leader != nil || t.managers[0] != at
}

// find returns the manager that leads. It does not probe a single known manager. A call
// that waited for the searches of others, which all failed, ends with the last one's error.
func (t *leaderTransport) find(ctx context.Context) (*url.URL, error) {
	if leader := t.known(); leader != nil {
		return leader, nil
	}
	defer t.waits.after(longElection, "none of the managers leads yet")()
	begun := time.Now()
	end := begun.Add(t.timeout)
	select {
	case t.probing <- struct{}{}: // goroutines that come later use the same answer
		defer func() { <-t.probing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if leader := t.known(); leader != nil {
		return leader, nil
	}
	if err := t.failedSince(begun); err != nil && !time.Now().Before(end) {
		return nil, err
	}
	leader, err := t.probeAll(ctx, end)
	if err != nil && ctx.Err() != nil {
		return nil, err // the end of this call says nothing about the managers
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leader, t.failed = leader, failure{err, time.Now()}
	return leader, err
}

// failedSince returns the error of the last search for the leader, if it ended after a time.
func (t *leaderTransport) failedSince(begun time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.failed.at.After(begun) {
		return nil
	}
	return t.failed.err
}

func (t *leaderTransport) known() *url.URL {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader == nil && len(t.managers) == 1 {
		t.leader = t.managers[0]
	}
	return t.leader
}

// pause returns false when ctx ends before d is over.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// refusal is what a manager says that does not lead, or cannot decide.
type refusal string

func (r refusal) Error() string { return string(r) }

// search is one search for the leader.
type search struct {
	end     time.Time
	named   chan *url.URL // leaders, as followers know them
	answers chan answer
}

// answer is the last answer of a manager: it leads if err is nil.
type answer struct {
	from *url.URL
	err  error
}

// probeAll probes all managers concurrently until end, at least once, and returns the first
// that says that it leads. It also probes those that followers name: a manager may have taken
// the place of one of the configured ones at another URL.
func (t *leaderTransport) probeAll(ctx context.Context, end time.Time) (*url.URL, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	most := len(t.managers) + maxNamed
	s := &search{end: end, named: make(chan *url.URL), answers: make(chan answer, most)}
	probed, running := map[string]bool{}, 0
	probe := func(m *url.URL) {
		probed[m.Host] = true
		running++
		go func() { s.answers <- answer{m, t.probeUntil(ctx, m, s)} }() // ends with ctx
	}
	for _, m := range t.managers {
		probe(m)
	}
	var all []string
	var distrust error // of a manager whose certificate does not hold
	trusted := 0
	for running > 0 {
		select {
		case u := <-s.named:
			if !probed[u.Host] && len(probed) < most {
				probe(u)
			}
		case a := <-s.answers:
			if a.err == nil {
				return a.from, nil
			}
			running--
			all = append(all, fmt.Sprintf("%s: %v", a.from, a.err))
			if untrusted(a.err) {
				distrust = a.err
			} else {
				trusted++
			}
		}
	}
	if trusted == 0 {
		return nil, distrust // all have certificates of one authority, so one reason says it
	}
	return nil, fmt.Errorf("none of the managers leads: %s", strings.Join(all, "; "))
}

// probeUntil probes one manager until the search ends, at least once, and returns the last
// error.
func (t *leaderTransport) probeUntil(ctx context.Context, m *url.URL, s *search) error {
	var last error
	_, _ = backoff.Retry(ctx, func() (struct{}, error) {
		probing, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		var leader *url.URL
		if leader, last = t.probe(probing, m); leader != nil {
			select {
			case s.named <- leader:
			case <-ctx.Done():
			}
		}
		if untrusted(last) {
			return struct{}{}, backoff.Permanent(last)
		}
		return struct{}{}, last
	}, backoff.WithMaxElapsedTime(max(time.Until(s.end), 1)), backoff.WithBackOff(&backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: lastPause, Multiplier: 2, RandomizationFactor: 0.5,
	}))
	return last // Retry's own error is that of ctx once it has ended
}

// probe asks a manager whether it leads and can decide. With the error it returns the leader
// that the manager names, nil for none.
func (t *leaderTransport) probe(ctx context.Context, m *url.URL) (leader *url.URL, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.JoinPath("readyz").String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errors.New("no answer")
		}
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return named(m, res.Header.Get(LeaderHeader)), refusal(strings.TrimSpace(string(text)))
	}
	return nil, nil
}

// Package client finds the manager that leads among several: it is an
// http.RoundTripper whose requests go there, whatever host they name.
//
// A manager that does not lead refuses a request before it does anything, with
// the leader's URL in the header Dxpu-Leader; such a request is repeated there. One
// that could not be sent at all is repeated elsewhere. Any other failure is the
// caller's: the request may have been carried out.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Header carries the leader's URL, or Nobody, in the answer of a manager that
// does not lead.
const (
	Header = "Dxpu-Leader"
	Nobody = "none"
)

const (
	// askTimeout bounds the question whether a manager leads. One that is well
	// answers at once, wherever it is.
	askTimeout = 2 * time.Second
	// The pauses before a manager is asked again: an election takes seconds, and
	// thousands of nodes wait for it.
	firstPause, lastPause = 100 * time.Millisecond, time.Second
	// maxTries bounds how often one request is sent: to where the leader was, to
	// where it is said to be, and that once more where it has just changed.
	maxTries = 4
	// maxAnswer bounds how much of an answer that is of no use is read, in bytes.
	maxAnswer = 4 << 10
)

// Parse splits a list like "http://m1:7470,http://m2:7470". All have one scheme.
func Parse(list string) ([]*url.URL, error) {
	var out []*url.URL
	for s := range strings.SplitSeq(list, ",") {
		s = strings.TrimSpace(s)
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%q is not the URL of a manager", s)
		}
		if len(out) > 0 && u.Scheme != out[0].Scheme {
			return nil, fmt.Errorf("%s and %s: managers of one pool have all TLS, or none", out[0], u)
		}
		out = append(out, u)
	}
	return out, nil
}

// Transport sends requests to the manager that leads. Make it with New.
type Transport struct {
	managers []*url.URL
	base     http.RoundTripper
	patience time.Duration
	asking   chan struct{} // held by who looks for the leader

	mu     sync.Mutex
	leader *url.URL // nil: to be found
}

// New returns a transport over base. patience is how long a request waits while no
// manager leads.
func New(managers []*url.URL, base http.RoundTripper, patience time.Duration) *Transport {
	return &Transport{managers: managers, base: base, patience: patience, asking: make(chan struct{}, 1)}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	begun := time.Now()
	for try := 1; ; try++ {
		at, err := t.find(r.Context())
		if err != nil {
			closeBody(r)
			return nil, err
		}
		res, err := t.base.RoundTrip(to(r, at))
		refused := err == nil && res.Header.Get(Header) != ""
		switch {
		case err == nil && !refused:
			return res, nil
		case err != nil:
			t.forget(at)
		default:
			t.follow(at, res.Header.Get(Header))
		}
		again := try < maxTries && (refused || notSent(err)) && t.elsewhere(at)
		if refused && !again && time.Since(begun) < t.patience {
			again = pause(r.Context(), firstPause) // the one manager we know waits for an election as well
		}
		if again = again && r.Context().Err() == nil; again {
			r, again = rewind(r)
		}
		if !again {
			return res, err
		}
		if res != nil {
			discard(res)
		}
	}
}

// to is a request for another manager.
func to(r *http.Request, at *url.URL) *http.Request {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.Host = at.Scheme, at.Host, ""
	return out
}

// rewind makes a request ready to be sent again; false: its body is gone.
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

// notSent reports whether a request has reached nobody.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

func discard(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) // so that the connection can be used again
	_ = res.Body.Close()
}

// forget notes that a manager did not answer.
func (t *Transport) forget(at *url.URL) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader == at {
		t.leader = nil
	}
}

// follow notes what a manager that does not lead says of who does. It may not
// send clients from TLS to none.
func (t *Transport) follow(at *url.URL, leader string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader != at {
		return // somebody has found out more meanwhile
	}
	t.leader = nil
	if u, err := url.Parse(leader); err == nil && u.Scheme == at.Scheme && u.Host != "" && u.Host != at.Host {
		t.leader = u
	}
}

// elsewhere reports whether there is anybody else to ask than at.
func (t *Transport) elsewhere(at *url.URL) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.managers) > 1 || t.leader != nil || t.managers[0] != at
}

// find returns the manager that leads, as far as is known. The only one that is
// known need not be asked.
func (t *Transport) find(ctx context.Context) (*url.URL, error) {
	t.mu.Lock()
	if t.leader == nil && len(t.managers) == 1 {
		t.leader = t.managers[0]
	}
	leader := t.leader
	t.mu.Unlock()
	if leader != nil {
		return leader, nil
	}
	select {
	case t.asking <- struct{}{}: // who comes later gets the answer
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t.mu.Lock()
	leader = t.leader
	t.mu.Unlock()
	if leader != nil {
		return leader, nil
	}
	leader, err := t.ask(ctx)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	t.leader = leader
	t.mu.Unlock()
	return leader, nil
}

// pause returns false when ctx ends before d is over.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// ask asks all managers at the same time, each again and again as long as there
// is patience, until the first says that it leads.
func (t *Transport) ask(ctx context.Context) (*url.URL, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	patience, end := context.WithTimeout(ctx, t.patience)
	defer end()
	type answer struct {
		from *url.URL
		err  error
	}
	answers := make(chan answer, len(t.managers))
	for _, m := range t.managers {
		go func() { answers <- answer{m, t.insist(ctx, patience, m)} }() // ends with ctx
	}
	var all []error
	for range t.managers {
		a := <-answers
		if a.err == nil {
			return a.from, nil
		}
		all = append(all, fmt.Errorf("%s: %w", a.from, a.err))
	}
	return nil, fmt.Errorf("none of the managers leads: %w", joined(all))
}

// insist asks one manager at least once, and until patience ends.
func (t *Transport) insist(ctx, patience context.Context, m *url.URL) error {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		err := t.leads(asking, m)
		cancel()
		if err == nil || !pause(patience, wait/2+rand.N(wait)) {
			return err
		}
	}
}

// joined is errors.Join on one line.
type joined []error

func (j joined) Error() string {
	var s []string
	for _, err := range j {
		s = append(s, err.Error())
	}
	return strings.Join(s, "; ")
}

func (j joined) Unwrap() []error { return j }

// leads asks a manager whether it leads and can decide.
func (t *Transport) leads(ctx context.Context, m *url.URL) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, m.JoinPath("readyz").String(), nil)
	if err != nil {
		return err
	}
	res, err := t.base.RoundTrip(r)
	if err != nil {
		if ctx.Err() != nil {
			return errors.New("no answer")
		}
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(text)))
	}
	return nil
}

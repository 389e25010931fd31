package manager

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	// defaultCallRate is what each person or program may call in a second: a
	// page of the browser makes ten calls, an orchestrator that attaches a
	// hundred leases a second three for each.
	defaultCallRate = 500
	// openRateFactor is how many times as much may come from an address where nobody
	// needs a credential: a whole site may be behind it.
	openRateFactor = 10
	// nodeCallRate is for nodes: four heartbeats a second, and a report for every
	// step of every binding, of which a box with 64 GPUs may have hundreds at once.
	nodeCallRate = 400
	// unauthenticatedRate is for calls that prove nothing, together from one address: a
	// rack that enrols with the wrong token, not somebody who tries them all.
	unauthenticatedRate = 10
	// burstSeconds is how much of what was not used may be used at once.
	burstSeconds = 5
	// maxLimiters bounds the limiters of a kind, 100 bytes each. Who comes when
	// there are so many shares one with all others that came too late.
	maxLimiters = 1 << 16
	// maxStreams is how many watches a caller may have open: every page of a
	// browser has one, and so has every node.
	maxStreams = 256
	// maxUnauthenticatedBody bounds the body of calls without a credential, in bytes: an
	// enrolment with its certificate request has less than ten thousand.
	maxUnauthenticatedBody = 32 << 10
	// bodyTimeout is how long the body of a call may take to arrive.
	bodyTimeout = 20 * time.Second
)

// limits bounds what one caller can ask of the manager, so that it has time for
// the others.
type limits struct {
	open                                     Open
	people, nodes, networks, unauthenticated *limiters
	body                                     time.Duration

	mu      sync.Mutex // guards what follows
	streams map[string]int
}

func newLimits(people float64, open Open) *limits {
	switch {
	case people == 0:
		people = defaultCallRate
	case people < 0:
		people = math.Inf(1)
	}
	return &limits{
		open: open, people: newLimiters(people, maxLimiters), networks: newLimiters(openRateFactor*people, maxLimiters), nodes: newLimiters(nodeCallRate, maxLimiters),
		unauthenticated: newLimiters(unauthenticatedRate, maxLimiters), body: bodyTimeout, streams: map[string]int{},
	}
}

// limiters are the limiters of one kind of caller, one for each, as many as max.
type limiters struct {
	rate  rate.Limit
	burst int
	max   int

	mu     sync.Mutex // guards what follows
	by     map[string]*rate.Limiter
	shared *rate.Limiter // of all for whom there was no room
	swept  time.Time
}

func newLimiters(perSecond float64, most int) *limiters {
	l := &limiters{rate: rate.Limit(perSecond), burst: int(min(perSecond*burstSeconds, math.MaxInt32)), max: most, by: map[string]*rate.Limiter{}}
	l.shared = l.newLimiter()
	return l
}

func (l *limiters) newLimiter() *rate.Limiter { return rate.NewLimiter(l.rate, l.burst) }

// take takes one call of a caller's allowance; where there is none left it says
// when there will be.
func (l *limiters) take(key string, now time.Time) (wait time.Duration, ok bool) {
	if math.IsInf(float64(l.rate), 1) {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.limiterOf(key, now)
	if r.AllowN(now, 1) {
		return 0, true
	}
	return l.wait(r, now), false
}

// empty reports whether a caller has no allowance left, and for how long.
func (l *limiters) empty(key string, now time.Time) (wait time.Duration, yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.by[key]
	if r == nil && len(l.by) >= l.max {
		r = l.shared
	}
	if r == nil || r.TokensAt(now) >= 1 {
		return 0, false
	}
	return l.wait(r, now), true
}

func (l *limiters) wait(r *rate.Limiter, now time.Time) time.Duration {
	return time.Duration((1 - r.TokensAt(now)) / float64(l.rate) * float64(time.Second))
}

// limiterOf returns the limiter of a caller. Those that have all of their allowance
// back are as good as new ones: they make room.
func (l *limiters) limiterOf(key string, now time.Time) *rate.Limiter {
	if r := l.by[key]; r != nil {
		return r
	}
	if len(l.by) >= l.max && now.Sub(l.swept) >= time.Second {
		l.swept = now
		for k, r := range l.by {
			if r.TokensAt(now) >= float64(l.burst) {
				delete(l.by, k)
			}
		}
	}
	if len(l.by) >= l.max {
		return l.shared
	}
	r := l.newLimiter()
	l.by[key] = r
	return r
}

// network is the part of a caller's address that it cannot change at will: an
// IPv4 address, or the /64 of an IPv6 address.
func network(peer string) string {
	ap, err := netip.ParseAddrPort(peer)
	if err != nil {
		return "unknown"
	}
	a := ap.Addr().Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

// tooMany is what a caller learns that has no allowance left.
func tooMany(whose string, wait time.Duration) error {
	seconds := int(math.Ceil(max(wait, time.Second).Seconds()))
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("too many calls %s: try again in %d s, and call less often", whose, seconds))
	err.Meta().Set("Retry-After", strconv.Itoa(seconds))
	return err
}

// isLocal reports whether a call needs no credential because it comes from this
// machine. It is not limited: who is here can stop the manager in easier ways.
func (l *limits) isLocal(c *call) bool {
	return c == nil || l.open == OpenLoopback && c.caller.Actor == auth.Anonymous && isLoopback(c.peer)
}

// admit takes a call from its caller's allowance. A call without a credential
// is refused from where too many have failed, whatever it says: it may be one
// more guess.
func (l *limits) admit(c *call, now time.Time) error {
	if l.isLocal(c) {
		return nil
	}
	kind, key, whose := l.people, c.caller.Actor, "by "+c.caller.Actor
	switch {
	case c.caller.IsNode():
		kind = l.nodes
	case c.caller.Actor != auth.Anonymous:
	case c.caller.Role == dxpuv1.Role_ROLE_UNSPECIFIED:
		if wait, yes := l.unauthenticated.empty(network(c.peer), now); yes {
			return tooMany(withoutCredentialFrom+network(c.peer), wait)
		}
		return nil
	default:
		kind, key = l.networks, network(c.peer)
		whose = "from " + key
	}
	if wait, ok := kind.take(key, now); !ok {
		return tooMany(whose, wait)
	}
	return nil
}

const withoutCredentialFrom = "without a valid credential from "

// countUnauthenticated counts a call that proved nothing.
func (l *limits) countUnauthenticated(c *call, now time.Time) error {
	if l.isLocal(c) {
		return nil
	}
	key := network(c.peer)
	if wait, ok := l.unauthenticated.take(key, now); !ok {
		return tooMany(withoutCredentialFrom+key, wait)
	}
	return nil
}

// openStream counts a stream that opens; leave must be called when it ends.
func (l *limits) openStream(c *call) (leave func(), err error) {
	if l.isLocal(c) {
		return func() {}, nil
	}
	key := c.caller.Actor
	if key == auth.Anonymous {
		key = network(c.peer)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[key] >= maxStreams {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s has %d watches open, which is the limit: close some", key, maxStreams))
	}
	l.streams[key]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.streams[key]--; l.streams[key] == 0 {
			delete(l.streams, key)
		}
	}, nil
}

// boundBody bounds how large the body of a call may be and how long it may take.
// The server forgets the deadline with the next request of the connection.
func (l *limits) boundBody(w http.ResponseWriter, r *http.Request, known bool) {
	if !known {
		r.Body = http.MaxBytesReader(w, r.Body, maxUnauthenticatedBody)
	}
	c := http.NewResponseController(w)
	if c.SetReadDeadline(time.Now().Add(l.body)) != nil {
		return // a call from within the process
	}
	r.Body = &timedBody{r.Body, c}
}

// timedBody takes the deadline away once the body is read: what waits
// afterwards is a watch.
type timedBody struct {
	io.ReadCloser
	c *http.ResponseController
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.c.SetReadDeadline(time.Time{}) // it was possible to set one
	}
	return n, err
}

// limited counts the calls that were refused for their number.
func (m *Manager) limited(ctx context.Context, c *call, err error) error {
	if err != nil {
		m.metrics.limited.Inc()
		m.log.DebugContext(ctx, "call refused: rate limit exceeded", "actor", c.caller.Actor, "peer", c.peer, "call", truncateText(c.procedure))
	}
	return err
}

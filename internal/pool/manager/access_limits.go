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
	// defaultCallRate is the number of calls a second for each person or
	// program. A page of the browser makes ten calls; an orchestrator that
	// attaches a hundred leases a second makes three for each.
	defaultCallRate = 500
	// openRateFactor multiplies the rate for an address whose callers need no
	// credential: a whole site may be behind it.
	openRateFactor = 10
	// nodeCallRate is for nodes: four heartbeats a second, and a report for every step
	// of every binding. A box with 64 GPUs may have hundreds of steps at once.
	nodeCallRate = 400
	// changesPerCall is how many records and events a report may change for the allowance of one
	// call: to change one takes some 30 us of the leader's time, so that a box which reports
	// changes of all of its slots without pause takes a tenth of it.
	changesPerCall = 8
	// maxCharge bounds the calls that a report is charged: the next one waits for half a second at
	// most, because a node that is not heard for a second counts as lost.
	maxCharge = nodeCallRate / 2
	// unauthenticatedRate is the rate of calls without a valid credential from
	// one address. It suffices for a rack that enrols with a wrong token, and
	// not for guessing tokens.
	unauthenticatedRate = 10
	burstSeconds        = 5 // the number of seconds whose unused calls may be made at once
	// maxLimiters bounds the limiters of a kind, 100 bytes each. Callers beyond
	// it share one limiter.
	maxLimiters = 1 << 16
	// maxStreams is the number of watches that a caller may have open. Each
	// page of a browser has one, and so has each node.
	maxStreams = 256
	// maxCalls is the number of calls that a caller may have open, beside its watches
	// (openRateFactor times as many at an address whose callers have no credential), and
	// maxBodies bounds their bodies together, in bytes. A call takes memory while its body
	// arrives, while it waits for its turn, and while its answer is taken.
	maxCalls  = 256
	maxBodies = 32 << 20
	// maxUnauthenticatedBody bounds the body of calls without a credential, in bytes.
	// An enrolment with its certificate request has less than ten thousand.
	maxUnauthenticatedBody = 32 << 10
)

// limits bounds the load that one caller can put on the manager.
type limits struct {
	open                                     Open
	people, nodes, networks, unauthenticated *limiters

	mu      sync.Mutex // guards the fields below
	streams map[string]int
	using   map[string]*use
}

// use is what the open calls of a caller use.
type use struct {
	calls int
	bytes int64 // of their bodies
}

func newLimits(people float64, open Open) *limits {
	switch {
	case people == 0:
		people = defaultCallRate
	case people < 0:
		people = math.Inf(1)
	}
	return &limits{
		open: open, people: newLimiters(people, maxLimiters), networks: newLimiters(openRateFactor*people, maxLimiters),
		nodes:           newLimiters(nodeCallRate, maxLimiters),
		unauthenticated: newLimiters(unauthenticatedRate, maxLimiters), streams: map[string]int{}, using: map[string]*use{},
	}
}

// limiters holds one limiter for each caller of a kind, up to max.
type limiters struct {
	rate  rate.Limit
	burst int
	max   int

	mu     sync.Mutex // guards the fields below
	by     map[string]*rate.Limiter
	shared *rate.Limiter // for the callers beyond max
	swept  time.Time
}

func newLimiters(perSecond float64, most int) *limiters {
	l := &limiters{rate: rate.Limit(perSecond), burst: int(min(perSecond*burstSeconds, math.MaxInt32)), max: most, by: map[string]*rate.Limiter{}}
	l.shared = l.newLimiter()
	return l
}

func (l *limiters) newLimiter() *rate.Limiter { return rate.NewLimiter(l.rate, l.burst) }

// take uses one call of a caller's allowance. If there is none left, it returns
// the time until there is.
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

// charge takes more from a caller's allowance, at most its burst, for a call that was admitted; the
// caller's next calls wait for what was not there.
func (l *limiters) charge(key string, calls int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limiterOf(key, now).ReserveN(now, calls)
}

// refund gives back what charge has taken. The limiter bounds what it has then by its burst.
func (l *limiters) refund(key string, calls int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limiterOf(key, now).ReserveN(now, -calls)
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

// limiterOf returns the limiter of a caller. To make room it removes limiters
// with a full allowance, which are equal to new ones.
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

// network returns the part of a caller's address that the caller cannot change
// at will: an IPv4 address, or the /64 of an IPv6 address.
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

// tooMany is the answer to a caller without allowance.
func tooMany(whose string, wait time.Duration) error {
	seconds := int(math.Ceil(max(wait, time.Second).Seconds()))
	return later(wait, "too many calls %s: try again in %d s, and call less often", whose, seconds)
}

// later returns the error of a call that may be repeated after a time.
func later(wait time.Duration, format string, args ...any) error {
	err := connect.NewError(connect.CodeResourceExhausted, fmt.Errorf(format, args...))
	err.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(wait, time.Second).Seconds()))))
	return err
}

// isLocal reports whether a call needs no credential because it comes from this
// machine. Such calls are not limited: a local user can stop the manager in
// easier ways.
func (l *limits) isLocal(c *call) bool {
	return c == nil || l.open == OpenLoopback && c.caller.Actor == auth.Anonymous && isLoopback(c.peer)
}

// admit uses one call of the caller's allowance. It refuses every call without
// a credential from an address from which too many have failed: the call may be
// one more guess.
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

// chargeReport charges a node for what its report has changed, and returns for how many calls.
func (l *limits) chargeReport(c *call, changes int, now time.Time) int {
	if l.isLocal(c) || !c.caller.IsNode() {
		return 0
	}
	calls := min(changes/changesPerCall, maxCharge)
	l.nodes.charge(c.caller.Actor, calls, now)
	return calls
}

// refundReport takes back the charge for changes that the manager could not keep: the node has to
// report them again, and did nothing wrong.
func (l *limits) refundReport(c *call, calls int, now time.Time) {
	if calls > 0 {
		l.nodes.refund(c.caller.Actor, calls, now)
	}
}

const withoutCredentialFrom = "without a valid credential from "

// countUnauthenticated counts a call with a wrong credential or none.
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

// key identifies the caller of a call that counts: callers without a credential by their network.
func (c *call) key() string {
	if c.caller.Actor == auth.Anonymous {
		return network(c.peer)
	}
	return c.caller.Actor
}

// openStream counts a stream that opens, in the place of its call; the caller must call
// leave when the stream ends.
func (l *limits) openStream(c *call) (leave func(), err error) {
	if l.isLocal(c) {
		return func() {}, nil
	}
	key := c.key()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[key] >= maxStreams {
		return nil, errorf(connect.CodeResourceExhausted, "%s has %d watches open, which is the limit: close some", key, maxStreams)
	}
	l.streams[key]++
	l.closeLocked(c)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.streams[key]--; l.streams[key] == 0 {
			delete(l.streams, key)
		}
	}, nil
}

// openCall counts a call that opens; closeCall must follow.
func (l *limits) openCall(c *call) error {
	if l.isLocal(c) {
		return nil
	}
	key := c.key()
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.using[key]
	if u == nil {
		u = &use{}
		l.using[key] = u
	}
	most := maxCalls
	if c.caller.Actor == auth.Anonymous {
		most *= openRateFactor
	}
	if u.calls >= most {
		return later(time.Second, "%s has %d calls open, which is the limit: wait for their answers", key, most)
	}
	u.calls++
	c.open = true
	return nil
}

// closeCall ends a call: it has been answered. More calls for the same call do nothing.
func (l *limits) closeCall(c *call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeLocked(c)
}

func (l *limits) closeLocked(c *call) {
	if !c.open {
		return
	}
	key := c.key()
	u := l.using[key]
	u.calls--
	u.bytes -= c.bytes
	c.open, c.bytes = false, 0
	if u.calls == 0 {
		delete(l.using, key)
	}
}

// takeBytes counts bytes of the body of an open call.
func (l *limits) takeBytes(c *call, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.open {
		return nil
	}
	u := l.using[c.key()]
	if u.bytes+int64(n) > maxBodies {
		return later(time.Second, "the open calls of %s have %d bytes, which is the limit: wait for their answers", c.key(), maxBodies)
	}
	u.bytes += int64(n)
	c.bytes += int64(n)
	return nil
}

// boundBody bounds the size of a call's body. The server bounds the time in which it must arrive.
func (l *limits) boundBody(w http.ResponseWriter, r *http.Request, known bool) {
	if !known {
		r.Body = http.MaxBytesReader(w, r.Body, maxUnauthenticatedBody)
	}
	if c := callFrom(r.Context()); c != nil {
		r.Body = &countedBody{r.Body, l, c}
	}
}

// countedBody counts the bytes of the body of a call.
type countedBody struct {
	io.ReadCloser
	l *limits
	c *call
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		if full := b.l.takeBytes(b.c, n); full != nil {
			return 0, full
		}
	}
	return n, err
}

// limited counts a call that was refused because of its rate, and passes the error on.
func (m *Manager) limited(ctx context.Context, c *call, err error) error {
	if err != nil {
		m.metrics.limited.Inc()
		m.log.DebugContext(ctx, "call refused: rate limit exceeded", "actor", c.caller.Actor, "peer", c.peer, "call", truncateText(c.procedure))
	}
	return err
}

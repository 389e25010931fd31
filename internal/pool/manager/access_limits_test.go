package manager

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const (
	whoAmI = "/dxpu.v1.PoolService/WhoAmI"
	enroll = "/dxpu.v1.NodeService/Enroll"
)

func TestFloods(t *testing.T) {
	const here, there = "192.0.2.7:1", "192.0.2.8:1"
	w := newAccessWorld(t)
	ask := func(caller, procedure, peer, body string) answer {
		return callJSON(w.handler, procedure, w.secrets[caller], peer, []byte(body))
	}
	flood := func(n int, caller, procedure, peer, body string) (last answer, passed int) {
		for range n {
			if last = ask(caller, procedure, peer, body); last.code != "resource_exhausted" {
				passed++
			}
		}
		return last, passed
	}

	// A person without allowance does not affect other callers, from any address.
	last, passed := flood(3000, "operator", whoAmI, here, "{}")
	if passed != defaultCallRate*burstSeconds || last.retryAfter != "1" || !strings.Contains(last.message, "too many calls by t-") {
		t.Errorf("%d calls passed, the last got %+v", passed, last)
	}
	for _, caller := range []string{"admin", "tenant"} {
		if got := ask(caller, whoAmI, here, "{}"); got.code != "ok" {
			t.Errorf("%s: %v", caller, got)
		}
	}
	if got := ask("operator", whoAmI, there, "{}"); got.code != "resource_exhausted" {
		t.Errorf("from another address: %v", got)
	}
	w.clock.pass(time.Second)
	if _, passed = flood(1000, "operator", whoAmI, here, "{}"); passed != defaultCallRate {
		t.Errorf("a second later %d calls passed", passed)
	}

	// Guesses are limited, without cost for callers with a credential.
	last, passed = flood(200, "nobody", enroll, here, `{"joinToken":"guess","name":"x","kind":"NODE_KIND_HOST"}`)
	if passed != unauthenticatedRate*burstSeconds || !strings.Contains(last.message, "without a valid credential from 192.0.2.7") {
		t.Errorf("%d guesses passed, the last got %+v", passed, last)
	}
	w.secrets["guesser"] = "guess"
	if got := ask("guesser", whoAmI, here, "{}"); got.code != "resource_exhausted" {
		t.Errorf("a guess at a credential after too many at the join token: %v", got)
	}
	right := `{"joinToken":"token-for-tests","name":"x","kind":"NODE_KIND_HOST"}`
	if got := ask("nobody", enroll, here, right); got.code != "resource_exhausted" {
		t.Errorf("the right guess after too many: %v", got)
	}
	if got := ask("tenant", whoAmI, here, "{}"); got.code != "ok" {
		t.Errorf("a caller with a token is limited by callers without: %v", got)
	}
	if got := ask("host", "/dxpu.v1.NodeService/Report", here, `{"state":{"nodeId":"h1","instanceId":"1","sequence":"1000000"}}`); got.code != "ok" {
		t.Errorf("a node is limited by callers without a token: %v", got)
	}
	if got := ask("nobody", enroll, there, right); got.code != "ok" {
		t.Errorf("from another address: %v", got)
	}
}

// Callers on the machine of an open manager are not limited, others are.
func TestFloodsOfOpenManagers(t *testing.T) {
	count := func(open Open, peer string) (passed int) {
		w := newWorld(t, Config{Open: open, CallRate: 10})
		h := w.m.Handler()
		for range 1000 {
			r := httptest.NewRequest(http.MethodPost, whoAmI, strings.NewReader("{}"))
			r.Header.Set("Content-Type", "application/json")
			r.RemoteAddr, r.Host = peer, "127.0.0.1"
			res := httptest.NewRecorder()
			if h.ServeHTTP(res, r); res.Code == http.StatusOK {
				passed++
			}
		}
		return passed
	}
	if n := count(OpenLoopback, "127.0.0.1:1"); n != 1000 {
		t.Errorf("of this machine's calls %d passed", n)
	}
	if n := count(OpenInsecure, "192.0.2.7:1"); n != 10*openRateFactor*burstSeconds {
		t.Errorf("of an address's calls %d passed", n)
	}
	if n := count(OpenLoopback, "192.0.2.7:1"); n != 0 {
		t.Errorf("of another address's calls %d passed", n)
	}
}

func TestCallRateIsAnOption(t *testing.T) {
	for rate, want := range map[float64]int{2: 10, -1: 1000} {
		l := newLimits(rate, OpenNever)
		passed := 0
		for range 1000 {
			if _, ok := l.people.take("t-1", time.Unix(1, 0)); ok {
				passed++
			}
		}
		if passed != want {
			t.Errorf("with a rate of %v, %d calls passed, want %d", rate, passed, want)
		}
	}
}

// The limiters take bounded memory for any number of addresses, and the first
// addresses keep their limiters.
func TestLimitersAreBounded(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	l := newLimiters(1, 100)
	if _, ok := l.take("old", now); !ok {
		t.Fatal("the first call is refused")
	}
	refused := 0
	for i := range 10_000 {
		if _, ok := l.take(fmt.Sprint("new", i), now); !ok {
			refused++
		}
	}
	if len(l.by) != 100 || refused != 10_000-99-burstSeconds {
		t.Errorf("%d limiters, %d calls refused", len(l.by), refused)
	}
	if _, yes := l.empty("somebody", now); !yes {
		t.Error("the shared limiter is full")
	}
	if _, ok := l.take("old", now); !ok {
		t.Error("the first address is refused")
	}
	// Idle limiters make room for others.
	now = now.Add(burstSeconds * time.Second)
	if _, ok := l.take("next", now); !ok || len(l.by) > 2 {
		t.Errorf("after a rest there are %d limiters", len(l.by))
	}
}

func TestNetwork(t *testing.T) {
	tests := []struct{ peer, want string }{
		{"192.0.2.7:80", "192.0.2.7"},
		{"[::ffff:192.0.2.7]:80", "192.0.2.7"},
		{"[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"},
		{"[fe80::1%eth0]:80", "fe80::/64"},
		{"", "unknown"},
		{"@", "unknown"},
	}
	for _, tt := range tests {
		if got := network(tt.peer); got != tt.want {
			t.Errorf("network(%q) = %q, want %q", tt.peer, got, tt.want)
		}
	}
}

func TestStreamsAreBounded(t *testing.T) {
	l := newLimits(0, OpenNever)
	c := &call{}
	c.caller.Actor = "t-1"
	var leave func()
	for range maxStreams {
		var err error
		if leave, err = l.openStream(c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.openStream(c); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	other := &call{}
	other.caller.Actor = "t-2"
	if _, err := l.openStream(other); err != nil {
		t.Errorf("another caller: %v", err)
	}
	leave()
	if _, err := l.openStream(c); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// A caller has a bounded number of calls open, whose bodies have a bounded size together.
// Its watches count apart, and other callers are not concerned.
func TestOpenCallsAreBounded(t *testing.T) {
	l := newLimits(0, OpenNever)
	open := func(actor, peer string) (*call, error) {
		c := &call{peer: peer}
		c.caller.Actor = actor
		return c, l.openCall(c)
	}
	var calls []*call
	for range maxCalls {
		c, err := open("t-1", "192.0.2.7:1")
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, c)
	}
	full := func() bool {
		c, err := open("t-1", "192.0.2.7:1")
		l.closeCall(c)
		return connect.CodeOf(err) == connect.CodeResourceExhausted
	}
	if !full() {
		t.Error("one more call was let in")
	}
	if c, err := open("t-2", "192.0.2.7:1"); err != nil || l.takeBytes(c, 1) != nil {
		t.Errorf("another caller: %v", err)
	}
	if _, err := l.openStream(calls[0]); err != nil {
		t.Fatal(err)
	}
	l.closeCall(calls[0]) // counts no longer: it is a watch
	c, err := open("t-1", "192.0.2.7:1")
	if err != nil {
		t.Fatalf("when a call has become a watch: %v", err)
	}
	if !full() {
		t.Error("a watch that ended made room twice")
	}
	// The bodies of all calls count together.
	half := maxBodies / 2
	if err := errors.Join(l.takeBytes(c, half), l.takeBytes(calls[1], half)); err != nil {
		t.Fatal(err)
	}
	if err := l.takeBytes(calls[2], 1); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one byte more: %v", err)
	}
	l.closeCall(c)
	if err := l.takeBytes(calls[2], half); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	for _, c := range calls {
		l.closeCall(c)
	}
	// Callers without a credential are told apart by their network.
	for range maxCalls * openRateFactor {
		if _, err := open(auth.Anonymous, "192.0.2.9:1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(auth.Anonymous, "192.0.2.9:2"); err == nil {
		t.Error("one more from the same address was let in")
	}
	if _, err := open(auth.Anonymous, "192.0.2.10:1"); err != nil {
		t.Error(err)
	}
}

// Calls that have been answered leave nothing behind, whatever became of them.
func TestCallsAreClosed(t *testing.T) {
	w := newAccessWorld(t)
	for procedure, c := range accessCalls {
		for caller := range w.secrets {
			callJSON(w.handler, "/dxpu.v1."+procedure, w.secrets[caller], "192.0.2.7:1", []byte(w.fill(c.request, caller, w.own)))
			callJSON(w.handler, "/dxpu.v1."+procedure, w.secrets[caller], "192.0.2.7:1", []byte("{"))
		}
	}
	for _, secret := range w.secrets {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		w.m.serveMetrics(httptest.NewRecorder(), r)
	}
	if len(w.m.limits.using) > 0 || len(w.m.limits.streams) > 0 {
		t.Errorf("there remain %v, %v", w.m.limits.using, w.m.limits.streams)
	}
}

// The body of a call is bounded in size and time.
func TestBodiesAreBounded(t *testing.T) {
	w := newAccessWorld(t)
	tests := []struct {
		name, caller, procedure string
		size                    int
		code                    string
	}{
		{"a person's", "operator", whoAmI, 1 << 20, "ok"},
		{"a person's, too large", "operator", whoAmI, maxRequest + 1, "resource_exhausted"},
		{"a node's", "host", "/dxpu.v1.NodeService/Report", 1 << 20, "ok"},
		{"a node's, too large", "host", "/dxpu.v1.NodeService/Report", maxRequest + 1, "resource_exhausted"},
		{"without a credential", "nobody", enroll, maxUnauthenticatedBody - 1000, "ok"},
		{"without a credential, too large", "nobody", enroll, maxUnauthenticatedBody + 1, "resource_exhausted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := accessCalls[strings.TrimPrefix(tt.procedure, "/dxpu.v1.")].request
			body = w.fill(body, tt.caller, w.own)
			body += strings.Repeat(" ", tt.size-len(body))
			if got := callJSON(w.handler, tt.procedure, w.secrets[tt.caller], "192.0.2.7:1", []byte(body)); got.code != tt.code {
				t.Errorf("got %+v", got)
			}
		})
	}
}

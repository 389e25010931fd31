package manager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
)

// fakeElection is the state that managers share, and the right to write it.
type fakeElection struct {
	mu      sync.Mutex
	records map[string][]byte
	term    int // grows with every leader
	leader  *electionMember
	members []*electionMember
}

// electionMember is one manager's Cluster.
type electionMember struct {
	*fakeElection
	name string
	term int
	lost chan struct{}
	gate chan struct{} // Commit waits for it; nil: open
	load chan struct{} // Load waits for it; nil: open
	// ended delays the read of the leases that have ended; nil: it does not wait. loaded
	// counts the records of the last Load.
	ended  chan struct{}
	loaded int
}

func (e *fakeElection) member(name string) *electionMember {
	f := &electionMember{fakeElection: e, name: name}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.members = append(e.members, f)
	return f
}

// depose ends the leadership. Unless tell is set, the old leader does not learn
// of it.
func (e *fakeElection) depose(tell bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.leader
	e.leader = nil
	e.term++
	if tell {
		close(old.lost)
	}
}

func (f *electionMember) Campaign(ctx context.Context) (<-chan struct{}, error) {
	for {
		f.mu.Lock()
		if f.leader == nil {
			f.leader, f.lost = f, make(chan struct{})
			f.fakeElection.term++
			f.term = f.fakeElection.term
			lost := f.lost
			f.mu.Unlock()
			return lost, nil
		}
		f.mu.Unlock()
		if pause(ctx, nil, time.Millisecond); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (f *electionMember) Valid() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader == f && f.term == f.fakeElection.term
}

func (f *electionMember) Resign(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leader == f {
		f.leader = nil
	}
	return nil
}

func (f *electionMember) Absent() []string { return []string{"m9"} }

func (f *electionMember) Managers() (out []*dxpuv1.ManagerInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		out = append(out, &dxpuv1.ManagerInfo{Id: m.name, Url: "http://" + m.name, Leader: f.leader == m})
	}
	return out
}

func (f *electionMember) Load(ctx context.Context, except string) (map[string][]byte, error) {
	if f.load != nil {
		select {
		case <-f.load:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if !f.Valid() {
		return nil, errors.New("deposed")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	records, err := (&MemoryStore{records: f.records}).Load(context.Background(), except)
	f.loaded = len(records)
	return records, err
}

func (f *electionMember) Scan(ctx context.Context, prefix string, page func(map[string][]byte) error) error {
	if f.ended != nil && prefix == endedPrefix {
		select {
		case <-f.ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	copied := &MemoryStore{records: maps.Clone(f.records)}
	f.mu.Unlock()
	return copied.Scan(ctx, prefix, page)
}

func (f *electionMember) Commit(_ context.Context, put map[string][]byte, remove []string) error {
	if f.gate != nil {
		<-f.gate
	}
	if !f.Valid() {
		return errors.New("deposed")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	apply(f.records, put, remove)
	return nil
}

// team is several managers with a shared state.
type team struct {
	behind   atomic.Int64 // nanoseconds by which the clock of all managers is behind
	t        *testing.T
	election *fakeElection
	managers map[string]*Manager
	members  map[string]*electionMember
	log      bytes.Buffer // of all; read it when they have stopped or wait
}

func newTeam(t *testing.T, names ...string) *team {
	w := &team{t: t, election: &fakeElection{records: map[string][]byte{}}, managers: map[string]*Manager{}, members: map[string]*electionMember{}}
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.NewTextHandler(&w.log, nil))
	var wg sync.WaitGroup
	for _, name := range names {
		f := w.election.member(name)
		m, err := New(ctx, Config{JoinToken: "token-for-tests", Store: f, Open: OpenInsecure, LostAfter: time.Hour, AttachTimeout: time.Hour, Log: log, Now: w.now})
		if err != nil {
			t.Fatal(err)
		}
		w.managers[name], w.members[name] = m, f
		wg.Go(func() { _ = m.Run(ctx) })
		time.Sleep(time.Second) // the first leads
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return w
}

// now is the clock of the managers.
func (w *team) now() time.Time { return time.Now().Add(-time.Duration(w.behind.Load())) }

func (w *team) leader() string {
	w.election.mu.Lock()
	defer w.election.mu.Unlock()
	return w.election.leader.name
}

// call makes a call of the API of one manager and returns its answer.
func (w *team) call(name, method, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/dxpu.v1."+method, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	w.managers[name].Handler().ServeHTTP(res, r)
	return res
}

func (w *team) want(res *httptest.ResponseRecorder, code int, text string) {
	w.t.Helper()
	if res.Code != code || !strings.Contains(res.Body.String(), text) {
		w.t.Errorf("got %d %s, want %d with %q", res.Code, res.Body, code, text)
	}
}

// readyz returns the status of the answer of /readyz, the leader that it names, and its text.
func (w *team) readyz(name string) string {
	res := httptest.NewRecorder()
	w.managers[name].Handler().ServeHTTP(res, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	return strings.Join(strings.Fields(fmt.Sprint(res.Code, " ", res.Header().Get(client.LeaderHeader), " ", res.Body.String())), " ")
}

const queued = `{"spec":{"count":1,"wait":true}}`

func TestOneLeadsTheOthersSayWho(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b", "c")
		w.want(w.call("a", "PoolService/CreateLease", queued), 200, `"lease"`)
		for _, method := range []string{"PoolService/CreateLease", "PoolService/GetPool", "NodeService/Report", "PoolService/WhoAmI"} {
			res := w.call("b", method, `{}`)
			w.want(res, http.StatusServiceUnavailable, "this manager is not the leader; http://a is")
			if h := res.Header().Get(client.LeaderHeader); h != "http://a" {
				t.Errorf("%s: %s: %q", method, client.LeaderHeader, h)
			}
		}
		if a, b := w.readyz("a"), w.readyz("b"); a != "200 ok: leader" || b != "503 http://a follower: this manager is not the leader; http://a is" {
			t.Errorf("a: %s; b: %s", a, b)
		}
		w.election.depose(true)
		time.Sleep(time.Second)
		leader := w.leader()
		w.want(w.call(leader, "PoolService/ListLeases", `{}`), 200, `"state":"LEASE_STATE_PENDING"`)
		w.want(w.call(leader, "PoolService/ListEvents", `{}`), 200, "the manager at http://"+leader+" is now the leader")
		w.want(w.call(leader, "PoolService/GetPool", `{}`), 200, `"leaderUrl":"http://`+leader+`"`)
		w.want(w.call(leader, "PoolService/GetPool", `{}`), 200, `"absentManagers":["m9"]`)
	})
}

// A leader whose join token differs from that of the leader before says so.
func TestOtherJoinTokenIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		const notice = "its join token is not that of the leader before"
		takeOver := func(token string) bool {
			for _, m := range w.managers { // any of them may be next
				m.mu.Lock()
				m.cfg.JoinToken = token
				m.mu.Unlock()
			}
			before := strings.Count(w.call(w.leader(), "PoolService/ListEvents", `{}`).Body.String(), notice)
			w.election.depose(true)
			time.Sleep(time.Second)
			return strings.Count(w.call(w.leader(), "PoolService/ListEvents", `{}`).Body.String(), notice) > before
		}
		if takeOver("token-for-tests") {
			t.Error("the same token is called another one")
		}
		if !takeOver("another token") {
			t.Error("another token was not noticed")
		}
		if takeOver("another token") {
			t.Error("the same token is called another one after the change")
		}
	})
}

// A leader whose clock is behind the latest event says so, and by how much.
func TestClockBehindIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		for _, behind := range []time.Duration{0, 3 * time.Second, time.Hour} {
			w.behind.Store(int64(behind)) // any of them may be next
			w.election.depose(true)
			time.Sleep(time.Second)
			log := w.call(w.leader(), "PoolService/ListEvents", `{}`).Body.String()
			if got := strings.Contains(log, "its clock is 59m56s behind the pool's latest event"); got != (behind == time.Hour) || got != strings.Contains(log, "its clock is") {
				t.Errorf("%v behind: %s", behind, log)
			}
		}
	})
}

// A leader that was frozen while another one was elected neither acknowledges nor
// answers calls when it wakes up, although it does not know of the election.
func TestDeposedLeaderIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		w.want(w.call("a", "PoolService/CreateLease", queued), 200, `"lease"`)
		old := w.members["a"]
		old.gate = make(chan struct{})
		var wg sync.WaitGroup
		var write, read *httptest.ResponseRecorder
		wg.Go(func() { write = w.call("a", "PoolService/CreateLease", queued) })
		synctest.Wait() // until the call waits for the store
		wg.Go(func() { read = w.call("a", "PoolService/ListLeases", `{}`) })
		synctest.Wait() // until the call waits for the state that it read
		w.election.depose(false)
		time.Sleep(time.Second)
		if !w.members["b"].Valid() {
			t.Fatal("b is not the leader")
		}
		w.want(w.call("b", "PoolService/CreateLease", queued), 200, `"lease"`)
		w.want(w.call("a", "PoolService/ListEvents", `{}`), 503, "is no longer the leader")
		close(old.gate)
		wg.Wait()
		w.want(write, 503, "may not have happened")
		w.want(read, 503, "may not have happened")
		if write.Header().Get(client.LeaderHeader) != "" {
			t.Error("the answer sends the call to another manager")
		}
		w.want(w.call("a", "PoolService/GetPool", `{}`), 503, "")
		w.want(w.call("b", "PoolService/GetPool", `{}`), 200, `"leasesPending":2`)

		// Once it knows, it is a follower, and later leads again with the other's changes.
		close(old.lost)
		time.Sleep(time.Second)
		if got := w.readyz("a"); got != "503 http://b follower: this manager is not the leader; http://b is" {
			t.Errorf("a: %s", got)
		}
		w.election.depose(true)
		time.Sleep(time.Second)
		w.want(w.call(w.leader(), "PoolService/GetPool", `{}`), 200, `"leasesPending":2`)
	})
}

// A manager that was deposed meanwhile describes what its clock could not store without the
// advice that is for callers.
func TestLogOfADeposedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		w.want(w.call("a", "PoolService/CreateLease", `{"spec":{"count":1,"wait":true,"waitTimeout":"1s"}}`), 200, `"lease"`)
		w.election.depose(false)
		time.Sleep(2 * time.Second) // the lease leaves the queue
		synctest.Wait()
		said := w.log.String()
		if !strings.Contains(said, `of a clock tick" err=`) || strings.Contains(said, "look it up") || strings.Contains(said, "unavailable: ") {
			t.Errorf("the log has advice to a caller, or no line of the clock:\n%s", said)
		}
	})
	if got := forLog(errDeposed()).Error(); got != "this manager is no longer the leader" {
		t.Errorf("deposed: %s", got)
	}
}

// Watches end with the leadership, so that no client waits for events of a follower.
func TestWatchesEndWithTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r := httptest.NewRequest(http.MethodPost, "/dxpu.v1.PoolService/WatchEvents", strings.NewReader("\x00\x00\x00\x00\x02{}"))
			r.Header.Set("Content-Type", "application/connect+json")
			w.managers["a"].Handler().ServeHTTP(httptest.NewRecorder(), r)
		}()
		time.Sleep(time.Second)
		select {
		case <-ended:
			t.Fatal("the watch ended too early")
		default:
		}
		w.election.depose(true)
		time.Sleep(time.Second)
		<-ended
	})
}

package manager

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// callAs is call with a token.
func (w *team) callAs(token, name, method, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/dxpu.v1."+method, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+token)
	res := httptest.NewRecorder()
	w.managers[name].Handler().ServeHTTP(res, r)
	return res
}

// A leader that was deposed without knowing does not refuse either: it does not know the
// tokens and the leases of the next leader.
func TestDeposedLeaderRefusesNothing(t *testing.T) {
	secret := regexp.MustCompile(`"secret":"([^"]+)"`)
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		token := func(name string) string {
			res := w.call(name, "PoolService/CreateToken", `{"role":"ROLE_TENANT","tenant":"t1"}`)
			found := secret.FindStringSubmatch(res.Body.String())
			if found == nil {
				t.Fatalf("no token: %d %s", res.Code, res.Body)
			}
			return found[1]
		}
		w.want(w.call("a", "PoolService/PutTenant", `{"tenant":{"id":"t1"}}`), 200, `"t1"`)
		first := token("a")
		w.election.depose(false)
		time.Sleep(time.Second)
		second := token("b")
		lease := `{"leaseId":"l-1"}`
		w.want(w.call("b", "PoolService/CreateLease", `{"spec":{"count":1,"wait":true,"tenant":"t1"}}`), 200, `"l-1"`)

		const silent = "no longer the leader"
		w.want(w.callAs(second, "b", "PoolService/GetLease", lease), 200, `"l-1"`)
		w.want(w.callAs(second, "a", "PoolService/GetLease", lease), 503, silent)
		w.want(w.callAs(first, "a", "PoolService/GetLease", lease), 503, silent) // it does not know the lease
		w.want(w.callAs(second+"x", "b", "PoolService/GetLease", lease), 401, "unauthenticated")
		w.want(w.callAs(second, "b", "PoolService/GetLease", `{"leaseId":"l-2"}`), 404, "l-2")
	})
}

// stream makes a call with many answers, which ends after a second at the latest.
func (w *team) stream(ctx context.Context, name, method string) *httptest.ResponseRecorder {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/dxpu.v1.PoolService/"+method, strings.NewReader("\x00\x00\x00\x00\x02{}"))
	r.Header.Set("Content-Type", "application/connect+json")
	res := httptest.NewRecorder()
	w.managers[name].Handler().ServeHTTP(res, r)
	return res
}

// A leader that still loads the state does not say that there are no events.
func TestLoadingLeaderDoesNotKnowTheEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		w.want(w.call("a", "PoolService/CreateLease", queued), 200, `"l-1"`)
		b := w.members["b"]
		b.load = make(chan struct{})
		w.election.depose(false)
		time.Sleep(time.Second)
		w.want(w.call("b", "PoolService/ListEvents", `{}`), 503, "is being loaded")
		for _, watch := range []string{"WatchEvents", "WatchLeases"} {
			res := w.stream(t.Context(), "b", watch)
			if !strings.Contains(res.Body.String(), "is being loaded") {
				t.Errorf("%s: %q", watch, res.Body)
			}
		}
		close(b.load)
		time.Sleep(time.Second)
		w.want(w.call("b", "PoolService/ListEvents", `{}`), 200, "LEASE_CREATED")
	})
}

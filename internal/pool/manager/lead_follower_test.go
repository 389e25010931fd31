package manager

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
)

// neverLeader is the cluster of a manager that is never the leader.
type neverLeader struct {
	MemoryStore
	leader string
}

func (f *neverLeader) Campaign(ctx context.Context) (<-chan struct{}, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
func (f *neverLeader) Valid() bool                  { return false }
func (f *neverLeader) Resign(context.Context) error { return nil }

func (f *neverLeader) Absent() []string { return nil }

func (f *neverLeader) Managers() []*dxpuv1.ManagerInfo {
	return []*dxpuv1.ManagerInfo{{Url: f.leader, Leader: f.leader != ""}}
}

// A follower names the leader to every caller before it checks the credential, which it
// cannot check.
func TestFollowerSaysWhoLeads(t *testing.T) {
	paths := map[string]string{ // with the request
		"/dxpu.v1.PoolService/GetPool":      "application/json",
		"/dxpu.v1.PoolService/WatchEvents":  "application/connect+json",
		"/dxpu.v1.NodeService/Report":       "application/json",
		"/dxpu.v1.NodeService/WatchDesired": "application/connect+json",
	}
	for _, leader := range []string{"http://m2:7470", ""} {
		m, err := New(t.Context(), Config{Store: &neverLeader{leader: leader}, JoinToken: "join-token-of-the-test"})
		if err != nil {
			t.Fatal(err)
		}
		for path, content := range paths {
			for _, credential := range []string{"", "Bearer n-1.secret", "Bearer dxpu-secret"} {
				r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}"))
				r.Header.Set("Content-Type", content)
				if credential != "" {
					r.Header.Set("Authorization", credential)
				}
				w := httptest.NewRecorder()
				m.Handler().ServeHTTP(w, r)
				want := leader
				if leader == "" {
					want = client.NoLeader
				}
				if got := w.Header().Get(client.LeaderHeader); got != want {
					t.Errorf("%s with credential %q, led by %q: %s is %q, want %q; status %d", path, credential, leader, client.LeaderHeader, got, want, w.Code)
				}
			}
		}
	}
}

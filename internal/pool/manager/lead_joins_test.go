package manager

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

const joining = `{"name":"h1","kind":"NODE_KIND_HOST","joinToken":"token-for-tests"}`

// join makes a node join at one manager and returns its number and its credential, if it could.
func (w *team) join(name string) (number float64, credential string, res *httptest.ResponseRecorder) {
	res = w.call(name, "NodeService/Enroll", joining)
	var answer struct {
		NodeNumber float64
		Credential string
	}
	if res.Code == http.StatusOK {
		_ = json.Unmarshal(res.Body.Bytes(), &answer)
	}
	return answer.NodeNumber, answer.Credential, res
}

// A node whose join was under way when the leader lost its office joins at the next one, whether
// the change was stored or not. The pool has it once, and knows the credential of the last answer.
func TestJoinDuringATakeover(t *testing.T) {
	for _, stored := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newTeam(t, "a", "b")
			first := float64(0)
			if stored { // the answer is lost with the leader
				first, _, _ = w.join("a")
				w.election.depose(true)
			} else {
				old := w.members["a"]
				old.gate = make(chan struct{})
				var wg sync.WaitGroup
				var lost *httptest.ResponseRecorder
				wg.Go(func() { _, _, lost = w.join("a") })
				synctest.Wait() // until the join waits for the store
				w.election.depose(false)
				close(old.gate)
				wg.Wait()
				w.want(lost, 503, "may not have happened")
				close(old.lost)
			}
			time.Sleep(time.Second)
			leader := w.leader()
			for name := range w.managers {
				if name != leader {
					_, _, res := w.join(name)
					w.want(res, 503, "this manager is not the leader; http://"+leader+" is")
					if h := res.Header().Get(client.LeaderHeader); h != "http://"+leader {
						t.Errorf("the node is sent to %q", h)
					}
				}
			}
			number, credential, res := w.join(leader)
			w.want(res, 200, `"nodeId":"h1"`)
			if stored && number != first {
				t.Errorf("the node had number %v, and has %v", first, number)
			}
			m := w.managers[leader]
			_ = m.view(func(tx *tx) error {
				if n := tx.nodeByCredential[string(auth.Hash(credential))]; n != "h1" || tx.nodes.len() != 1 {
					t.Errorf("the credential is that of %q of %d nodes", n, tx.nodes.len())
				}
				return nil
			})
			log := w.call(leader, "PoolService/ListEvents", `{}`).Body.String()
			if got := strings.Count(log, "host h1 enrolled"); got != 1 {
				t.Errorf("%d events of the join: %s", got, log)
			}
		})
	}
}

// A manager that joins while the leader changes leads or follows like the others.
func TestManagerJoinsDuringATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTeam(t, "a", "b")
		w.want(w.call("a", "PoolService/CreateLease", queued), 200, `"lease"`)
		f := w.election.member("c")
		m, err := New(t.Context(), Config{JoinToken: "token-for-tests", Store: f, Open: OpenInsecure, Now: w.now})
		if err != nil {
			t.Fatal(err)
		}
		w.managers["c"], w.members["c"] = m, f
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		w.election.depose(true)
		wg.Go(func() { _ = m.Run(ctx) })
		time.Sleep(time.Second)
		leader := w.leader()
		for name := range w.managers {
			res := w.call(name, "PoolService/GetPool", `{}`)
			if name == leader {
				w.want(res, 200, `"leasesPending":1`)
				continue
			}
			w.want(res, 503, "this manager is not the leader; http://"+leader+" is")
		}
		log := w.call(leader, "PoolService/ListEvents", `{}`).Body.String()
		if got := strings.Count(log, dxpuv1.EventType_EVENT_TYPE_LEADER_CHANGED.String()); got != 2 {
			t.Errorf("%d events of two leaders: %s", got, log)
		}
		cancel()
		wg.Wait()
	})
}

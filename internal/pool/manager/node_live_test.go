package manager

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// Many nodes report less often, and may be silent for longer.
func TestHeartbeatOfManyNodes(t *testing.T) {
	const rate = 40 // reports a second: ten nodes every 250 ms
	for _, tt := range []struct {
		nodes           int
		every, patience time.Duration
	}{
		{1, 250 * time.Millisecond, time.Second},
		{10, 250 * time.Millisecond, time.Second},
		{11, 500 * time.Millisecond, 2 * time.Second},
		{20, 500 * time.Millisecond, 2 * time.Second},
		{45, 1250 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(fmt.Sprint(tt.nodes), func(t *testing.T) {
			nodes := []*fakeNode{hostNode("h", 1)}
			for i := 1; i < tt.nodes; i++ {
				nodes = append(nodes, hostNode(fmt.Sprint("other-", i), 1))
			}
			w := newWorld(t, Config{ReportRate: rate}, nodes...)
			_, every, err := w.m.report(context.Background(), w.nodes["h"].observe(), func(*tx) error { return nil })
			if err != nil || every != tt.every {
				t.Errorf("told to report every %v, want %v; %v", every, tt.every, err)
			}
			w.pass(tt.patience - time.Millisecond)
			if !w.readsAsConnected("h") {
				t.Error("lost too early")
			}
			w.pass(time.Millisecond)
			if w.readsAsConnected("h") {
				t.Error("not lost")
			}
		})
	}
}

func (w *world) readsAsConnected(id string) (there bool) {
	_ = w.m.view(func(t *tx) error {
		there = t.connected(id)
		return nil
	})
	return there && !w.m.live[id].told.lost
}

// BenchmarkReport measures an unchanged report, without the network.
func BenchmarkReport(b *testing.B) {
	var nodes []*fakeNode
	for i := range 500 { // each node has a limited call rate
		nodes = append(nodes, boxNode(fmt.Sprint("b", i), 8))
	}
	w := newWorld(b, Config{Open: OpenInsecure}, nodes...)
	h := w.m.Handler()
	_ = w.m.update(context.Background(), func(t *tx) error {
		for _, n := range nodes {
			t.nodes.edit(n.id).CredentialHash = auth.Hash(n.id)
		}
		return nil
	})
	for i := 0; b.Loop(); i++ {
		n := nodes[i%len(nodes)]
		o := n.observe()
		raw, err := proto.Marshal(&dxpuv1.ReportRequest{State: o})
		if err != nil {
			b.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, "/dxpu.v1.NodeService/Report", bytes.NewReader(raw))
		r.Header.Set("Content-Type", "application/proto")
		r.Header.Set("Authorization", "Bearer "+n.id)
		res := httptest.NewRecorder()
		if h.ServeHTTP(res, r); res.Code != http.StatusOK {
			b.Fatal(res.Body)
		}
	}
}

// BenchmarkChangedReport measures a report in which the health of one of a box's GPUs has changed.
func BenchmarkChangedReport(b *testing.B) {
	for _, slots := range []int{8, maxSlots} {
		for _, leases := range []int{0, slots / 8} {
			b.Run(fmt.Sprintf("gpus=%d/leases=%d", slots, leases), func(b *testing.B) {
				n := boxNode("b1", slots)
				n.serials = map[uint32]string{}
				for i := range uint32(slots) {
					n.serials[i] = fmt.Sprintf("1320921%06d", i)
				}
				w := newWorld(b, Config{}, n, hostNode("h1", slots))
				for range leases {
					w.create(&dxpuv1.LeaseSpec{Count: 8})
				}
				w.settle()
				details := []string{"warm", "cool"}
				for i := 0; b.Loop(); i++ {
					o := n.observe()
					o.Slots[slots/2].HealthDetail = details[i%2]
					if _, _, err := w.m.report(b.Context(), o, func(*tx) error { return nil }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// TestNodesSettled: the pool says when all living nodes have had the time to find the manager.
func TestNodesSettled(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	users := []auth.Identity{{Actor: "t-1", Role: dxpuv1.Role_ROLE_OPERATOR}, {Actor: "t-2", Role: dxpuv1.Role_ROLE_TENANT, Tenant: "lab"}}
	check := func(want bool, when string) {
		t.Helper()
		for _, u := range users {
			res, err := w.api().GetPool(auth.With(t.Context(), u), connect.NewRequest(&dxpuv1.GetPoolRequest{}))
			if err != nil {
				t.Fatal(err)
			}
			if is := res.Msg.Pool.NodesSettled; is != want {
				t.Errorf("%s, to %v: all nodes had the time to report: %v, want %v", when, u.Role, is, want)
			}
		}
	}
	check(false, "at once")
	w.passReporting(time.Minute)
	check(true, "after a minute")
}

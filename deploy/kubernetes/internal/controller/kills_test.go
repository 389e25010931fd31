package controller

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// TestKilledAtEachWrite kills the controller before and after each of its writes, in both APIs, while
// claims of all shapes are served, lose their GPUs, and end. Another controller goes on, until its own
// turn comes.
func TestKilledAtEachWrite(t *testing.T) {
	const stride = 12 // writes from one kill to the next
	reached := map[string]int{}
	for first := range stride {
		t.Run(strconv.Itoa(first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inTorture(t, uint64(first), func(w *torture) {
					w.killAt = func(point int) bool { return point%stride == first }
					w.liveThrough()
					for name, n := range w.killed {
						reached[name] += n
					}
				})
			})
		})
	}
	t.Logf("killed %v", reached)
	for _, write := range []string{"status", "eviction", "creation", "deletion"} {
		if reached["before "+write] == 0 || reached["after "+write] == 0 {
			t.Errorf("no kill before or after %s", write)
		}
	}
}

// liveThrough lets claims of all shapes be served, lose their GPUs, be served again, and end.
func (w *torture) liveThrough() {
	w.eachClaim(w.claimLocked)
	w.settle(settleSteps)
	w.manager.loseEach()
	w.settle(settleSteps)
	w.eachClaim(func(ns, name string) { w.deleteLocked(claimsOf, ns, name) })
	w.settle(60)
}

// settleSteps are enough for a pod on its node that waits in vain for its GPU, is evicted and has a successor.
const settleSteps = 300

// eachClaim does something for the name of each claim.
func (w *torture) eachClaim(do func(ns, name string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ns := range namespaces {
		for _, name := range names {
			do(ns, name)
		}
	}
}

// settle is quiet, except that another controller takes the place of one that is killed.
func (w *torture) settle(steps int) {
	w.Helper()
	for range steps {
		w.step()
		if r := w.replicas[len(w.replicas)-1]; r.cut.Load() {
			w.startReplica()
			w.replicas = w.replicas[1:]
		}
	}
	w.quiet(0)
}

// loseEach takes its GPUs from each lease that has them.
func (m *modelManager) loseEach() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.listLocked() {
		if l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
			m.loseLocked(l)
			m.putLocked(l)
		}
	}
}

// point counts a point of a controller's writes, and kills the controller if it is to end there. It
// reports whether the controller lives.
func (r *replica) point(w *torture, name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.cut.Load() {
		return false
	}
	if w.points++; w.killAt != nil && w.killAt(w.points) {
		w.killed[name]++
		r.kill()
	}
	return !r.cut.Load()
}

// killedAt makes points of a write to the cluster.
func (r *replica) killedAt(w *torture, name string, write clienttesting.ReactionFunc) clienttesting.ReactionFunc {
	return func(a clienttesting.Action) (bool, runtime.Object, error) {
		if !r.point(w, "before "+name) {
			return true, nil, errCut
		}
		handled, obj, err := write(a)
		if !r.point(w, "after "+name) {
			return true, nil, errCut
		}
		return handled, obj, err
	}
}

// killingPool makes points of the writes to the manager.
type killingPool struct {
	dxpuv1connect.PoolServiceClient
	w *torture
	r *replica
}

func (p *killingPool) CreateLease(ctx context.Context, req *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	return atPoints(p, "creation", func() (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
		return p.PoolServiceClient.CreateLease(ctx, req)
	})
}

func (p *killingPool) DeleteLease(ctx context.Context, req *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	return atPoints(p, "deletion", func() (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
		return p.PoolServiceClient.DeleteLease(ctx, req)
	})
}

func atPoints[T any](p *killingPool, name string, write func() (*T, error)) (*T, error) {
	if !p.r.point(p.w, "before "+name) {
		return nil, errCut
	}
	res, err := write()
	if !p.r.point(p.w, "after "+name) {
		return nil, errCut
	}
	return res, err
}

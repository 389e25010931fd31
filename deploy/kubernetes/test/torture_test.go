package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestTorture makes random faults while pods come and go, and checks the invariants of both
// APIs after each pause of the faults.
func TestTorture(t *testing.T) {
	t.Parallel()
	const perRound = 25
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: tortureBoxes, GPUs: tortureGPUs, Hosts: 6, Slots: 4, Simulate: true}, "--queue-timeout", "10s")
	const seed = 17
	random := rand.New(rand.NewPCG(seed, 0))
	pods := map[string]bool{}
	ran := 0
	for n := 0; n < scale.faults; {
		ran += e.load(random, n, pods)
		for range perRound {
			e.fault(random, n, pods)
			n++
		}
		e.checkInvariants()
	}
	for name := range pods {
		e.removePod(name)
	}
	e.waitNoLease()
	e.checkInvariants()
	t.Logf("%d faults in rounds of %d; %d pods ran when these began, together", scale.faults, perRound, ran)
}

// load makes the pool one in which faults hurt: no GPU is cordoned, and pods run. Faults come
// faster than pods start. It returns the number of pods that run.
func (e *env) load(r *rand.Rand, n int, pods map[string]bool) (running int) {
	e.t.Helper()
	for box := range tortureBoxes {
		for slot := range tortureGPUs {
			target := &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: fmt.Sprintf("box-%05d/%d", box, slot)}}
			if _, err := e.pool.API.Pool.Uncordon(e.t.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil {
				e.t.Fatal(err)
			}
		}
	}
	added := 0
	e.wait("pods to run", func(ctx context.Context) (bool, error) {
		l, err := e.Kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		clear(pods) // some were evicted
		running = 0
		for i := range l.Items {
			p := &l.Items[i]
			if p.DeletionTimestamp != nil {
				continue
			}
			pods[p.Name] = true
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		for ; len(pods) < 2*enough; added++ {
			e.addPod(r, fmt.Sprintf("l%d-%d", n, added), pods)
		}
		return running >= enough, fmt.Errorf("%d of %d run", running, len(pods))
	})
	return running
}

// The pool of TestTorture, and the number of pods that run before the faults.
const (
	tortureBoxes, tortureGPUs = 4, 4
	enough                    = 4
)

// addPod creates a pod with one or two GPUs, or with parts of them.
func (e *env) addPod(r *rand.Rand, name string, pods map[string]bool) {
	e.t.Helper()
	s := podSpec{name: name, gpus: 1 + int64(r.IntN(2))}
	if r.IntN(2) == 0 {
		s.capacity = "memory=20Gi,compute=30"
	}
	e.createPod(s)
	pods[name] = true
}

// fault makes one random change.
func (e *env) fault(r *rand.Rand, n int, pods map[string]bool) {
	ctx := e.t.Context()
	gpu := fmt.Sprintf("box-%05d/%d", r.IntN(tortureBoxes), r.IntN(tortureGPUs))
	target := &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: gpu}}
	switch k := r.IntN(100); {
	case k < 40 && len(pods) < 14: // more than the pool has room for, at times
		e.addPod(r, "t"+strconv.Itoa(n), pods)
	case k < 70:
		for name := range pods { // in mid-attach, often
			e.removePod(name)
			delete(pods, name)
			break
		}
	case k < 80:
		if all, err := e.leases(ctx); err == nil && len(all) > 0 {
			id := all[r.IntN(len(all))].Id
			_, _ = e.pool.API.Pool.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id, Force: r.IntN(2) == 0}))
		}
	case k < 86:
		_, _ = e.pool.API.Pool.Cordon(ctx, connect.NewRequest(&dxpuv1.CordonRequest{Target: target}))
	case k < 96:
		_, _ = e.pool.API.Pool.Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: target}))
	case k < 99:
		e.controller.Kill()
		e.startController()
	default:
		if err := e.Restart(ctx, "kube-scheduler"); err != nil {
			e.t.Fatal(err)
		}
	}
}

func (e *env) removePod(name string) {
	e.t.Helper()
	err := e.Kube.CoreV1().Pods("default").Delete(e.t.Context(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // it may have been evicted
		e.t.Fatal(err)
	}
}

// checkInvariants waits until both APIs agree: no lease without its claim, no attached claim
// without its lease, and no pod that runs with a device that is lost.
func (e *env) checkInvariants() {
	e.t.Helper()
	e.wait("the invariants", func(ctx context.Context) (bool, error) {
		list, err := e.Kube.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		leases, err := e.leases(ctx)
		if err != nil {
			return false, err
		}
		err = disagree(list.Items, leases)
		return err == nil, err
	})
}

func useOf(claim, device, share string) string { return claim + "/" + device + "/" + share }

// disagree returns an invariant that does not hold.
func disagree(list []resourceapi.ResourceClaim, leases []*dxpuv1.Lease) error {
	byUse := map[string]*dxpuv1.Lease{}
	for _, l := range leases {
		if l.State == dxpuv1.LeaseState_LEASE_STATE_RELEASING {
			continue
		}
		use := useOf(l.Spec.Labels[claims.LabelClaim], l.Spec.Labels[claims.LabelDevice], l.Spec.Labels[claims.LabelShare])
		if byUse[use] != nil {
			return fmt.Errorf("leases %s and %s are both for %s", l.Id, byUse[use].Id, use)
		}
		byUse[use] = l
	}
	used := map[string]bool{}
	for i := range list {
		c := &list[i]
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			share := ""
			if r.ShareID != nil {
				share = string(*r.ShareID)
			}
			l := byUse[useOf(string(c.UID), r.Device, share)]
			if l == nil { // GPUs of the node's own machine have one lease
				l = byUse[useOf(string(c.UID), "local", "")]
			}
			if l != nil {
				used[l.Id] = true
			}
			for _, d := range c.Status.Devices {
				attached := meta.IsStatusConditionTrue(d.Conditions, "dxpu.dev/Attached")
				failed := meta.IsStatusConditionTrue(d.Conditions, "dxpu.dev/Failed")
				switch {
				case d.Device != r.Device || d.ShareID != nil && *d.ShareID != share:
				case failed && len(c.Status.ReservedFor) > 0 && attached:
					return fmt.Errorf("claim %s keeps device %s, which is lost", c.Name, r.Device)
				case attached && !failed && (l == nil || l.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE):
					return fmt.Errorf("claim %s is attached to device %s, whose lease is %v", c.Name, r.Device, l.GetState())
				}
			}
		}
	}
	if len(used) != len(byUse) {
		return fmt.Errorf("%d of %d leases have no claim", len(byUse)-len(used), len(byUse))
	}
	return nil
}

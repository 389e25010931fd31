package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// kubeletNames are the names that real kubelets may have.
var kubeletNames = []string{"kubelet-1", "kubelet-2"}

// fakeNodes are nodes without a kubelet: their pods run as soon as they are bound, and
// end as soon as they are deleted.
type fakeNodes struct {
	kube   kubernetes.Interface
	cancel context.CancelFunc
	ctx    context.Context //nolint:containedctx // the life of the loops, which stop ends
	loops  sync.WaitGroup
	mu     sync.Mutex
	alive  map[string]bool
	start  sync.Once
	pods   chan *corev1.Pod
}

func newFakeNodes(kube kubernetes.Interface) *fakeNodes {
	ctx, cancel := context.WithCancel(context.Background())
	return &fakeNodes{kube: kube, ctx: ctx, cancel: cancel, alive: map[string]bool{}, pods: make(chan *corev1.Pod, 10000)}
}

func (f *fakeNodes) stop() {
	f.cancel()
	f.loops.Wait()
}

// heartbeat is a quarter of the default time after which a node is not ready.
const heartbeat = 10 * time.Second

// AddNode adds a node without a kubelet, with some labels.
func (c *Cluster) AddNode(ctx context.Context, name string, labels map[string]string) error {
	f := c.nodes
	f.start.Do(f.run)
	all := map[string]string{corev1.LabelHostname: name}
	for k, v := range labels {
		all[k] = v
	}
	room := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("1000"),
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all}}
	if _, err := f.kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{}); err != nil {
		return err
	}
	now := metav1.Now()
	raw, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Fake", LastHeartbeatTime: now, LastTransitionTime: now},
	}}})
	if err != nil {
		return err
	}
	// A patch: the controllers change the node at the same time.
	if _, err := f.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, raw, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	f.mu.Lock()
	f.alive[name] = true
	f.mu.Unlock()
	return f.beat(ctx, name)
}

// RemoveNode removes a node from the cluster, as after its death.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	c.nodes.mu.Lock()
	delete(c.nodes.alive, name)
	c.nodes.mu.Unlock()
	return c.Kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
}

// beat renews the lease of a node.
func (f *fakeNodes) beat(ctx context.Context, name string) error {
	leases := f.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	seconds, now := int32(40), metav1.NowMicro()
	spec := coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}
	old, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	old.Spec = spec
	_, err = leases.Update(ctx, old, metav1.UpdateOptions{})
	return err
}

func (f *fakeNodes) has(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[name]
}

func (f *fakeNodes) run() {
	f.loops.Go(func() {
		tick := time.NewTicker(heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-f.ctx.Done():
				return
			case <-tick.C:
			}
			f.mu.Lock()
			var names []string
			for n := range f.alive {
				names = append(names, n)
			}
			f.mu.Unlock()
			for _, n := range names {
				_ = f.beat(f.ctx, n) // the next one is soon; the API server may be restarting
			}
		}
	})
	factory := informers.NewSharedInformerFactory(f.kube, 2*time.Second) // what failed is tried again
	pods := factory.Core().V1().Pods().Informer()
	changed := func(obj any) {
		p, ok := obj.(*corev1.Pod)
		if !ok || !f.has(p.Spec.NodeName) || p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			return
		}
		select {
		case f.pods <- p:
		default: // the next resync has it
		}
	}
	_, _ = pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, obj any) { changed(obj) }})
	f.loops.Go(func() { pods.RunWithContext(f.ctx) })
	for range 8 {
		f.loops.Go(func() {
			for {
				select {
				case <-f.ctx.Done():
					return
				case p := <-f.pods:
					f.handle(p)
				}
			}
		})
	}
}

// handle does for a pod what a kubelet would.
func (f *fakeNodes) handle(p *corev1.Pod) {
	api := f.kube.CoreV1().Pods(p.Namespace)
	if p.DeletionTimestamp != nil {
		now := int64(0)
		_ = api.Delete(f.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID}})
		return
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"phase":"Running","startTime":%q,"conditions":[{"type":"Ready","status":"True"}]}}`,
		p.UID, time.Now().UTC().Format(time.RFC3339))
	_, _ = api.Patch(f.ctx, p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
}

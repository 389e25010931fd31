package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// torture is a cluster and a pool in which everything fails. Its time is that of a bubble.
type torture struct {
	*testing.T
	ctx     context.Context
	kube    *fake.Clientset
	manager *modelManager

	mu      sync.Mutex // guards the cluster's objects and the fields below
	random  *rand.Rand
	faults  bool
	version int
	uids    int
	wrong   []string // what has been found
	done    map[string]int

	allocated map[types.UID]time.Time // when each claim was last

	replicas []*replica
	running  sync.WaitGroup
}

// replica is a running controller.
type replica struct {
	cut  atomic.Bool // nothing reaches the cluster or the manager any more
	stop context.CancelFunc
}

var (
	claimsOf   = resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	podsOfCore = corev1.SchemeGroupVersion.WithResource("pods")
	namespaces = []string{"a", "b"}
	names      = []string{"c1", "c2", "c3", "c4"}
)

// TestTorture makes random faults in both APIs and in the controllers, and checks in between that no
// lease is left or wrong once they have passed.
func TestTorture(t *testing.T) {
	seeds, rounds := uint64(3), 2
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tortured(t, seed, rounds) })
		})
	}
}

func tortured(t *testing.T, seed uint64, rounds int) {
	w := &torture{T: t, random: rand.New(rand.NewPCG(seed, 1)), done: map[string]int{}, allocated: map[types.UID]time.Time{}}
	objects := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "c"}}}
	for i := range modelHosts {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%d", i+1), Labels: map[string]string{inventory.HostLabel: fmt.Sprintf("h%d", i+1)}}})
	}
	for i := range modelBoxes {
		s := sliceBefore()
		s.Name, s.Spec.Pool.Name = fmt.Sprintf("%s-%d", s.Name, i), fmt.Sprintf("dxpu/b%d", i+1)
		objects = append(objects, s)
	}
	w.kube = fake.NewClientset(objects...)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(discard{})))))
	w.ctx = ctx
	w.manager = &modelManager{
		awayManager: &awayManager{dials: make(chan net.Conn), conns: map[net.Conn]bool{}},
		deleting:    w.mayDelete, random: rand.New(rand.NewPCG(seed, 2)), leases: map[string]*dxpuv1.Lease{},
		streams: map[chan *dxpuv1.Lease]bool{}, served: map[string]bool{}, lost: map[string]bool{}, ends: map[string]time.Time{},
	}
	defer w.manager.calls.Wait()
	defer serveManager(w.manager, w.manager.dials)()
	defer w.running.Wait()
	defer cancel()
	w.startReplica()
	for range rounds {
		w.setFaults(true)
		for range 300 {
			w.fault()
			w.step()
		}
		w.setFaults(false)
		w.quiet()
	}
	t.Logf("%v", w.done)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func (w *torture) setFaults(on bool) {
	w.mu.Lock()
	w.faults = on
	w.mu.Unlock()
	w.manager.mu.Lock()
	w.manager.faults = on
	w.manager.mu.Unlock()
}

// step lets some time pass in the pool and in the cluster.
func (w *torture) step() {
	time.Sleep(300 * time.Millisecond)
	synctest.Wait()
	w.manager.step()
	w.schedule()
}

// quiet waits until everything has settled, and checks it.
func (w *torture) quiet() {
	w.Helper()
	w.manager.set(back)
	for len(w.replicas) > 1 {
		w.replicas[0].stop()
		w.replicas = w.replicas[1:]
	}
	for range 400 {
		w.step()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkLocked()
	if len(w.wrong) > 0 {
		w.Fatalf("%s", strings.Join(w.wrong, "\n"))
	}
}

// checkLocked records which invariants do not hold after a time without faults.
func (w *torture) checkLocked() {
	all := w.claimsLocked()
	used := map[string]bool{}
	for _, c := range all {
		if c.Status.Allocation == nil {
			continue
		}
		d := deviceStatus(c, c.Status.Allocation.Devices.Results[0].Device, "")
		if d == nil || !isTrue(*d, inventory.Attached) || isTrue(*d, inventory.Failed) {
			w.wrong = append(w.wrong, fmt.Sprintf("claim %s/%s is not served: %+v", c.Namespace, c.Name, d))
			continue
		}
		used[attachedBy(*d).Lease] = true
	}
	for _, l := range w.manager.list() {
		switch {
		case ended(l):
		case !used[l.Id]:
			w.wrong = append(w.wrong, fmt.Sprintf("lease %s is left: %s, %v", l.Id, l.State, l.Spec.Labels))
		case l.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE:
			w.wrong = append(w.wrong, fmt.Sprintf("lease %s is in use and %s", l.Id, l.State))
		}
		delete(used, l.Id)
	}
	for id := range used {
		w.wrong = append(w.wrong, "a claim has lease "+id+", which is not there")
	}
	slices, err := w.kube.ResourceV1().ResourceSlices().List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	devices := 0
	for _, s := range slices.Items {
		for _, d := range s.Spec.Devices {
			devices++
			if len(d.Taints) > 0 {
				w.wrong = append(w.wrong, fmt.Sprintf("device %s has taints %v", d.Name, d.Taints))
			}
		}
	}
	if devices != modelBoxes*modelGPUs {
		w.wrong = append(w.wrong, fmt.Sprintf("%d devices are offered, want %d", devices, modelBoxes*modelGPUs))
	}
}

// chance returns whether something happens with a chance in per cent, while there are faults.
func (w *torture) chanceLocked(percent int) bool { return w.faults && w.random.IntN(100) < percent }

func (w *torture) chance(percent int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.chanceLocked(percent)
}

// claimsLocked returns all claims of the cluster.
func (w *torture) claimsLocked() (out []*resourceapi.ResourceClaim) {
	for _, ns := range namespaces {
		list, err := w.kube.Tracker().List(claimsOf, resourceapi.SchemeGroupVersion.WithKind("ResourceClaim"), ns)
		if err != nil {
			w.Fatal(err)
		}
		for i := range list.(*resourceapi.ResourceClaimList).Items {
			out = append(out, list.(*resourceapi.ResourceClaimList).Items[i].DeepCopy())
		}
	}
	return out
}

func (w *torture) putLocked(c *resourceapi.ResourceClaim) {
	w.version++
	c.ResourceVersion = strconv.Itoa(w.version)
	if err := w.kube.Tracker().Update(claimsOf, c, c.Namespace); err != nil {
		w.Fatal(err)
	}
}

func (w *torture) deleteLocked(gvr schema.GroupVersionResource, ns, name string) {
	if err := w.kube.Tracker().Delete(gvr, ns, name); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

// podLocked returns the pod of a claim, nil for none.
func (w *torture) podLocked(c *resourceapi.ResourceClaim) *corev1.Pod {
	obj, err := w.kube.Tracker().Get(podsOfCore, c.Namespace, c.Name)
	if err != nil || len(c.Status.ReservedFor) == 0 || obj.(*corev1.Pod).UID != c.Status.ReservedFor[0].UID {
		return nil
	}
	return obj.(*corev1.Pod).DeepCopy()
}

// schedule does what the scheduler and the controllers of Kubernetes do for all claims.
func (w *torture) schedule() {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := map[string]bool{}
	for _, c := range w.claimsLocked() {
		if a := c.Status.Allocation; a != nil {
			taken[a.Devices.Results[0].Device] = true
		}
	}
	for _, c := range w.claimsLocked() {
		if c.Status.Allocation == nil {
			w.allocateLocked(c, taken)
			continue
		}
		d := deviceStatus(c, c.Status.Allocation.Devices.Results[0].Device, "")
		failed := d != nil && isTrue(*d, inventory.Failed)
		pod := w.podLocked(c)
		switch {
		case pod == nil, pod.Status.Phase == "" && (failed || w.chanceLocked(2)):
			if pod != nil && pod.Spec.NodeName != "" {
				w.deleteLocked(podsOfCore, pod.Namespace, pod.Name) // its kubelet gives up
			}
			c.Status = resourceapi.ResourceClaimStatus{}
			w.putLocked(c)
		case pod.Status.Phase == "" && d != nil && isTrue(*d, inventory.Attached):
			pod.Spec.NodeName, pod.Status.Phase = w.nodeOfDevice(c), corev1.PodRunning
			if err := w.kube.Tracker().Update(podsOfCore, pod, pod.Namespace); err != nil {
				w.Fatal(err)
			}
			w.done["pods that run"]++
		}
	}
}

func (w *torture) nodeOfDevice(c *resourceapi.ResourceClaim) string {
	if n := allocatedNode(c.Status.Allocation.NodeSelector); n != "" {
		return n
	}
	return w.podLocked(c).Spec.NodeName
}

// allocateLocked allocates a free device for a claim, and a node, and makes a pod for it. The pod of
// another scheduler has its node from the beginning, and the claim has none.
func (w *torture) allocateLocked(c *resourceapi.ResourceClaim, taken map[string]bool) {
	var free []string
	for _, id := range modelDevices() {
		if d := inventory.DeviceName(id); !taken[d] {
			free = append(free, d)
		}
	}
	now := time.Now().Truncate(time.Second)
	if len(free) == 0 || w.random.IntN(4) > 0 || w.allocated[c.UID].Equal(now) {
		return // the scheduler takes a second until it tries again
	}
	w.allocated[c.UID] = now
	device, host := free[w.random.IntN(len(free))], fmt.Sprintf("w%d", 1+w.random.IntN(modelHosts))
	taken[device] = true
	w.deleteLocked(podsOfCore, c.Namespace, c.Name)
	w.uids++
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: types.UID(fmt.Sprintf("p%d", w.uids))}}
	r := resourceapi.DeviceRequestAllocationResult{Request: "gpu", Driver: inventory.Driver, Pool: "dxpu/" + device[:2], Device: device}
	c.Status.Allocation = &resourceapi.AllocationResult{
		AllocationTimestamp: &metav1.Time{Time: now},
		Devices:             resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{r}},
	}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: pod.Name, UID: pod.UID}}
	if w.random.IntN(5) == 0 {
		pod.Spec.NodeName = host
	} else {
		c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{host}}},
		}}}
	}
	if err := w.kube.Tracker().Create(podsOfCore, pod, pod.Namespace); err != nil {
		w.Fatal(err)
	}
	w.putLocked(c)
}

// fault makes a random change.
func (w *torture) fault() {
	w.mu.Lock()
	defer w.mu.Unlock()
	ns, name := namespaces[w.random.IntN(len(namespaces))], names[w.random.IntN(len(names))]
	k := w.random.IntN(1000)
	switch {
	case k < 300: // a claim, which may have the name of one that was deleted
		w.uids++
		c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(fmt.Sprintf("u%d", w.uids))}}
		w.version++
		c.ResourceVersion = strconv.Itoa(w.version)
		if err := w.kube.Tracker().Create(claimsOf, c, ns); err == nil {
			w.done["claims"]++
		}
	case k < 400: // in mid-attach, often
		w.deleteLocked(claimsOf, ns, name)
	case k < 450:
		w.deleteLocked(podsOfCore, ns, name)
	case k < 460:
		for _, n := range names {
			w.deleteLocked(claimsOf, ns, n)
			w.deleteLocked(podsOfCore, ns, n)
		}
		w.done["namespaces deleted"]++
	case k < 480:
		w.manager.set(away)
		w.done["outages"]++
	case k < 580:
		w.manager.set(back)
	case k < 590:
		w.manager.restore()
		w.done["restores"]++
	case k < 620: // a hard kill: calls that are under way go on in the manager
		w.replicas[len(w.replicas)-1].cut.Store(true)
		w.replicas[len(w.replicas)-1].stop()
		w.replicas = w.replicas[:len(w.replicas)-1]
		w.startReplica()
		w.done["kills"]++
	case k < 640: // a leader that does not know yet that another one leads
		w.startReplica()
		w.done["two lead"]++
	case k < 700 && len(w.replicas) > 1:
		w.replicas[0].stop()
		w.replicas = w.replicas[1:]
	}
}

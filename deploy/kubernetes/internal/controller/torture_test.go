package controller

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
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
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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

	clock     time.Duration                // of the scheduler, against that of the others
	deleted   []*resourceapi.ResourceClaim // the last
	points    int                          // of the controllers' writes that have been reached
	killAt    func(point int) bool         // whether a controller is killed there
	killed    map[string]int               // by the kind of the point
	allocated map[string]bool              // by claim, second, node and devices
	named     map[string]string            // namespace and name of each claim that there was, by UID

	replicas []*replica
	running  sync.WaitGroup
}

// replica is a running controller.
type replica struct {
	cut  atomic.Bool // nothing reaches the cluster or the manager any more
	stop context.CancelFunc
}

func (r *replica) kill() {
	r.cut.Store(true)
	r.stop()
}

var (
	claimsOf   = resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	podsOfCore = corev1.SchemeGroupVersion.WithResource("pods")
	namespaces = []string{"a", "b"}
	names      = []string{"c1", "c2", "c3", "c4", "c5"}
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
	inTorture(t, seed, func(w *torture) {
		for range rounds {
			w.setFaults(true)
			for range 300 {
				w.fault()
				w.step()
			}
			w.setFaults(false)
			w.manager.set(back)
			w.manager.heal()
			w.completeGang()
			w.quiet(450)
		}
		t.Logf("%v", w.done)
	})
}

// inTorture runs a test with a cluster, a pool and a controller, without faults.
func inTorture(t *testing.T, seed uint64, test func(w *torture)) {
	w := &torture{T: t, random: rand.New(rand.NewPCG(seed, 1)), done: map[string]int{}, allocated: map[string]bool{}, named: map[string]string{}, killed: map[string]int{}}
	objects := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "c"}}}
	for i := range modelHosts {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%d", i+1), Labels: map[string]string{inventory.HostLabel: fmt.Sprintf("h%d", i+1)}}})
	}
	for _, b := range modelBoxes {
		for i, devices := range b.slices() {
			s := sliceBefore()
			s.Spec.Devices = devices
			s.Name, s.Spec.Pool.Name, s.Spec.Pool.ResourceSliceCount = fmt.Sprintf("%s-%s-%d", s.Name, b.id, i), "dxpu/"+b.id, int64(len(b.slices()))
			objects = append(objects, s)
		}
	}
	w.kube = fake.NewClientset(objects...)
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(discard{})))))
	w.ctx = ctx
	w.manager = &modelManager{
		awayManager: &awayManager{dials: make(chan net.Conn), conns: map[net.Conn]bool{}},
		deleting:    w.mayDelete, random: rand.New(rand.NewPCG(seed, 2)), leases: map[string]*dxpuv1.Lease{},
		streams: map[chan *dxpuv1.Lease]bool{}, events: map[chan struct{}]bool{}, served: map[string]bool{}, lost: map[string]bool{}, ends: map[string]time.Time{}, vain: map[string]bool{},
	}
	defer w.manager.calls.Wait()
	defer serveManager(w.manager, w.manager.dials)()
	defer w.running.Wait()
	defer cancel()
	w.startReplica()
	test(w)
}

// The handlers of Kubernetes' own errors share the time of the last one, and sleep until some time has
// passed since: for ever, if that was in another bubble.
func init() { utilruntime.ErrorHandlers = nil }

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
	if obj, err := w.kube.Tracker().Get(gvr, ns, name); err == nil && gvr == claimsOf {
		w.deleted = append(w.deleted, obj.(*resourceapi.ResourceClaim).DeepCopy())
		w.deleted = w.deleted[max(len(w.deleted)-10, 0):]
	}
	if err := w.kube.Tracker().Delete(gvr, ns, name); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

// fault makes a random change.
func (w *torture) fault() {
	w.mu.Lock()
	defer w.mu.Unlock()
	ns, name := namespaces[w.random.IntN(len(namespaces))], names[w.random.IntN(len(names))]
	k := w.random.IntN(1000)
	switch {
	case k < 300: // a claim, which may have the name of one that was deleted
		w.claimLocked(ns, name)
	case k < 400: // in mid-attach, often
		w.deleteLocked(claimsOf, ns, name)
	case k < 450:
		w.deleteLocked(podsOfCore, ns, name+second[w.random.IntN(2)])
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
		w.replicas[len(w.replicas)-1].kill()
		w.replicas = w.replicas[:len(w.replicas)-1]
		w.startReplica()
		w.done["kills"]++
	case k < 640: // a leader that does not know yet that another one leads
		w.startReplica()
		w.done["two lead"]++
	case k < 700 && len(w.replicas) > 1:
		w.replicas[0].stop()
		w.replicas = w.replicas[1:]
	case k < 720:
		w.clock = time.Duration(w.random.IntN(7200)-3600) * time.Second
		w.done["clock jumps"]++
	case k < 760:
		w.done[w.manager.ail(w.random)]++
	case k < 780:
		w.manager.heal()
	}
}

package test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

const ownGPU = `device.attributes["gpu.dxpu.dev"].?localHost.orValue("") == "m1"`

// localGPUs starts a pool with a machine m1 that has two GPUs of its own, and a node for it.
func localGPUs(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 1, GPUs: 1, Hosts: 1, Slots: 4, Simulate: true})
	if err := e.pool.StartShare("m1", 2); err != nil {
		t.Fatal(err)
	}
	if err := e.AddNode(t.Context(), "machine", map[string]string{inventory.HostLabel: "m1"}); err != nil {
		t.Fatal(err)
	}
	e.waitDevices(3)
	return e
}

// TestSeveralLocalGPUs: a claim gets several GPUs of one machine, or a part of each, by one lease.
// The controller refuses the rest and says why.
func TestSeveralLocalGPUs(t *testing.T) {
	t.Parallel()
	e := localGPUs(t)
	for name, s := range map[string]podSpec{
		"whole":    {selector: ownGPU, gpus: 2},
		"requests": {selector: ownGPU, requests: 2},
		"parts":    {selector: ownGPU, gpus: 2, capacity: "memory=2Gi,compute=30"},
	} {
		s.name = name
		e.createPod(s)
		e.waitRunning(name)
		l := e.onlyLease()
		if l.Spec.Count != 2 || len(l.Bindings) != 2 || (l.Spec.Part == nil) == (s.capacity != "") {
			t.Errorf("%s: lease %v", name, l)
		}
		e.checkInvariants()
		e.deletePod(name)
		e.waitNoLease()
	}
	e.createPod(podSpec{name: "twice", selector: ownGPU, requests: 2, capacity: "memory=2Gi,compute=30"})
	e.waitEvent("twice", "GPUUnsupported", "add constraints: [{distinctAttribute: gpu.dxpu.dev/gpu}]")
	e.deletePod("twice")

	// Two claims for one container.
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "both", Namespace: "default"}, Spec: e.podSpec(podSpec{name: "both", selector: ownGPU})}
	more := p.Spec.ResourceClaims[0]
	more.Name = "more"
	p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, more)
	p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: "more"})
	if _, err := e.Kube.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.waitEvent("both", "GPUUnsupported", "ask for all of them in one claim")
	e.deletePod("both")
	e.waitNoLease()
}

// TestLocalGPUs: the GPU that a machine offers by "dxpu share serve", and parts of it, go to pods on
// the node of its host alone, and this node gets no others.
func TestLocalGPUs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 1, GPUs: 1, Hosts: 1, Slots: 4, Simulate: true})
	if err := e.pool.StartShare("m1", 1); err != nil {
		t.Fatal(err)
	}
	e.waitDevices(2)
	e.createPod(podSpec{name: "part", selector: ownGPU, capacity: "memory=2Gi,compute=30"})
	e.waitUnschedulable("part") // its host has no node
	if err := e.AddNode(t.Context(), "machine", map[string]string{"dxpu.dev.node-restriction.kubernetes.io/host": "m1"}); err != nil {
		t.Fatal(err)
	}
	if on := e.waitRunning("part").Spec.NodeName; on != "machine" {
		t.Errorf("the pod with a part runs on %s", on)
	}
	e.createPod(podSpec{name: "rest", node: "machine", capacity: "memory=6Gi,compute=70"})
	e.waitRunning("rest")
	// The box has a free GPU, and the machine has none.
	e.createPod(podSpec{name: "waits", node: "machine"})
	e.waitUnschedulable("waits")
	e.createPod(podSpec{name: "remote"})
	if on := e.waitRunning("remote").Spec.NodeName; on != nodeName(0) {
		t.Errorf("the pod with the GPU of the box runs on %s", on)
	}
	for gpu, want := range map[string]int{"m1-gpus/0": 2, "box-00000/0": 1} {
		if got := e.byGPU()[gpu]; len(got) != want {
			t.Errorf("GPU %s has %d leases, want %d", gpu, len(got), want)
		}
	}
	e.deletePod("part")
	e.deletePod("rest")
	e.waitRunning("waits")
	e.checkInvariants()
	e.deletePod("waits")
	e.deletePod("remote")
	e.waitNoLease()
}

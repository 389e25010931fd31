package test

import (
	"testing"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

const ownGPU = `device.attributes["gpu.dxpu.dev"].?localHost.orValue("") == "m1"`

// TestLocalGPUs: the GPU that a machine offers by "dxpu share serve", and parts of it, go to pods on
// the node of its host alone, and this node gets no others.
func TestLocalGPUs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 1, GPUs: 1, Hosts: 1, Slots: 4, Simulate: true})
	if err := e.pool.StartShare("m1", "test,memory=8GiB"); err != nil {
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

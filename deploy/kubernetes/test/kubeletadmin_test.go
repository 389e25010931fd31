package test

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// monitors: a pod with access for monitoring is allocated the GPU of another pod. It has no lease and nothing in
// its container, and needs a label of its namespace.
func (n *nodesEnv) monitors() {
	n.createPod(podSpec{name: "user", command: loop})
	user := n.waitRunning("user")
	n.waitPrinted(user, computed, 1)
	l := n.onlyLease()
	s := podSpec{
		name: "monitor", admin: true, selector: fmt.Sprintf(`device.attributes["gpu.dxpu.dev"].gpu == %q`, l.Bindings[0].GpuId),
		command: "test -e /run/dxpu || echo nothing; sleep infinity",
	}
	if err := n.createTemplate(s); err == nil || !strings.Contains(err.Error(), resourceapi.DRAAdminNamespaceLabelKey) {
		n.t.Errorf("access for monitoring without the label of the namespace: %v", err)
	}
	n.labelNamespace(`"true"`)
	n.createPod(s)
	pod := n.waitRunning("monitor")
	n.waitPrinted(pod, "nothing\n", 1)
	claim, err := n.claimOf(n.t.Context(), pod)
	n.must(err)
	if d, err := n.device(n.t.Context(), claim.Status.Allocation.Devices.Results[0].Device); err != nil || *d.Attributes["gpu"].StringValue != l.Bindings[0].GpuId {
		n.t.Errorf("device %v, %v; want GPU %s", d, err, l.Bindings[0].GpuId)
	}
	n.deletePod("monitor")
	n.waitGone("monitor")
	if now := n.onlyLease(); now.Id != l.Id {
		n.t.Errorf("lease %s, want that of the user, %s", now.Id, l.Id)
	}
	n.waitPrinted(user, computed, n.printed(user, computed)+1)
	n.labelNamespace("null")
	n.deletePod("user")
	n.waitNoLease()
	n.noSpecifications()
}

// labelNamespace sets the label of the namespace that allows access for monitoring; "null" removes it.
func (n *nodesEnv) labelNamespace(value string) {
	n.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, resourceapi.DRAAdminNamespaceLabelKey, value)
	_, err := n.Kube.CoreV1().Namespaces().Patch(n.t.Context(), "default", types.MergePatchType, patch, metav1.PatchOptions{})
	n.must(err)
}

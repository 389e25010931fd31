package test

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// anotherNode: a pod that names its node itself, which the scheduler does not see, uses the claim
// of a pod on another node. The slot with the same number has the GPU of a third pod there.
func (n *nodesEnv) anotherNode() {
	for i, name := range []string{"holder", "neighbour"} {
		n.createPod(podSpec{name: name, command: "sleep infinity", node: n.nodes[i].Name})
	}
	claim, err := n.claimOf(n.t.Context(), n.waitRunning("holder"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.waitRunning("neighbour")
	spec := corev1.PodSpec{
		NodeName: n.nodes[1].Name, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}},
		Containers: n.podSpec(podSpec{name: "intruder", command: "sleep infinity"}).Containers,
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "intruder", Namespace: "default"}, Spec: spec}
	if _, err := n.Kube.CoreV1().Pods("default").Create(n.t.Context(), p, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.wait("the refusal of the pod", func(ctx context.Context) (bool, error) {
		if p, err := n.pod(ctx, "intruder"); err != nil || p.Status.Phase == corev1.PodRunning {
			n.t.Fatalf("the pod has the GPU of another one: %v, %v", p.Status, err)
		}
		all, err := n.Kube.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=intruder"})
		if err != nil {
			return false, err
		}
		for _, e := range all.Items {
			if e.Reason == "FailedPrepareDynamicResources" && strings.Contains(e.Message, "the claim is for another node") {
				return true, nil
			}
		}
		return false, fmt.Errorf("%d events", len(all.Items))
	})
	for _, name := range []string{"intruder", "holder", "neighbour"} {
		n.deletePod(name)
	}
	n.waitNoLease()
	n.noSpecifications()
}

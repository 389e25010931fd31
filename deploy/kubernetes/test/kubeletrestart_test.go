package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// kubeletRestarts: the kubelet is killed while the plugin prepares a claim. Its successor has the claim
// prepared, and the pod ends well; one that ran before does not notice. Of a pod that is deleted meanwhile
// nothing is left.
func (n *nodesEnv) kubeletRestarts() {
	node := n.nodes[0]
	n.t.Cleanup(func() { _ = n.plugins[0].Resume() }) // the next tests need it, whatever ended this one
	n.createPod(podSpec{name: "kept", command: loop, node: node.Name})
	first := n.waitRunning("kept")
	n.waitPrinted(first, computed, 1)
	for _, name := range []string{"waits-kubelet", "goes-kubelet"} {
		if err := n.plugins[0].Pause(); err != nil {
			n.t.Fatal(err)
		}
		n.createPod(podSpec{name: name, command: "exec program", once: true, node: node.Name})
		n.waitPreparing(name)
		node.KillKubelet()
		if name == "goes-kubelet" {
			n.deletePod(name)
		}
		if _, err := node.StartKubelet(); err != nil {
			n.t.Fatal(err)
		}
		if err := n.plugins[0].Resume(); err != nil {
			n.t.Fatal(err)
		}
		if name == "waits-kubelet" {
			n.waitDone(name)
			n.deletePod(name)
		}
		n.waitGone(name)
	}
	again, err := n.pod(n.t.Context(), "kept")
	if err != nil || again.UID != first.UID || again.Status.ContainerStatuses[0].RestartCount > 0 {
		n.t.Errorf("the pod that ran before: %v, %v", again, err)
	}
	n.waitPrinted(first, computed, n.printed(first, computed)+1)
	n.deletePod("kept")
	n.waitNoLease()
	n.noSpecifications()
}

// waitPreparing waits until the kubelet has the claim of a pod in its file of those that it prepares.
func (n *nodesEnv) waitPreparing(name string) {
	n.t.Helper()
	n.wait("the kubelet to prepare the claim of pod "+name, func(ctx context.Context) (bool, error) {
		pod, err := n.pod(ctx, name)
		if err != nil {
			return false, err
		}
		claim, err := n.claimOf(ctx, pod)
		if err != nil {
			return false, err
		}
		raw, err := os.ReadFile(n.nodes[0].Path("/var/lib/kubelet/dra_manager_state"))
		return strings.Contains(string(raw), string(claim.UID)), errors.Join(err, fmt.Errorf("claim %s is not in it", claim.UID))
	})
}

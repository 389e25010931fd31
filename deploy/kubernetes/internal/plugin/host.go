package plugin

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// HostOf returns a function for Plugin.Host that reads the label of a node. The label may change
// while the plugin runs, so the function asks the API server each time.
func HostOf(kube kubernetes.Interface, node string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		n, err := kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("read the label %s of node %s: %w", inventory.HostLabel, node, err)
		}
		host := n.Labels[inventory.HostLabel]
		if host == "" {
			return "", fmt.Errorf("node %s has no label %s; set it to the ID of its host in the pool", node, inventory.HostLabel)
		}
		return host, nil
	}
}

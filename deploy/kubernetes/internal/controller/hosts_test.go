package controller

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// Hosts that no node of the cluster names do not come into its resource slices, which take
// only values of labels.
func TestHostsOfTheCluster(t *testing.T) {
	c := &Controller{nodes: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Node{}, 0, cache.Indexers{})}
	for name, labels := range map[string]map[string]string{
		"worker-1": {inventory.HostLabel: "host-1"}, "worker-2": {inventory.HostLabel: "gone"}, "control": nil,
	} {
		if err := c.nodes.GetStore().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
			t.Fatal(err)
		}
	}
	got := hostsOf(c.nodeHosts(), map[string]*dxpuv1.Host{"host-1": {}, "host-2": {}, "host-": {}})
	if ids := slices.Collect(maps.Keys(got)); !slices.Equal(ids, []string{"host-1"}) {
		t.Errorf("hosts %q", ids)
	}
}

package plugin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

func TestHostOf(t *testing.T) {
	kube := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", Labels: map[string]string{inventory.HostLabel: "h1"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w2"}},
	)
	for _, test := range []struct{ node, host, err string }{
		{node: "w1", host: "h1"},
		{node: "w2", err: "node w2 has no label dxpu.dev.node-restriction.kubernetes.io/host"},
		{node: "w3", err: "not found"},
	} {
		host, err := HostOf(kube, test.node)(t.Context())
		if host != test.host || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: host %q, %v; want %q, %q", test.node, host, err, test.host, test.err)
		}
	}
}

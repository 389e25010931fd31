package test

import (
	"testing"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestManifests: the API server accepts every manifest, with strict validation of fields.
func TestManifests(t *testing.T) {
	p := kubetest.NeedPrograms(t, versions[0])
	c, err := kubetest.Start(t.Context(), p, t.TempDir())
	t.Cleanup(c.Stop)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rbac", "deviceclass", "controller", "plugin"} {
		if err := c.Apply(t.Context(), "manifests/"+name+".yaml"); err != nil {
			t.Error(err)
		}
	}
}

package test

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// examples: the API server takes what docs/kubernetes.md has, field by field and with its
// expressions. Parts of a claim are checked in a claim.
func (e *env) examples() {
	raw, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		e.t.Fatal(err)
	}
	n := 0
	for i, part := range strings.Split(string(raw), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
			o := map[string]any{}
			if d.Decode(&o) != nil || len(o) == 0 {
				break
			}
			if v, _ := o["apiVersion"].(string); strings.HasPrefix(v, "kubevirt.io/") {
				continue // not a resource of Kubernetes
			}
			if o["kind"] == nil {
				o = claimWith(o)
			}
			u := &unstructured.Unstructured{Object: o}
			u.SetNamespace("default")
			if err := e.DryRun(e.t.Context(), u); err != nil {
				e.t.Errorf("example %d: %v in:\n%s", i+1, err, text)
			}
			n++
		}
	}
	if n < 8 {
		e.t.Errorf("%d objects in the examples", n)
	}
}

// claimWith returns a claim with a part of the description of its devices.
func claimWith(part map[string]any) map[string]any {
	exactly := map[string]any{"deviceClassName": class}
	if s, ok := part["selectors"]; ok {
		exactly["selectors"] = s
		delete(part, "selectors")
	}
	if part["requests"] == nil {
		part["requests"] = []any{map[string]any{"name": "gpu", "exactly": exactly}}
	}
	return map[string]any{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
		"metadata": map[string]any{"name": "example"}, "spec": map[string]any{"devices": part},
	}
}

// TestClaimWith: a part of a claim stays in the claim.
func TestClaimWith(t *testing.T) {
	devices := claimWith(map[string]any{"config": "c", "selectors": "s"})["spec"].(map[string]any)["devices"].(map[string]any)
	r := devices["requests"].([]any)[0].(map[string]any)["exactly"].(map[string]any)
	if devices["config"] != "c" || r["selectors"] != "s" || r["deviceClassName"] != class {
		t.Errorf("%v", devices)
	}
}

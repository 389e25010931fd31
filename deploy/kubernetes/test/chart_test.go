package test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// render returns the objects of the chart, by kind and name, as "helm template" does.
func render(t *testing.T, values map[string]any) (map[string]*unstructured.Unstructured, error) {
	t.Helper()
	c, err := loader.Load("../chart")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "dxpu", Namespace: "dxpu-system", IsInstall: true}, nil)
	if err != nil {
		return nil, err // of the schema of the values
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	out := map[string]*unstructured.Unstructured{}
	for name, text := range files {
		if strings.HasSuffix(name, ".yaml") {
			addObjects(t, out, text)
		}
	}
	return out, nil
}

func addObjects(t *testing.T, out map[string]*unstructured.Unstructured, text string) {
	t.Helper()
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(o); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if len(o.Object) == 0 {
			continue
		}
		key := o.GetKind() + "/" + o.GetName()
		if out[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		out[key] = o
	}
}

// manifests returns the objects of the plain manifests.
func manifests(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob("../manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("manifests: %v, %v", files, err)
	}
	out := map[string]*unstructured.Unstructured{}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		addObjects(t, out, string(raw))
	}
	return out
}

var chartValues = map[string]any{"manager": "https://10.0.0.1:7470", "caHash": "sha256:" + strings.Repeat("0", 64), "image": "dxpu-dra:latest"}

// TestChart: the chart with its default values makes the objects of the manifests, and the
// settings that docs/kubernetes.md makes by hand.
func TestChart(t *testing.T) {
	got, err := render(t, chartValues)
	if err != nil {
		t.Fatal(err)
	}
	settings := got["ConfigMap/dxpu-pool"]
	if settings == nil {
		t.Fatal("the chart has no settings of the pool")
	}
	if m, _, _ := unstructured.NestedString(settings.Object, "data", "manager"); m != chartValues["manager"] {
		t.Errorf("manager %q", m)
	}
	delete(got, "ConfigMap/dxpu-pool")
	want := manifests(t)
	delete(want, "Namespace/dxpu-system") // helm install --create-namespace
	// TestChartSettings has these.
	unstructured.RemoveNestedField(got["Deployment/dxpu-dra-controller"].Object, "spec", "template", "metadata", "annotations")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the manifests and the chart differ (-manifests +chart):\n%s", diff)
	}
}

// TestChartSettings: other settings of the pool start the controller again, which reads them once.
func TestChartSettings(t *testing.T) {
	seen := map[string]bool{}
	for _, manager := range []string{"https://10.0.0.1:7470", "https://10.0.0.2:7470"} {
		got, err := render(t, chartutil.CoalesceTables(map[string]any{"manager": manager}, chartValues))
		if err != nil {
			t.Fatal(err)
		}
		of, _, err := unstructured.NestedString(got["Deployment/dxpu-dra-controller"].Object, "spec", "template", "metadata", "annotations", "dxpu.dev/pool")
		if err != nil || of == "" || seen[of] {
			t.Errorf("manager %s: annotation %q, %v", manager, of, err)
		}
		seen[of] = true
	}
}

// TestChartValues: each value has its effect, and wrong ones are refused with the remedy.
func TestChartValues(t *testing.T) {
	for name, tc := range map[string]struct {
		values map[string]any
		object string
		want   []string
		refuse string
	}{
		"no manager":                       {map[string]any{"manager": ""}, "", nil, "manager is missing"},
		"no image":                         {map[string]any{"image": ""}, "", nil, "image is missing"},
		"a secret":                         {map[string]any{"imagePullSecrets": []any{"registry"}}, "", nil, "imagePullSecrets"},
		"no hash":                          {map[string]any{"caHash": ""}, "", nil, "caHash is missing"},
		"wrong access":                     {map[string]any{"plugin": map[string]any{"access": "pci"}}, "", nil, "access"},
		"wrong hash":                       {map[string]any{"caHash": "sha256:12"}, "", nil, "caHash"},
		"an open token":                    {map[string]any{"manager": "http://m:7470", "caHash": ""}, "", nil, "controller.args={--allow-cleartext}"},
		"a token that is not to be open":   {map[string]any{"manager": "http://m:7470", "caHash": "", "controller": map[string]any{"args": []any{"--allow-cleartext=false"}}}, "", nil, "controller.args={--allow-cleartext}"},
		"two words":                        {map[string]any{"controller": map[string]any{"args": []any{"--tenant default"}}}, "", nil, "args"},
		"unknown":                          {map[string]any{"plugin": map[string]any{"acess": "vfio"}}, "", nil, "acess"},
		"one argument":                     {map[string]any{"controller": map[string]any{"args": "--whole-gpus"}}, "", nil, "controller"},
		"relative":                         {map[string]any{"plugin": map[string]any{"socketDir": "run/dxpu"}}, "", nil, "socketDir"},
		"a controller that does not start": {map[string]any{}, "Deployment/dxpu-dra-controller", []string{`"readinessProbe":{"httpGet":{"path":"/healthz","port":"metrics"}}`}, ""},
		"no TLS": {
			map[string]any{"manager": "http://m:7470", "caHash": "", "controller": map[string]any{"args": []any{"--allow-cleartext"}}},
			"ConfigMap/dxpu-pool",
			[]string{`"manager":"http://m:7470"`},
			"",
		},
		"no TLS, by a value": {
			map[string]any{"manager": "http://m:7470", "caHash": "", "controller": map[string]any{"args": []any{"--allow-cleartext=true"}}},
			"Deployment/dxpu-dra-controller",
			[]string{`"--allow-cleartext=true"`},
			"",
		},
		"virtual machines": {
			map[string]any{"plugin": map[string]any{"access": "vfio", "args": []any{"-v=2"}, "openclDriver": "/opt/d/libdxpu-opencl.so", "tolerations": []any{}}},
			"DaemonSet/dxpu-dra-plugin",
			[]string{`"--vfio"`, `"-v=2"`, `"--opencl-driver=/opt/d/libdxpu-opencl.so"`, `"tolerations":[]`, `"path":"/sys"`, `"path":"/dev"`},
			"",
		},
		"sockets elsewhere": {
			map[string]any{"plugin": map[string]any{"socketDir": "/srv/s", "openclDriver": "/opt/d/libdxpu-opencl.so"}},
			"DaemonSet/dxpu-dra-plugin",
			[]string{`"--socket-dir=/srv/s"`, `"path":"/srv/s"`, `"--opencl-driver=/opt/d/libdxpu-opencl.so"`, `"path":"/opt/d"`},
			"",
		},
		"GPUs of the machines": {
			map[string]any{"plugin": map[string]any{"shareDir": "/run/dxpu/share", "hookDir": "/usr/lib/dxpu"}},
			"DaemonSet/dxpu-dra-plugin",
			[]string{`"--share-dir=/run/dxpu/share"`, `"--hook-dir=/usr/lib/dxpu"`, `"path":"/run/dxpu/share"`, `"mountPath":"/usr/lib/dxpu"`, `"--socket-dir=/run/dxpu"`},
			"",
		},
		"shares without the library": {map[string]any{"plugin": map[string]any{"shareDir": "/run/dxpu/share"}}, "", nil, "plugin.shareDir and plugin.hookDir: want both"},
		"controller": {
			map[string]any{"image": "registry/x:1", "imagePullSecrets": []any{map[string]any{"name": "registry"}}, "tokenSecret": "t", "controller": map[string]any{"replicas": 1, "args": []any{"--tenant=default"}}},
			"Deployment/dxpu-dra-controller",
			[]string{`"replicas":1`, `"--tenant=default"`, `"registry/x:1"`, `"imagePullSecrets":[{"name":"registry"}]`, `"secretName":"t"`},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, chartutil.CoalesceTables(tc.values, chartValues))
			if tc.refuse != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refuse) {
					t.Errorf("error %v, want %q", err, tc.refuse)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			raw, err := got[tc.object].MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range tc.want {
				if !strings.Contains(string(raw), w) {
					t.Errorf("%s lacks %s:\n%s", tc.object, w, raw)
				}
			}
		})
	}
}

// TestManifests: the API server accepts every object of the manifests and of the chart, with
// strict validation of fields.
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
	for _, access := range []string{"sockets", "vfio"} {
		objects, err := render(t, chartutil.CoalesceTables(map[string]any{
			// Both libraries are in one directory, which can be mounted once.
			"plugin": map[string]any{"access": access, "openclDriver": "/usr/lib/dxpu/libdxpu-opencl.so", "shareDir": "/run/dxpu/share", "hookDir": "/usr/lib/dxpu/"},
		}, chartValues))
		if err != nil {
			t.Fatal(err)
		}
		for key, o := range objects {
			if err := c.DryRun(t.Context(), o); err != nil {
				t.Errorf("%s, %s: %v", access, key, err)
			}
		}
	}
}

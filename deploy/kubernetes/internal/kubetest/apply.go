package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// Apply creates the objects of a file of manifests of this module.
func (c *Cluster) Apply(ctx context.Context, file string) error {
	f, err := os.Open(filepath.Join(moduleDir(), file))
	if err != nil {
		return err
	}
	defer f.Close()
	for d := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		api, err := c.resource(o)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := api.Create(ctx, o, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			return fmt.Errorf("%s: %s %s: %w", file, o.GetKind(), o.GetName(), err)
		}
	}
}

// DryRun lets the API server check an object, which may exist, as "helm install" would
// write it.
func (c *Cluster) DryRun(ctx context.Context, o *unstructured.Unstructured) error {
	return c.install(ctx, o, metav1.DryRunAll)
}

// Install writes an object as "helm install" does.
func (c *Cluster) Install(ctx context.Context, o *unstructured.Unstructured) error {
	return c.install(ctx, o)
}

func (c *Cluster) install(ctx context.Context, o *unstructured.Unstructured, dryRun ...string) error {
	api, err := c.resource(o)
	if err != nil {
		return err
	}
	raw, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	_, err = api.Patch(ctx, o.GetName(), types.ApplyPatchType, raw, metav1.PatchOptions{
		DryRun: dryRun, FieldManager: "helm", FieldValidation: "Strict", Force: &force,
	})
	return err
}

// resource returns the API for an object.
func (c *Cluster) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	api, err := dynamic.NewForConfig(c.Config("admin"))
	if err != nil {
		return nil, err
	}
	if c.mapper == nil {
		groups, err := restmapper.GetAPIGroupResources(c.Kube.Discovery())
		if err != nil {
			return nil, err
		}
		c.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	}
	k := o.GroupVersionKind()
	m, err := c.mapper.RESTMapping(k.GroupKind(), k.Version)
	if err != nil {
		return nil, err
	}
	return api.Resource(m.Resource).Namespace(o.GetNamespace()), nil
}

// ServiceAccount writes a file with the access of a service account of the driver, so that
// a process has the rights of the manifests and no others.
func (c *Cluster) ServiceAccount(ctx context.Context, namespace, name string) (kubeconfig string, err error) {
	day := int64(24 * 3600)
	t, err := c.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	c.tokens[name] = t.Status.Token
	return c.Kubeconfig(name)
}

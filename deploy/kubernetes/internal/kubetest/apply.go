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
	api, err := dynamic.NewForConfig(c.Config("admin"))
	if err != nil {
		return err
	}
	groups, err := restmapper.GetAPIGroupResources(c.Kube.Discovery())
	if err != nil {
		return err
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for d := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		k := o.GroupVersionKind()
		m, err := mapper.RESTMapping(k.GroupKind(), k.Version)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := api.Resource(m.Resource).Namespace(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			return fmt.Errorf("%s: %s %s: %w", file, k.Kind, o.GetName(), err)
		}
	}
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

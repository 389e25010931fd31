package test

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestInstalled installs the driver as docs/kubernetes.md does: the image of a release is imported on the
// node, the chart makes all objects, and the pods of the driver serve a claim with the rights and the
// mounts that the chart gives them.
func TestInstalled(t *testing.T) {
	t.Parallel()
	kubetest.NeedNode(t)
	image, driver := buildPrograms(t, versions[0])
	n := &nodesEnv{env: newBareEnv(t, versions[0], kubetest.PoolSpec{Boxes: 1, GPUs: 1, Hosts: 1, Slots: 1, OpenCL: true}), driver: driver}
	n.startNode(image)
	t.Cleanup(func() {
		if t.Failed() {
			n.logDriver()
		}
	})
	archive := filepath.Join(t.TempDir(), "dxpu-dra-1.0.0-oci.tar")
	n.must(kubetest.BuildRelease(archive, "1.0.0", programs.driver))
	n.must(n.nodes[0].Import(t.Context(), archive, "--base-name", "registry.example.com/dxpu-dra"))
	n.install("registry.example.com/dxpu-dra:1.0.0")
	n.waitReady()
	n.waitDevices(1)
	n.computes()
}

// install installs the chart with an image.
func (n *nodesEnv) install(image string) {
	n.t.Helper()
	ctx := n.t.Context()
	manager, err := url.Parse(n.pool.URL)
	n.must(err)
	inPods := kubetest.ServiceAddress(manager.Port())
	n.must(n.nodes[0].Forward(inPods, manager.Host))
	token, err := n.pool.Command(ctx, "token", "create", "--role", "operator", "--description", "kubernetes", "--manager", n.pool.URL)
	if err != nil {
		n.t.Fatalf("%v: %s", err, token)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "dxpu-system", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	_, err = n.Kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	n.must(err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "dxpu-token"}, Data: map[string][]byte{"token": token}}
	_, err = n.Kube.CoreV1().Secrets("dxpu-system").Create(ctx, secret, metav1.CreateOptions{})
	n.must(err)
	objects, err := render(n.t, map[string]any{
		"manager": "http://" + inPods, "image": image,
		"controller": map[string]any{"args": []any{"--allow-cleartext", "--tenant=default"}},
		"plugin":     map[string]any{"socketDir": n.pool.SocketDir(0), "openclDriver": n.driver},
	})
	n.must(err)
	for _, o := range objects {
		n.must(n.Install(ctx, o))
	}
}

// waitReady waits until both replicas of the controller and the plugin answer their probes.
func (n *nodesEnv) waitReady() {
	n.t.Helper()
	n.wait("the pods of the driver to be ready", func(ctx context.Context) (bool, error) {
		d, err := n.Kube.AppsV1().Deployments("dxpu-system").Get(ctx, "dxpu-dra-controller", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		s, err := n.Kube.AppsV1().DaemonSets("dxpu-system").Get(ctx, "dxpu-dra-plugin", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return d.Status.ReadyReplicas == 2 && s.Status.NumberReady == 1, fmt.Errorf("%d controllers and %d plugins are ready", d.Status.ReadyReplicas, s.Status.NumberReady)
	})
}

// logDriver logs what the pods of the driver say.
func (n *nodesEnv) logDriver() {
	pods, err := n.Kube.CoreV1().Pods("dxpu-system").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		n.t.Log(err)
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		for _, c := range p.Spec.Containers {
			text, err := n.nodes[0].Log(p.Namespace, p.Name, string(p.UID), c.Name)
			lines := strings.Split(text, "\n")
			n.t.Logf("%s: %v, %v\n%s", p.Name, p.Status.ContainerStatuses, err, strings.Join(lines[max(0, len(lines)-20):], "\n"))
		}
	}
}

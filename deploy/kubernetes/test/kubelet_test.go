package test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// nodesEnv is an environment whose nodes have real kubelets.
type nodesEnv struct {
	*env
	nodes   []*kubetest.Node
	guest   *kubetest.GuestNode // in the place of nodes and plugins
	plugins []*kubetest.Process
	driver  string // OpenCL driver
	access  string // of the plugin, a file
}

// TestKubelet runs pods on nodes with a real kubelet and containerd: an OpenCL program that
// knows nothing of the pool computes on the device of a box.
func TestKubelet(t *testing.T) {
	t.Parallel()
	kubetest.NeedNode(t)
	n := newNodesEnv(t, versions[0])
	t.Run("a program computes", func(t *testing.T) { n.on(t).computes() })
	t.Run("the plugin restarts", func(t *testing.T) { n.on(t).pluginRestarts() })
	t.Run("the kubelet restarts", func(t *testing.T) { n.on(t).kubeletRestarts() })
	t.Run("monitoring", func(t *testing.T) { n.on(t).monitors() })
	t.Run("a node that is a VM", func(t *testing.T) { n.on(t).virtualMachine() })
	t.Run("a claim of another node", func(t *testing.T) { n.on(t).anotherNode() })
	t.Run("a third of a GPU", func(t *testing.T) { n.on(t).partOfGPU() })
	t.Run("GPUs of the node", func(t *testing.T) { n.on(t).localGPUs() })
	t.Run("an error of the GPU", func(t *testing.T) { n.on(t).gpuError() })
	t.Run("the GPU fails", func(t *testing.T) { n.on(t).gpuFails() })
	t.Run("the node dies", func(t *testing.T) { n.on(t).nodeDies() })
}

// TestKubeletVersions runs the program with the other versions of Kubernetes.
func TestKubeletVersions(t *testing.T) {
	t.Parallel()
	kubetest.NeedNode(t)
	for _, v := range versions[1:] {
		t.Run(v, func(t *testing.T) { newNodesEnv(t, v).computes() })
	}
}

func (n *nodesEnv) on(t *testing.T) *nodesEnv {
	c := *n
	c.env = n.env.on(t)
	return &c
}

// newNodesEnv starts two nodes, two boxes with OpenCL and a host for each node.
func newNodesEnv(t *testing.T, version string) *nodesEnv {
	t.Helper()
	image, driver := buildPrograms(t, version)
	n := &nodesEnv{env: newEnv(t, version, kubetest.PoolSpec{Boxes: 2, GPUs: 1, Hosts: 2, Slots: 2, OpenCL: true}), driver: driver}
	var err error
	if n.access, err = n.ServiceAccount(t.Context(), "dxpu-system", "dxpu-dra-plugin"); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		n.startNode(image)
		n.startPlugin(i)
	}
	return n
}

// buildPrograms builds an image with the programs of the pods, and the OpenCL driver.
func buildPrograms(t *testing.T, version string) (image, driver string) {
	t.Helper()
	kubetest.NeedPrograms(t, version)
	dir := t.TempDir()
	program, driver := kubetest.BuildOpenCL(t, dir)
	image = filepath.Join(dir, "image.tar")
	if err := kubetest.BuildImage(image, map[string]string{"/bin/program": program, "/bin/dxpu": programs.dxpu}, driver); err != nil {
		t.Fatal(err)
	}
	return image, driver
}

// startNode starts the next node, which has the next host of the pool.
func (n *nodesEnv) startNode(image string) {
	n.t.Helper()
	i := len(n.nodes)
	node, err := n.StartNode(n.t.Context(), fmt.Sprintf("kubelet-%d", i+1), image, map[string]string{inventory.HostLabel: hostID(i, false)})
	t := n.t
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the kubelet of %s says:\n%s", node.Name, node.Tail("kubelet", 10))
		}
		if err := node.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	n.nodes, n.plugins = append(n.nodes, node), append(n.plugins, nil)
}

// startPlugin starts the plugin on a node that has the sockets of its host, with the paths of the manifests.
func (n *nodesEnv) startPlugin(i int, flags ...string) {
	n.t.Helper()
	n.startPluginWith(i, append([]string{"--socket-dir", n.pool.SocketDir(i), "--opencl-driver", n.driver}, flags...)...)
}

// startPluginWith starts the plugin on a node with other ways to its GPUs.
func (n *nodesEnv) startPluginWith(i int, flags ...string) {
	n.t.Helper()
	var err error
	n.plugins[i], err = n.nodes[i].Start("plugin", programs.driver, append([]string{
		"plugin", "--node-name", n.nodes[i].Name, "--kubeconfig", n.access, "-v", "2",
	}, flags...)...)
	if err != nil {
		n.t.Fatal(err)
	}
}

// log returns what the container of a pod has printed.
func (n *nodesEnv) log(p *corev1.Pod) (string, error) {
	if n.guest != nil {
		return n.guest.Log(n.t.Context(), p.Namespace, p.Name, string(p.UID), "c")
	}
	for _, node := range n.nodes {
		if node.Name == p.Spec.NodeName {
			return node.Log(p.Namespace, p.Name, string(p.UID), "c")
		}
	}
	return "", fmt.Errorf("pod %s is on no node", p.Name)
}

// waitDone waits until a pod has ended well.
func (n *nodesEnv) waitDone(name string) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	n.wait("pod "+name+" to end", func(ctx context.Context) (bool, error) {
		var err error
		if pod, err = n.pod(ctx, name); err != nil {
			return false, err
		}
		if pod.Status.Phase == corev1.PodFailed {
			text, _ := n.log(pod)
			n.t.Fatalf("pod %s failed: %v; it printed:\n%s", name, pod.Status.ContainerStatuses, text)
		}
		return pod.Status.Phase == corev1.PodSucceeded, fmt.Errorf("phase %s, %v", pod.Status.Phase, pod.Status.ContainerStatuses)
	})
	return pod
}

// computed is a line of the program's output that only the right results give.
const computed = "add: 0 errors"

// computes: a pod runs to its end, with the device of a box, and gives it back.
func (n *nodesEnv) computes() {
	s := podSpec{name: "once", command: "echo sockets $DXPU_SOCKETS; exec program", once: true}
	began := time.Now()
	n.createPod(s)
	pod := n.waitDone("once")
	n.t.Logf("from the creation of the pod to its end: %v", time.Since(began).Round(time.Millisecond))
	text, err := n.log(pod)
	if err != nil || !strings.Contains(text, computed) || !strings.Contains(text, "sockets /run/dxpu\n") {
		n.t.Errorf("the program printed, %v:\n%s", err, text)
	}
	n.deletePod("once")
	n.waitNoLease()
	n.noSpecifications()
}

// noSpecifications waits until no node has a CDI specification.
func (n *nodesEnv) noSpecifications() {
	n.t.Helper()
	n.wait("the CDI specifications to go", func(context.Context) (bool, error) {
		for _, node := range n.nodes {
			left, err := node.Files("/run/cdi")
			if err != nil || len(left) > 0 {
				return false, fmt.Errorf("%s has %v, %w", node.Name, left, err)
			}
		}
		return true, nil
	})
}

// pluginRestarts: a pod that starts while the plugin is away waits for it, and one that
// runs does not notice.
func (n *nodesEnv) pluginRestarts() {
	n.createPod(podSpec{name: "runs", command: loop, node: n.nodes[0].Name})
	first := n.waitRunning("runs")
	n.waitPrinted(first, computed, 1)
	n.waitHealth("runs", corev1.ResourceHealthStatusHealthy)
	n.plugins[0].Kill()
	n.waitHealth("runs", corev1.ResourceHealthStatusUnknown)
	n.createPod(podSpec{name: "waits", command: "exec program", once: true, node: n.nodes[0].Name})
	n.waitEvent("waits", "FailedPrepareDynamicResources", "")
	n.startPlugin(0)
	n.waitDone("waits")
	n.waitHealth("runs", corev1.ResourceHealthStatusHealthy)
	again, err := n.pod(n.t.Context(), "runs")
	if err != nil || again.UID != first.UID || again.Status.ContainerStatuses[0].RestartCount > 0 {
		n.t.Errorf("the pod that ran before: %v, %v", again, err)
	}
	n.waitPrinted(first, computed, n.printed(first, computed)+1)
	n.deletePod("runs")
	n.deletePod("waits")
	n.waitNoLease()
	n.noSpecifications()
}

// waitHealth waits until the status of a pod has a health of its GPU.
func (n *nodesEnv) waitHealth(name string, want corev1.ResourceHealthStatus) {
	n.t.Helper()
	n.wait("the health of the GPU of pod "+name, func(ctx context.Context) (bool, error) {
		pod, err := n.pod(ctx, name)
		if err != nil {
			return false, err
		}
		for _, r := range pod.Status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, d := range r.Resources {
				if d.Health == want {
					return true, nil
				}
			}
		}
		return false, fmt.Errorf("%v", pod.Status.ContainerStatuses)
	})
}

// loop repeats the program until it fails.
const loop = "while program; do :; done"

// printed returns how often a pod has printed a text.
func (n *nodesEnv) printed(p *corev1.Pod, text string) int {
	all, err := n.log(p)
	if err != nil {
		return 0
	}
	return strings.Count(all, text)
}

// waitPrinted waits until a pod has printed a text so often.
func (n *nodesEnv) waitPrinted(p *corev1.Pod, text string, times int) {
	n.t.Helper()
	n.wait(fmt.Sprintf("pod %s to print %q", p.Name, text), func(context.Context) (bool, error) {
		r := n.printed(p, text)
		return r >= times, fmt.Errorf("%d of %d times", r, times)
	})
}

// deploy creates a deployment of one pod: each successor has a claim of its own.
func (n *nodesEnv) deploy(s podSpec) {
	n.t.Helper()
	one, name := int32(1), s.name
	labels := map[string]string{"app": name}
	spec := n.podSpec(s)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		now := int64(0)
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &now})
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
	if _, err := n.Kube.AppsV1().Deployments("default").Create(n.t.Context(), d, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// undeploy deletes a deployment and waits until its GPU is free.
func (n *nodesEnv) undeploy(name string) {
	n.t.Helper()
	if err := n.Kube.AppsV1().Deployments("default").Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.waitNoLease()
}

// waitComputing waits for a pod of a deployment, other than a given one, that has printed
// that its results are right.
func (n *nodesEnv) waitComputing(name, other, right string) (pod *corev1.Pod) {
	n.t.Helper()
	n.wait("a pod of "+name+" that computes", func(ctx context.Context) (bool, error) {
		list, err := n.Kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if p := &list.Items[i]; string(p.UID) != other && p.DeletionTimestamp == nil && n.printed(p, right) > 0 {
				pod = p
				return true, nil
			}
		}
		return false, fmt.Errorf("%d pods", len(list.Items))
	})
	return pod
}

// gpuFails: the box of a pod's GPU dies; the successor of the pod computes on the spare.
func (n *nodesEnv) gpuFails() {
	n.deploy(podSpec{name: "survivor", command: loop, hostNetwork: n.guest != nil})
	first := n.waitComputing("survivor", "", computed)
	l := n.onlyLease()
	box := 0
	if l.Bindings[0].BoxId == "box-2" {
		box = 1
	}
	began := time.Now()
	n.pool.KillBox(box)
	second := n.waitComputing("survivor", string(first.UID), computed)
	n.t.Logf("from the death of the box to results of the next pod: %v", time.Since(began).Round(100*time.Millisecond))
	if now := n.onlyLease(); now.Bindings[0].BoxId == l.Bindings[0].BoxId {
		n.t.Errorf("pod %s computes on the box that died", second.Name)
	}
	if err := n.pool.StartBox(box); err != nil {
		n.t.Fatal(err)
	}
	n.undeploy("survivor")
}

// nodeDies: the node of a pod goes away with all its processes; when an administrator says so,
// the lease is released and the pod computes on the other node.
func (n *nodesEnv) nodeDies() {
	ctx := n.t.Context()
	n.deploy(podSpec{name: "mover", command: loop})
	first := n.waitComputing("mover", "", computed)
	l := n.onlyLease()
	at := 0
	if first.Spec.NodeName == n.nodes[1].Name {
		at = 1
	}
	began := time.Now()
	n.nodes[at].Kill()
	n.wait("the node to be unreachable", func(ctx context.Context) (bool, error) {
		node, err := n.Kube.CoreV1().Nodes().Get(ctx, n.nodes[at].Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, t := range node.Spec.Taints {
			if t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute {
				return true, nil
			}
		}
		return false, fmt.Errorf("taints %v", node.Spec.Taints)
	})
	n.t.Logf("from the death of the node to its taint: %v", time.Since(began).Round(100*time.Millisecond))
	out := []byte(`[{"op":"add","path":"/spec/taints/-","value":{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}}]`)
	if _, err := n.Kube.CoreV1().Nodes().Patch(ctx, n.nodes[at].Name, types.JSONPatchType, out, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
	second := n.waitComputing("mover", string(first.UID), computed)
	n.t.Logf("from the death of the node to results of the next pod: %v", time.Since(began).Round(100*time.Millisecond))
	if second.Spec.NodeName != n.nodes[1-at].Name {
		n.t.Errorf("the next pod is on %s", second.Spec.NodeName)
	}
	n.wait("the first lease to be released", func(ctx context.Context) (bool, error) {
		all, err := n.leases(ctx)
		return len(all) == 1 && all[0].Id != l.Id, err
	})
	n.wait("the first pod to be gone", func(ctx context.Context) (bool, error) {
		_, err := n.pod(ctx, first.Name)
		return apierrors.IsNotFound(err), err
	})
	n.undeploy("mover")
}

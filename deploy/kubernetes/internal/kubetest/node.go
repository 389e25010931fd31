package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is a node with a real kubelet and containerd. It has namespaces of its own for
// processes, mounts and the network, so the end of its first process ends all others, and
// with them go mounts and interfaces. Its directories /dev, /var and /run are its own.
type Node struct {
	Name string
	Dir  string // on this machine; the node's /var is below it

	cluster *Cluster
	first   *Process // unshare; its child is process 1 of the node
	pid     int      // of process 1, on this machine
	parts   map[string]*Process
	forward []*forwarder
	groups  []string // control groups
}

// NeedNode skips a test where the machine cannot run a node.
func NeedNode(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a kubelet needs root")
	}
	for _, program := range []string{"unshare", "nsenter", "ip", "runc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing; remedy: scripts/install-tools.sh", program)
		}
	}
	if out, err := exec.Command("unshare", "--mount", "--pid", "--net", "--fork", "true").CombinedOutput(); err != nil {
		t.Skipf("this machine allows no namespaces: %v: %s", err, out)
	}
}

// firstProcess makes the node's directories and network, then waits for the children that
// it inherits. Its argument is the directory of the node.
const firstProcess = `set -e
mkdir -p "$1/var/lib" "$1/var/log" "$1/var/tmp" "$1/dev"
ln -sfn /run "$1/var/run"
mount --bind "$1/var" /var
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
mkdir "$1/dev/shm" "$1/dev/pts"
for d in null zero full random urandom tty kmsg fuse; do [ ! -e "/dev/$d" ] || cp -a "/dev/$d" "$1/dev/$d"; done
ln -s pts/ptmx "$1/dev/ptmx"
ln -s /proc/self/fd "$1/dev/fd"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts"
mount --rbind "$1/dev" /dev
ip link set lo up
ip addr add 10.0.0.1/32 dev lo
ip link add eth0 type veth peer name uplink
ip addr add 192.0.2.10/24 dev eth0
ip link set uplink up
ip link set eth0 up
ip route add default dev eth0
: >"$1/ready"
while :; do sleep 3600 & wait $!; done
`

const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins.'io.containerd.cri.v1.images']
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
`

const cniConfig = `{"cniVersion": "1.0.0", "name": "test", "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// kubeletConfig is for a machine with version 1 of control groups, without systemd, whose
// score for the OOM killer cannot be lowered.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%s
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
enforceNodeAllocatable: []
oomScoreAdj: 0
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
evictionHard: {memory.available: 1Mi, nodefs.available: 1%%, imagefs.available: 1%%}
`

// StartNode starts a node and returns when Kubernetes calls it ready. Stop ends it, also
// after an error.
func (c *Cluster) StartNode(ctx context.Context, name, image string, labels map[string]string) (*Node, error) {
	n := &Node{Name: name, Dir: c.path(name), cluster: c, parts: map[string]*Process{}}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("node %s did not start within %v", name, startTimeout))
	defer cancel()
	if err := n.start(ctx, image, labels); err != nil {
		return n, fmt.Errorf("node %s: %w", name, err)
	}
	return n, nil
}

func (n *Node) start(ctx context.Context, image string, labels map[string]string) (err error) {
	if err := os.MkdirAll(filepath.Join(n.Dir, "cni"), 0o755); err != nil {
		return err
	}
	if n.first, err = StartProcess(n.Dir, "node", "unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--propagation", "private",
		"--mount-proc", "/bin/sh", "-c", firstProcess, "sh", n.Dir); err != nil {
		return err
	}
	if err := n.cluster.await(ctx, "the namespaces", func(context.Context) bool {
		_, err := os.Stat(filepath.Join(n.Dir, "ready"))
		return err == nil || n.first.ended() != nil
	}); err != nil {
		return err
	}
	if err := n.first.ended(); err != nil {
		return err
	}
	if n.pid, err = onlyChild(n.first.cmd.Process.Pid); err != nil {
		return err
	}
	server := strings.TrimPrefix(n.cluster.url, "https://")
	for _, at := range []string{server, serviceAddress + ":443"} {
		if err := n.Forward(at, server); err != nil {
			return err
		}
	}
	if err := n.startContainerd(ctx, image); err != nil {
		return err
	}
	return n.startKubelet(ctx, labels)
}

// serviceAddress is that of the API server for pods: the first of its range of services.
const serviceAddress = "10.0.0.1"

// Forward carries the connections to an address in the network of the node to one of this machine. Pods
// reach the address if it is not a loopback address.
func (n *Node) Forward(address, to string) error {
	f, err := newForwarder(n.pid, address, to)
	if err == nil {
		n.forward = append(n.forward, f)
	}
	return err
}

// ServiceAddress returns an address of the node that pods reach, with a port.
func ServiceAddress(port string) string { return net.JoinHostPort(serviceAddress, port) }

// onlyChild returns the process that unshare forked.
func onlyChild(pid int) (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// Start starts a program on the node.
func (n *Node) Start(name, program string, args ...string) (*Process, error) {
	enter := []string{"-t", fmt.Sprint(n.pid), "--mount", "--pid", "--net", "--", program}
	p, err := startProcess(n.Dir, name, []string{"PATH=" + n.cluster.Programs.Node + ":" + os.Getenv("PATH")}, "nsenter", append(enter, args...)...)
	if err == nil {
		n.parts[name] = p
	}
	return p, err
}

func (n *Node) write(name, text string) error {
	return os.WriteFile(filepath.Join(n.Dir, name), []byte(text), 0o600)
}

func (n *Node) startContainerd(ctx context.Context, image string) error {
	if err := errors.Join(n.write("cni/10-bridge.conflist", cniConfig),
		n.write("containerd.toml", fmt.Sprintf(containerdConfig, Image, n.cluster.Programs.Node, filepath.Join(n.Dir, "cni")))); err != nil {
		return err
	}
	daemon, err := n.Start("containerd", n.cluster.Programs.node("containerd"), "--config", filepath.Join(n.Dir, "containerd.toml"))
	if err != nil {
		return err
	}
	if err := n.cluster.await(ctx, "containerd", func(ctx context.Context) bool { return n.ctr(ctx, "version") == nil || daemon.ended() != nil }); err != nil {
		return err
	}
	if err := daemon.ended(); err != nil {
		return err
	}
	return n.Import(ctx, image)
}

// Import gives containerd the images of an archive. Flags are those of "ctr images import".
func (n *Node) Import(ctx context.Context, archive string, flags ...string) error {
	return n.ctr(ctx, slices.Concat([]string{"images", "import"}, flags, []string{archive})...)
}

// ctr runs a command of containerd's client.
func (n *Node) ctr(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "nsenter", append([]string{
		"-t", fmt.Sprint(n.pid), "--mount", "--pid", "--net", "--",
		n.cluster.Programs.node("ctr"), "-a", "/run/containerd/containerd.sock", "-n", "k8s.io",
	}, args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ctr %v: %w: %s", args, err, out)
	}
	return nil
}

func (n *Node) startKubelet(ctx context.Context, labels map[string]string) error {
	group := groupName(os.Getpid(), filepath.Base(n.cluster.Dir)+"-"+n.Name)
	if err := n.makeGroups(group); err != nil {
		return err
	}
	if err := n.write("kubelet.yaml", fmt.Sprintf(kubeletConfig, group)); err != nil {
		return err
	}
	kubelet, err := n.StartKubelet()
	if err != nil {
		return err
	}
	// A kubelet may not set labels that say what its node may have.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	labelled := false
	err = n.cluster.await(ctx, "node "+n.Name+" to be ready", func(ctx context.Context) bool {
		if !labelled {
			_, err := n.cluster.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			labelled = err == nil // not before the kubelet has registered the node
		}
		return kubelet.ended() != nil || labelled && n.cluster.ready(ctx, n.Name)
	})
	return errors.Join(err, kubelet.ended())
}

// StartKubelet starts the kubelet of the node, also after KillKubelet.
func (n *Node) StartKubelet() (*Process, error) {
	kubeconfig, err := n.cluster.Kubeconfig("system:node:" + n.Name)
	if err != nil {
		return nil, err
	}
	return n.Start("kubelet", n.cluster.Programs.kubernetes("kubelet"), "--config", filepath.Join(n.Dir, "kubelet.yaml"),
		"--kubeconfig", kubeconfig, "--hostname-override", n.Name, "--node-ip", "192.0.2.10")
}

// KillKubelet ends the kubelet at once. The containers of the node go on.
func (n *Node) KillKubelet() { n.parts["kubelet"].Kill() }

// ready reports whether Kubernetes calls a node ready.
func (c *Cluster) ready(ctx context.Context, name string) bool {
	node, err := c.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Log returns what a container of a pod has printed.
func (n *Node) Log(namespace, pod, uid, container string) (string, error) {
	files, err := filepath.Glob(filepath.Join(n.Dir, "var/log/pods", namespace+"_"+pod+"_"+uid, container, "*.log"))
	if err != nil || len(files) == 0 {
		return "", errors.Join(err, fmt.Errorf("pod %s has no log", pod))
	}
	var text strings.Builder
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		text.WriteString(textOfLog(string(raw)))
	}
	return text.String(), nil
}

// textOfLog returns what a container has printed, from the file of its runtime: each line has a
// time, a stream and a mark before it.
func textOfLog(raw string) string {
	var text strings.Builder
	for line := range strings.Lines(raw) {
		if parts := strings.SplitN(line, " ", 4); len(parts) == 4 {
			text.WriteString(parts[3])
		}
	}
	return text.String()
}

// Path returns a path of the node as a path of this machine.
func (n *Node) Path(file string) string { return fmt.Sprintf("/proc/%d/root%s", n.pid, file) }

// Files returns the names in a directory of the node; a directory that is missing is empty.
func (n *Node) Files(dir string) ([]string, error) {
	entries, err := os.ReadDir(n.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out, err
}

// Tail returns the last lines of the logs of a part, such as "kubelet".
func (n *Node) Tail(part string, lines int) string {
	if p := n.parts[part]; p != nil {
		return p.Tail(lines)
	}
	return ""
}

// Kill ends everything on the node at once, as when its power fails.
func (n *Node) Kill() {
	if n.first == nil {
		return
	}
	n.first.Kill() // process 1 dies with it, and the kernel ends all others
	for _, p := range n.parts {
		p.Kill()
	}
	for _, f := range n.forward {
		f.Close()
	}
	n.forward = nil
}

// Stop ends the node and removes its control groups.
func (n *Node) Stop() error {
	n.Kill()
	var errs []error
	for _, dir := range n.groups {
		errs = append(errs, removeGroup(dir))
	}
	n.groups = nil
	return errors.Join(errs...)
}

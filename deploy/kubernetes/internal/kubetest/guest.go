package kubetest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// GuestNode is a node that is a virtual machine: kubelet, containerd and plugin run in the guest,
// into which a host proxy plugs GPUs.
type GuestNode struct {
	Name string
	*qemu.VM
}

// GuestSpec says what a node in a virtual machine has.
type GuestSpec struct {
	Name, Dir string
	Install   qemu.Install
	Slots     int
	QMP       string // socket for the host proxy
	Image     string // archive of the images of its pods
	Plugin    string // program of the driver
	Driver    string // OpenCL driver, which the plugin gives to containers
	Access    string // kubeconfig of the plugin
	Labels    map[string]string
}

// Places in the guest.
const (
	guestDriver = "/opt/dxpu/libdxpu-opencl.so"
	guestFiles  = "/etc/node/"
	// guestNetwork is QEMU's user network: this machine's loopback address is guestGateway.
	guestGateway = "10.0.2.2"
	guestAddress = "10.0.2.15"
)

// guestMemory holds the programs twice while the guest boots, and what containerd unpacks.
const guestMemory = 4 << 30

// guestSetup makes a node of the guest. Its root is the initramfs, whose size no program can ask
// for and which cannot be pivoted: kubelet and containerd work below /var.
const guestSetup = `set -e
mkdir -p /var /run /etc/cni /opt/cni
mount -t tmpfs -o mode=755 tmpfs /var
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /var/lib/kubelet /var/log /var/tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
mount --make-rshared /
modprobe virtio_net
ip link set eth0 up
ip addr add ` + guestAddress + `/24 dev eth0
ip route add default via ` + guestGateway + `
: >/etc/resolv.conf
echo "127.0.0.1 localhost" >/etc/hosts
tr -d - </proc/sys/kernel/random/uuid >/etc/machine-id
containerd --config ` + guestFiles + `containerd.toml >/var/log/containerd.log 2>&1 &
until ctr -a /run/containerd/containerd.sock version >/dev/null 2>&1; do kill -0 $!; usleep 200000; done
ctr -a /run/containerd/containerd.sock -n k8s.io images import --local --snapshotter native ` + guestFiles + `image.tar
kubelet --config ` + guestFiles + `kubelet.yaml --kubeconfig ` + guestFiles + `kubelet.kubeconfig --node-ip ` + guestAddress + ` --hostname-override "$NODE" >/var/log/kubelet.log 2>&1 &
dxpu-dra plugin --node-name "$NODE" --kubeconfig ` + guestFiles + `plugin.kubeconfig --vfio --metadata --opencl-driver ` + guestDriver + ` -v 2 >/var/log/plugin.log 2>&1 &
`

// guestContainerd is containerdConfig for a root that cannot be pivoted, with a kernel of few modules.
const guestContainerd = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni"]
    conf_dir = "/etc/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    snapshotter = "native"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
      NoPivotRoot = true
`

// guestCNI is enough for a node to be ready. Its pods have the node's network.
const guestCNI = `{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}
`

// NeedGuest skips a test where the machine cannot run a guest.
func NeedGuest(t testing.TB) qemu.Install {
	t.Helper()
	install, err := qemu.Locate()
	if err != nil {
		t.Skip(err)
	}
	return install
}

// StartGuest boots a virtual machine and returns when Kubernetes calls the node in it ready. Close
// ends it, also after an error.
func (c *Cluster) StartGuest(ctx context.Context, s GuestSpec) (*GuestNode, error) {
	n := &GuestNode{Name: s.Name}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("node %s did not start within %v", s.Name, startTimeout))
	defer cancel()
	files, err := c.guestFiles(s)
	if err != nil {
		return n, err
	}
	if n.VM, err = qemu.Start(ctx, qemu.Spec{
		Install: s.Install, Dir: s.Dir, Slots: s.Slots, IOMMU: true, QMPSocket: s.QMP, Memory: guestMemory, CPUs: 2, Files: files,
		Args: []string{"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,bus=pcie.0,addr=0x3,romfile="},
	}); err != nil {
		return n, err
	}
	out, exit, err := n.Run(ctx, "NODE="+s.Name+"\n"+guestSetup)
	if err != nil || exit != 0 {
		return n, fmt.Errorf("set up the guest: exit %d, %v: %s", exit, err, out)
	}
	return n, n.await(ctx, c, s.Labels)
}

// await waits until the node is registered, labels it, and waits until it is ready.
func (n *GuestNode) await(ctx context.Context, c *Cluster, labels map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	labelled := false
	return c.await(ctx, "node "+n.Name+" to be ready", func(ctx context.Context) bool {
		if !labelled {
			_, err := c.Kube.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
			labelled = err == nil
		}
		return labelled && c.ready(ctx, n.Name)
	})
}

// guestFiles are those that the guest gets beside its own.
func (c *Cluster) guestFiles(s GuestSpec) ([]qemu.File, error) {
	files := []qemu.File{
		{Path: "/bin/dxpu-dra", Source: s.Plugin},
		{Path: "/bin/kubelet", Source: c.Programs.kubernetes("kubelet")},
		{Path: "/opt/cni/loopback", Source: c.Programs.node("loopback")},
		{Path: guestDriver, Source: s.Driver},
		{Path: guestFiles + "image.tar", Source: s.Image},
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		files = append(files, qemu.File{Path: "/bin/" + name, Source: c.Programs.node(name)})
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return nil, err
	}
	libraries, err := librariesOf(runc)
	if err != nil {
		return nil, err
	}
	for _, l := range libraries {
		files = append(files, qemu.File{Path: l, Source: l})
	}
	files = append(files, qemu.File{Path: "/bin/runc", Source: runc})
	kubelet, err := c.Kubeconfig("system:node:" + s.Name)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		guestFiles + "containerd.toml": fmt.Sprintf(guestContainerd, Image),
		guestFiles + "kubelet.yaml":    fmt.Sprintf(kubeletConfig, ""),
		"/etc/cni/10-none.conflist":    guestCNI,
	} {
		file := filepath.Join(s.Dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		files = append(files, qemu.File{Path: name, Source: file})
	}
	for name, from := range map[string]string{"kubelet": kubelet, "plugin": s.Access} {
		file := filepath.Join(s.Dir, name+".kubeconfig")
		if err := c.fromGuest(file, from); err != nil {
			return nil, err
		}
		files = append(files, qemu.File{Path: guestFiles + name + ".kubeconfig", Source: file})
	}
	return files, nil
}

// fromGuest writes an access to the cluster with the address that the guest has for this machine.
func (c *Cluster) fromGuest(file, kubeconfig string) error {
	raw, err := os.ReadFile(kubeconfig)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(strings.TrimPrefix(c.url, "https://"))
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.ReplaceAll(string(raw), c.url, "https://"+net.JoinHostPort(guestGateway, port))), 0o600)
}

// Log returns what the container of a pod has printed.
func (n *GuestNode) Log(ctx context.Context, namespace, pod, uid, container string) (string, error) {
	out, _, err := n.Run(ctx, fmt.Sprintf("cat /var/log/pods/%s_%s_%s/%s/*.log", namespace, pod, uid, container))
	return textOfLog(out), err
}

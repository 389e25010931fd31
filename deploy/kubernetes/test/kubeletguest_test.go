package test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// guestProgram prints what the pod has of the GPU, and computes on it by VFIO.
const guestProgram = `echo address $DXPU_PCI_ADDRESS_0
for f in /dev/vfio/*; do test -c $f && echo device $f; done
exec program`

// TestKubeletInVM: the node is a virtual machine. Its kubelet, containerd, runc and plugin run in the
// guest, the host proxy hot-plugs the GPU of a box when the scheduler has chosen the node, and an
// unmodified OpenCL program in a pod computes on it by VFIO.
func TestKubeletInVM(t *testing.T) {
	t.Parallel()
	kubetest.NeedNode(t)
	install := kubetest.NeedGuest(t)
	dir := t.TempDir()
	program, driver := kubetest.BuildOpenCL(t, dir)
	image := filepath.Join(dir, "image.tar")
	e := newEnv(t, versions[0], kubetest.PoolSpec{Boxes: 2, GPUs: 1, OpenCL: true})
	e.must(kubetest.BuildImage(image, map[string]string{"/bin/program": program}, driver))
	access, err := e.ServiceAccount(t.Context(), "dxpu-system", "dxpu-dra-plugin")
	e.must(err)
	monitor := filepath.Join(e.Dir, "qmp.sock")
	began := time.Now()
	node, err := e.StartGuest(t.Context(), kubetest.GuestSpec{
		Name: "kubelet-1", Dir: e.Dir, Install: install, Slots: 2, QMP: monitor, Image: image,
		Plugin: programs.driver, Driver: driver, Access: access, Labels: map[string]string{inventory.HostLabel: hostID(0, false)},
	})
	if node.VM != nil {
		t.Cleanup(func() { endGuest(t, node) })
	}
	e.must(err)
	t.Logf("the guest was up after %v, the node ready after %v", node.BootTime().Round(time.Second), time.Since(began).Round(time.Second))
	e.must(e.pool.StartHostWith("host-1", "--slots", "2", "--socket-dir", e.pool.SocketDir(0), "--qmp", monitor))
	n := &nodesEnv{env: e, guest: node}
	t.Run("a program computes", func(t *testing.T) { n.on(t).computesInGuest() })
	t.Run("the GPU fails", func(t *testing.T) { n.on(t).gpuFails() })
}

// computesInGuest: a pod runs to its end with the GPU that was plugged for it, and gives it back.
func (n *nodesEnv) computesInGuest() {
	began := time.Now()
	n.createPod(podSpec{name: "once", command: guestProgram, once: true, hostNetwork: true})
	pod := n.waitDone("once")
	n.t.Logf("from the creation of the pod to its end: %v", time.Since(began).Round(time.Second))
	text, err := n.log(pod)
	if err != nil || !strings.Contains(text, computed) || !strings.Contains(text, "address 0000:") {
		n.t.Errorf("the program printed, %v:\n%s", err, text)
	}
	n.deletePod("once")
	n.waitNoLease()
}

// endGuest kills a guest, whose logs it shows after a failure.
func endGuest(t *testing.T, node *kubetest.GuestNode) {
	if t.Failed() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // that of the test has ended
		defer cancel()
		out, _, err := node.Run(ctx, "tail -n 15 /var/log/kubelet.log /var/log/containerd.log /var/log/plugin.log")
		t.Logf("%v\n%s", err, out)
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
}

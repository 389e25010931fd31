package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// seesShare prints what a container has of GPUs of its node's own machine.
const seesShare = `test -S $DXPU_SHARE && echo socket; test -f $LD_LIBRARY_PATH/libcuda.so.1 && echo library
read line </etc/ld.so.preload; echo preload $line; echo GPUs $GPU_0 $GPU_1.; sleep infinity`

// localGPUs: the container of a pod has two GPUs of its node's own machine, by one lease and one
// share.
func (n *nodesEnv) localGPUs() {
	n.t.Helper()
	hook := filepath.Join(n.pool.Dir, "hook")
	for file, text := range map[string]string{"libcuda.so.1": "", "ld.so.preload": "none\n"} {
		n.write(filepath.Join(hook, file), text)
	}
	// In the place of NVIDIA's device files and libraries each device has a variable.
	var devices []string
	for i := range 2 {
		devices = append(devices, fmt.Sprintf(`{"name": %q, "containerEdits": {"env": ["GPU_%d=%d"]}}`, kubetest.ShareUUID(i), i, i))
	}
	nvidia := n.nodes[1].Path("/run/cdi/nvidia.json")
	n.write(nvidia, `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [`+strings.Join(devices, ", ")+`]}`)
	if err := n.pool.StartShare("m1", 2); err != nil {
		n.t.Fatal(err)
	}
	n.setHost(1, "m1")
	n.plugins[1].Stop()
	n.startPlugin(1, "--share-dir", n.pool.ShareDir("m1"), "--hook-dir", hook)

	n.createPod(podSpec{name: "both", selector: ownGPU, gpus: 2, command: seesShare})
	pod := n.waitRunning("both")
	for _, want := range []string{"socket", "library", "preload none", "GPUs 0 1."} {
		n.waitPrinted(pod, want+"\n", 1)
	}
	if l := n.onlyLease(); l.Spec.Count != 2 {
		n.t.Errorf("the lease has %d GPUs", l.Spec.Count)
	}
	n.deletePod("both")
	n.waitNoLease()

	if err := os.Remove(nvidia); err != nil {
		n.t.Error(err)
	}
	n.setHost(1, hostID(1, false))
	n.plugins[1].Stop()
	n.startPlugin(1)
	n.pool.Kill("m1")
	n.noSpecifications()
}

func (n *nodesEnv) write(file, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// setHost changes the host of a node.
func (n *nodesEnv) setHost(i int, host string) {
	n.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata": {"labels": {%q: %q}}}`, inventory.HostLabel, host)
	if _, err := n.Kube.CoreV1().Nodes().Patch(n.t.Context(), n.nodes[i].Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

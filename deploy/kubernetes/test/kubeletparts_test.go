package test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	partsBox = "box-parts"
	// testsGPU tests each function of a software GPU: copies, kernels, interrupts.
	testsGPU = "dxpu gpu test --quick --socket $DXPU_SOCKETS/slot*.sock"
	tested   = "checks passed in"
	// divisibleGPU selects GPUs of which several claims may have parts.
	divisibleGPU = `device.attributes["gpu.dxpu.dev"].box == "` + partsBox + `" && device.allowMultipleAllocations`
	third        = "memory=80Mi,compute=33"
)

// partOfGPU: three pods have a third of one software GPU each, with a driver in the pod and
// memory and compute of their own.
func (n *nodesEnv) partOfGPU() {
	n.startParts(1) // of two, the scheduler may give each pod any
	defer n.pool.Kill(partsBox)
	for i := range 3 {
		n.createPod(podSpec{name: fmt.Sprintf("third-%d", i), selector: divisibleGPU, capacity: third, command: testsGPU + " && sleep infinity"})
	}
	for i := range 3 {
		name := fmt.Sprintf("third-%d", i)
		pod := n.waitRunning(name)
		n.waitPrinted(pod, tested, 1)
	}
	for gpu, list := range n.byGPU() {
		if len(list) != 3 {
			n.t.Errorf("GPU %s has %d leases, want 3", gpu, len(list))
		}
		for _, l := range list {
			if p := l.Bindings[len(l.Bindings)-1].Part; p.GetMemoryBytes() != 80<<20 || p.GetCompute() != 330 {
				n.t.Errorf("lease %s has the part %v", l.Id, p)
			}
		}
	}
	for i := range 3 {
		n.deletePod(fmt.Sprintf("third-%d", i))
	}
	n.waitNoLease()
	n.noSpecifications()
}

// startParts starts a box with software GPUs that leases divide.
func (n *nodesEnv) startParts(gpus int) {
	n.t.Helper()
	if err := n.pool.StartBoxWith(partsBox, "--gpus", strconv.Itoa(gpus), "--parts", "4", "--allow-faults", "--admin-listen", "127.0.0.1:0", "--admin-url-file", n.adminURL()); err != nil {
		n.t.Fatal(err)
	}
	n.wait("the divisible GPUs", func(ctx context.Context) (bool, error) {
		d, err := n.device(ctx, fmt.Sprintf("%s-%d", partsBox, 5*(gpus-1))) // behind each other GPU and its four slots for parts
		if err != nil {
			return false, err
		}
		return d.AllowMultipleAllocations != nil, fmt.Errorf("device %v", d)
	})
}

func (n *nodesEnv) adminURL() string { return filepath.Join(n.Dir, "parts-url") }

// gpuError: an error of the GPU, not the end of its box: XID 79, "fallen off the bus".
func (n *nodesEnv) gpuError() {
	n.startParts(2)
	defer n.pool.Kill(partsBox)
	n.deploy(podSpec{name: "tester", selector: divisibleGPU, capacity: third, command: "while " + testsGPU + "; do :; done"})
	first := n.waitComputing("tester", "", tested)
	l := n.onlyLease()
	began := time.Now()
	url, err := os.ReadFile(n.adminURL())
	if err != nil {
		n.t.Fatal(err)
	}
	if out, err := n.pool.Command(n.t.Context(), "box", "fail", "--admin", strings.TrimSpace(string(url)), "--slot", gpuSlot(l), "--xid", "79"); err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	second := n.waitComputing("tester", string(first.UID), tested)
	n.t.Logf("from the error of the GPU to results of the next pod: %v", time.Since(began).Round(100*time.Millisecond))
	if now := n.onlyLease(); gpuSlot(now) == gpuSlot(l) {
		n.t.Errorf("pod %s computes on the GPU that failed", second.Name)
	}
	n.undeploy("tester")
}

// gpuSlot returns the slot of the GPU of a lease's part.
func gpuSlot(l *dxpuv1.Lease) string {
	_, slot, _ := strings.Cut(l.Bindings[len(l.Bindings)-1].PartOfGpuId, "/")
	return slot
}

package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// TestNodeIsVM: in a VM whose host proxy hot-plugs, the plugin's code finds the GPU of each slot
// and gives it to vfio-pci, and a program that has this group's device file computes with it. It is
// the node without Kubernetes on it, which TestKubeletInVM has.
func TestNodeIsVM(t *testing.T) {
	t.Parallel()
	install, err := qemu.Locate()
	if errors.Is(err, qemu.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "dk") // sockets are in it: their paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	dxpu, _, err := kubetest.BuildDxPU(dir)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "vfio")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./testdata/vfio")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const slots = 2
	monitor := filepath.Join(dir, "qmp.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	vm, err := qemu.Start(ctx, qemu.Spec{
		Install: install, Dir: dir, Slots: slots, IOMMU: true, QMPSocket: monitor,
		Files: []qemu.File{{Path: "/bin/vfio", Source: program}, {Path: "/bin/dxpu", Source: dxpu}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	pool, err := kubetest.StartPool(ctx, dxpu, dir, kubetest.PoolSpec{OpenCL: true})
	if pool != nil {
		t.Cleanup(pool.Stop)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		pool.StartBoxWith("box-1", "--gpus", fmt.Sprint(slots)),
		pool.StartHostWith("host-1", "--slots", fmt.Sprint(slots), "--socket-dir", pool.SocketDir(0), "--qmp", monitor),
	); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"node", "wait", "box-1", "host-1", "--manager", pool.URL},
		{"lease", "create", "--manager", pool.URL, "--host", "host-1", "--count", fmt.Sprint(slots), "--wait"},
	} {
		if out, err := pool.Command(ctx, args...); err != nil {
			t.Fatalf("dxpu %v: %v\n%s", args, err, out)
		}
	}
	seen := map[string]bool{}
	for slot := range slots {
		// The guest sees a device some time after QEMU has it.
		out, exit, err := vm.Run(ctx, fmt.Sprintf("while ! vfio %[1]d >/tmp/out 2>&1; do grep -q 'is empty' /tmp/out || break; usleep 100000; done; cat /tmp/out; ls /dev/vfio", slot))
		if err != nil || exit != 0 {
			t.Fatalf("slot %d: exit %d, %v\n%s", slot, exit, err, out)
		}
		var e cdi.Edits
		line, files, _ := strings.Cut(out, "\n")
		if err := json.Unmarshal([]byte(line), &e); err != nil || len(e.DeviceNodes) != 2 || len(e.Env) != 1 {
			t.Fatalf("slot %d: %v\n%s", slot, err, out)
		}
		group := e.DeviceNodes[1].Path
		name, address, _ := strings.Cut(e.Env[0], "=")
		if name != fmt.Sprintf("DXPU_PCI_ADDRESS_%d", slot) || seen[address] || seen[group] || !strings.Contains(files, filepath.Base(group)) {
			t.Errorf("slot %d: %s in group %s; device files %q; seen %v", slot, e.Env[0], group, files, seen)
		}
		seen[address], seen[group] = true, true
		if out, exit, err := vm.Run(ctx, "dxpu gpu test --quick --mode iommu --pci "+address); err != nil || exit != 0 {
			t.Errorf("slot %d: the test of the GPU: exit %d, %v\n%s", slot, exit, err, out)
		}
	}
}

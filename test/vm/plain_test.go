package vm_test

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// A guest without an IOMMU has no VFIO, with the kernels that distributions
// build. Root drives the GPU all the same, through sysfs: by polling, with
// physical addresses.
func TestPlainVM(t *testing.T) {
	g := boot(t, qemu.Spec{})
	p := newPool(t, g, poolConfig{})
	p.attach(t, 0, 0)
	address := g.plugged(t, 0)
	out := g.sh(t, "%s gpu test --quick --mode sysfs --pci %s", program, address)
	t.Log(tail(out, 1))
	if !strings.Contains(out, "polling") || !strings.Contains(out, " 0 interrupts, 0 stale") {
		t.Errorf("not by polling:\n%s", out)
	}
	p.attach(t, 1, 1)
	t.Log(g.sh(t, "%s peer %s %s", helper, address, g.plugged(t, 1)))
	p.detach(t, 1)

	// The GPU dies while it is in use: nothing asks a program to let go of it.
	g.loses(t, address, "--mode sysfs", func() { p.kill(t, 0) })
	p.detach(t, 0)
	p.attach(t, 0, 2)
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	p.detach(t, 0)
	g.healthy(t)
}

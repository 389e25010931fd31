package vm_test

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// Without an IOMMU, a guest with the kernel of a distribution has no VFIO. Root can
// still drive the GPU through sysfs, by polling and with physical addresses.
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

	// The GPU dies in use: nothing asks the program to release it.
	g.loses(t, address, "--mode sysfs", func() { p.kill(t, 0) })
	p.detach(t, 0)
	p.attach(t, 0, 2)
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	p.detach(t, 0)
	g.healthy(t)
}

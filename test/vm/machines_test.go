package vm_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// TestMachines boots machines and kernels of all kinds, each with GPUs in all its slots. The
// first one has most peculiarities at once; the others need DXPU_VMTEST=thorough.
func TestMachines(t *testing.T) {
	for i, c := range []struct {
		name string
		os   string // of scripts/build-guest.sh
		spec qemu.Spec
		more func(t *testing.T, g *guest)
		tour func(t *testing.T, g *guest, p *pool) // nil: tour with more
	}{
		{name: "four slots behind a switch, two nodes", spec: qemu.Spec{Slots: 4, Switch: true, Nodes: 2}, more: checkNodes},
		{name: "q35, ACPI hot-plug, IOMMU, four slots", spec: qemu.Spec{Slots: 4, IOMMU: true}},
		{name: "q35, native hot-plug", spec: qemu.Spec{Slots: 2, NativeHotPlug: true}},
		{name: "q35, x3130 switch, native hot-plug", spec: qemu.Spec{Slots: 2, Switch: true, NativeHotPlug: true}},
		{name: "i440fx, PCI bridges", spec: qemu.Spec{Slots: 2, Chipset: qemu.I440FX}},
		{name: "6 GiB", spec: qemu.Spec{Slots: 2, Memory: 6 << 30}, more: checkHigh},
		{name: "suspend to RAM, native hot-plug", spec: qemu.Spec{Slots: 2, NativeHotPlug: true, Args: withS3}, tour: tourWithNIC},
		{name: "suspend to RAM, native hot-plug, no MMCONFIG", spec: qemu.Spec{Slots: 2, NativeHotPlug: true, Args: withS3, Cmdline: withoutMMCONFIG}, more: suspend},
		{name: "suspend to RAM, native hot-plug, Debian 12", os: "bookworm-cloud", spec: qemu.Spec{Slots: 2, NativeHotPlug: true, Args: withS3}, more: suspend},
		{name: "suspend to RAM, ACPI hot-plug", spec: qemu.Spec{Slots: 2, Args: withS3}, tour: tourWithEdu},
		{name: "Debian 12, cloud kernel", os: "bookworm-cloud", spec: qemu.Spec{Slots: 2, IOMMU: true}},
		{name: "Debian 12, generic kernel", os: "bookworm-generic", spec: qemu.Spec{Slots: 2, IOMMU: true}},
		{name: "Debian 13, generic kernel", os: "trixie-generic", spec: qemu.Spec{Slots: 2, IOMMU: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if i > 0 && !thorough() {
				t.Skip("set DXPU_VMTEST=thorough to run it")
			}
			g := prepare(t, c.os, c.spec)
			g.powerOn(t)
			p := newPool(t, g, poolConfig{})
			defer func() {
				if t.Failed() {
					g.tell(t)
				}
			}()
			if c.tour != nil {
				c.tour(t, g, p)
			} else {
				tour(t, g, p, c.more)
			}
		})
	}
}

// tour plugs a GPU into each slot, uses them, plugs one again, resets the machine, and
// takes them all away.
func tour(t *testing.T, g *guest, p *pool, more func(t *testing.T, g *guest)) {
	for slot := range g.spec.Slots {
		p.attach(t, slot, slot)
	}
	g.useAll(t)
	if more != nil {
		more(t, g)
	}
	address := g.plugged(t, 0)
	p.detach(t, 0)
	g.unplugged(t, address)
	p.attach(t, 0, boxGPUs-1)
	g.useAll(t)
	g.reset(t)
	out := g.useAll(t)
	var all []string
	for slot := range g.spec.Slots {
		all = append(all, g.plugged(t, slot))
		p.detach(t, slot)
	}
	for _, address := range all {
		g.unplugged(t, address)
	}
	g.healthy(t)
	seen(t, "%d GPUs; plug, use, reset, unplug. %s", g.spec.Slots, tail(out, 1))
}

// useAll uses the GPUs of all slots, one after the other.
func (g *guest) useAll(t *testing.T) string {
	t.Helper()
	var all []string
	for slot := range g.spec.Slots {
		all = append(all, g.plugged(t, slot))
	}
	return g.sh(t, "%s use %s", helper, strings.Join(all, " "))
}

// reset resets the machine and waits until it has booted.
func (g *guest) reset(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.Reset(ctx); err != nil {
		t.Fatal(err)
	}
}

// memoryOf returns the bus address of the memory that a line of the helper names.
func memoryOf(t *testing.T, line string) uint64 {
	t.Helper()
	m := regexp.MustCompile(`sysfs, memory at 0x([0-9a-f]+)`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("no physical address in %q", line)
	}
	at, err := strconv.ParseUint(m[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// checkHigh checks that a GPU has copied from and to memory above 4 GiB.
func checkHigh(t *testing.T, g *guest) {
	if at := memoryOf(t, g.sh(t, "%s use %s", helper, g.plugged(t, 0))); at < 4<<30 {
		t.Errorf("memory at %#x, want some above 4 GiB", at)
	}
}

// checkNodes checks that GPUs have copied from and to memory of both nodes, each of which
// is a backend.
func checkNodes(t *testing.T, g *guest) {
	const node = 512 << 20 // bytes
	for cpu := range 2 {
		line := g.sh(t, "taskset %x %s use %s", 1<<cpu, helper, g.plugged(t, cpu))
		if at := memoryOf(t, line); at/node != uint64(cpu) {
			t.Errorf("memory at %#x on processor %d, want some of node %[2]d", at, cpu)
		}
	}
	if out := g.sh(t, "%s move %s", helper, g.plugged(t, 0)); out != "sysfs, moved 0 times" {
		t.Errorf("memory of a device without an IOMMU: %s", out)
	}
}

// TestColdPlug boots with GPUs that were there before QEMU started, from a proxy without
// access to its monitor, and kills QEMU and starts it again on the same sockets.
func TestColdPlug(t *testing.T) {
	spec := qemu.Spec{Slots: 2, IOMMU: true}
	g := prepare(t, "", spec)
	for slot := range spec.Slots {
		g.spec.Args = append(g.spec.Args, "-device", fmt.Sprintf(
			`{"driver":"vfio-user-pci","id":"gpu%[1]d","bus":"%[2]s","socket":{"type":"unix","path":"%[3]s/slot%[1]d.sock"}}`, slot, qemu.Slot(slot), g.dir))
	}
	p := newPool(t, g, poolConfig{byHand: true})
	for slot := range spec.Slots {
		p.attach(t, slot, slot)
	}
	g.powerOn(t)
	g.useAll(t)
	if thorough() {
		g.reset(t)
		g.useAll(t)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	g.powerOn(t)
	out := g.useAll(t)
	for slot := range spec.Slots {
		address := g.plugged(t, slot)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := g.QMP().Unplug(ctx, fmt.Sprintf("gpu%d", slot)); err != nil {
			t.Error(err)
		}
		g.unplugged(t, address)
		p.detach(t, slot)
	}
	g.healthy(t)
	seen(t, "%d GPUs; use, QEMU killed and started, unplug. %s", spec.Slots, tail(out, 1))
}

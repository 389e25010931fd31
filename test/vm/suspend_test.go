package vm_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// withS3 are arguments of a machine that can be suspended.
var withS3 = []string{"-global", "ICH9-LPC.disable_s3=0"}

// withoutMMCONFIG are kernel arguments with which Linux reads no extended configuration
// space, and so no serial number, which it would compare at a resume. It leaves hot-plug to
// ACPI then, unless it is told.
const withoutMMCONFIG = "pci=nommconf pcie_ports=native"

// suspend puts the guest to sleep with its GPUs, and wakes it. Then it uses them.
func suspend(t *testing.T, g *guest) {
	t.Helper()
	suspendOnly(t, g)
	g.useAll(t)
}

// tourWithNIC suspends a guest that has a GPU and, in the other slot, QEMU's own network
// card e1000e, which has a serial number, too. SeaBIOS 1.17 does not enable the chipset's
// window to the configuration space (PCIEXBAR) again at a resume; Linux 6.12 reads
// another serial number than before and takes each of the two for a replaced device. If the
// window is there, both have to stay. If not, both go, and the manager can plug the GPU in again.
func tourWithNIC(t *testing.T, g *guest, p *pool) {
	const nic = "8086:10d3"
	p.attach(t, 0, 0)
	g.useOne(t)
	address := g.plugged(t, 0)
	g.plugQEMUs(t, "e1000e", nic)
	if !g.mmconfig(t) {
		t.Fatal("the firmware has not enabled PCIEXBAR at the boot")
	}
	suspendOnly(t, g)
	if g.mmconfig(t) {
		g.useOne(t)
		g.sh(t, "lspci -n | grep -q %s", nic)
	} else {
		g.sh(t, "while lspci -n | grep -q %s; do usleep 10000; done", nic)
		g.unplugged(t, address)
		p.awaitThat(t, 0, "ejected", (*dxpuv1.ObservedBinding).GetEjected)
		p.replug(t, 0)
		g.useOne(t)
		t.Attr("limit", "the firmware does not enable PCIEXBAR at the resume: Linux removes the GPU and, alike, QEMU's e1000e")
	}
	address = g.plugged(t, 0)
	p.detach(t, 0)
	g.unplugged(t, address)
	g.healthy(t)
	seen(t, "a GPU and e1000e; plug, use, suspend, use, unplug")
}

// mmconfig reports whether q35's host bridge decodes its window to the configuration space.
func (g *guest) mmconfig(t *testing.T) bool {
	t.Helper()
	return g.register(t, "00:00.0", 0x60)&1 != 0
}

// register reads a register of 4 bytes in a device's first 256 bytes of configuration space.
func (g *guest) register(t *testing.T, device string, at int) uint64 {
	t.Helper()
	text := g.sh(t, "setpci -s %s %x.l", device, at)
	value, err := strconv.ParseUint(text, 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// plugQEMUs plugs a device of QEMU's own into the second slot, and waits until the guest has it.
func (g *guest) plugQEMUs(t *testing.T, driver, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := g.QMP().DeviceAdd(ctx, qmp.Device{Driver: driver, ID: driver, Bus: qemu.Slot(1)}); err != nil {
		t.Fatal(err)
	}
	g.sh(t, "while ! lspci -n | grep -q %s; do usleep 10000; done", id)
}

// tourWithEdu suspends a guest that has a GPU and, in the other slot, QEMU's own device
// edu. Before, the guest lets edu go. After, it uses the GPU, and if it serves ACPI's
// request to eject edu, it has to serve that for the GPU; if not, the host takes the GPU
// by force. The only accepted reason is that SeaBIOS has not set the ports of the ACPI
// registers (PMBASE) again: then each of them reads as ones.
func tourWithEdu(t *testing.T, g *guest, p *pool) {
	plug := func() { g.plugQEMUs(t, "edu", "1234:11e8") }
	eject := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return g.QMP().Unplug(ctx, "edu")
	}
	p.attach(t, 0, 0)
	g.useOne(t)
	plug()
	if err := eject(patience); err != nil {
		t.Fatalf("before the suspend: %v", err)
	}
	plug()
	const lpc, pmBase = "00:1f.0", 0x40
	before := g.register(t, lpc, pmBase)
	suspendOnly(t, g)
	g.useOne(t)
	err := eject(ejection)
	if err != nil {
		after := g.register(t, lpc, pmBase)
		if after == before {
			t.Errorf("edu stays (%v), and PMBASE is %#x as before", err, after)
		}
		t.Attr("limit", fmt.Sprintf("the firmware does not set PMBASE (%#x, before %#x) at the resume: Linux gets no event of ACPI's hot-plug, QEMU's edu stays, and a GPU is taken by force", after, before))
	}
	address := g.plugged(t, 0)
	p.detach(t, 0)
	if forced := p.host.Observe().Slots[0].Removal.GetForced(); forced != (err != nil) {
		t.Errorf("edu: %v; the GPU is taken by force: %v", err, forced)
	}
	if err == nil {
		g.unplugged(t, address)
	}
	g.healthy(t)
	seen(t, "a GPU and edu; plug, use, edu unplugged, suspend, use")
}

// ejection is the time in which a guest lets edu go if it serves the request: it takes
// less than a second.
const ejection = 30 * time.Second

// useOne uses the GPU of the first slot.
func (g *guest) useOne(t *testing.T) {
	t.Helper()
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
}

// suspendOnly puts the guest to sleep, and wakes it.
func suspendOnly(t *testing.T, g *guest) {
	t.Helper()
	if !strings.Contains(g.sh(t, "cat /sys/power/state"), "mem") {
		t.Fatal("the guest's kernel has no suspend to RAM")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	events := g.QMP().Subscribe("SUSPEND", "WAKEUP")
	defer events.Close()
	asleep := g.start(t, "echo mem >/sys/power/state")
	await := func(name string) {
		e, err := events.Next(ctx)
		if err != nil || e.Name != name {
			t.Fatalf("QEMU says %q, %v, want %s", e.Name, err, name)
		}
	}
	await("SUSPEND")
	if err := g.QMP().Execute(ctx, "system_wakeup", nil, nil); err != nil {
		t.Fatal(err)
	}
	await("WAKEUP")
	if exit := asleep.wait(t); exit != 0 {
		t.Errorf("status %d: %s", exit, asleep.out.String())
	}
}

package test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
)

// seesFunction prints what a container has of the function in slot %d of its VM: which device file is that of
// which number, its address, and the file with the attributes of the device.
const seesFunction = `echo address $DXPU_PCI_ADDRESS_0$DXPU_PCI_ADDRESS_1
for f in /dev/vfio/*; do test -c $f && echo device $f; done
while read line; do echo $line; done </var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/gpu.dxpu.dev-metadata.json
sleep infinity`

// virtualMachine: the plugin of a node that is a VM gives a container the device file of the IOMMU group, and
// the address of the function as a variable and as a file. In the place of the kernel, files say that the
// VM has two ports with a function each; the device files are those of /dev/null. TestNodeIsVM has a VM.
func (n *nodesEnv) virtualMachine() {
	n.functions(0)
	n.plugins[0].Stop()
	n.startPluginWith(0, "--vfio", "--metadata")
	n.createPod(podSpec{name: "vm", command: seesFunction, node: n.nodes[0].Name})
	pod := n.waitRunning("vm")
	slot := n.onlyLease().Bindings[0].HostSlot
	address := functionAt(int(slot))
	for _, want := range []string{
		"address " + address, "device /dev/vfio/vfio", fmt.Sprintf("device /dev/vfio/%d", groupAt(int(slot))),
		`"resource.kubernetes.io/pciBusID": {`, fmt.Sprintf("%q: %q", "string", address),
	} {
		n.waitPrinted(pod, want+"\n", 1)
	}
	if other := fmt.Sprintf("device /dev/vfio/%d\n", groupAt(1-int(slot))); n.printed(pod, other) > 0 {
		n.t.Errorf("the container has the function of the other slot, too")
	}
	n.deletePod("vm")
	n.waitNoLease()
	n.noSpecifications()
	if left, err := n.nodes[0].Files("/var/lib/kubelet/plugins/gpu.dxpu.dev/dra-device-metadata"); err != nil || len(left) > 0 {
		n.t.Errorf("attributes are left: %v, %v", left, err)
	}
	n.plugins[0].Stop()
	n.must(n.inNode(0, "umount", "/sys/bus/pci"))
	n.startPlugin(0)
}

func functionAt(slot int) string { return fmt.Sprintf("0000:%02x:00.0", slot+1) }

func groupAt(slot int) int { return slot + 7 }

// functions gives a node two root ports, each with a function of vfio-pci.
func (n *nodesEnv) functions(i int) {
	n.t.Helper()
	pci := filepath.Join(n.nodes[i].Dir, "pci")
	vfio := n.nodes[i].Path("/dev/vfio")
	n.must(os.MkdirAll(vfio, 0o755))
	n.must(exec.CommandContext(n.t.Context(), "cp", "-a", "/dev/null", filepath.Join(vfio, "vfio")).Run())
	for slot := range 2 {
		port := filepath.Join(pci, "devices", fmt.Sprintf("0000:00:%02x.0", slot+3))
		function := filepath.Join(pci, "devices", functionAt(slot))
		n.write(filepath.Join(port, "config"), portConfig(slot))
		n.must(os.MkdirAll(filepath.Join(port, functionAt(slot)), 0o755))
		n.must(os.MkdirAll(function, 0o755))
		n.must(os.Symlink(fmt.Sprintf("../../kernel/iommu_groups/%d", groupAt(slot)), filepath.Join(function, "iommu_group")))
		n.must(os.Symlink("../../drivers/vfio-pci", filepath.Join(function, "driver")))
		n.must(exec.CommandContext(n.t.Context(), "cp", "-a", "/dev/null", filepath.Join(vfio, fmt.Sprint(groupAt(slot)))).Run())
	}
	n.must(n.inNode(i, "mount", "--bind", pci, "/sys/bus/pci"))
	n.t.Cleanup(func() { _ = n.inNode(i, "umount", "/sys/bus/pci") }) // it fails where the test has done so
}

// inNode runs a program on a node to its end.
func (n *nodesEnv) inNode(i int, program string, args ...string) error {
	p, err := n.nodes[i].Start("command", program, args...)
	if err != nil {
		return err
	}
	return p.Wait()
}

// portConfig returns the configuration space of a root port. Its physical slot number is one more than
// the slot.
func portConfig(slot int) string {
	const express, rootPort, number = 0x40, 4 << 4, 19
	c := make([]byte, pcie.ConfigSizePCI)
	c[cfgspace.OffStatus] = cfgspace.StaCapabilities
	c[cfgspace.OffHeaderType], c[cfgspace.OffCapPtr] = 1, express
	c[express] = cfgspace.CapExpress
	binary.LittleEndian.PutUint16(c[express+cfgspace.OffExpCaps:], cfgspace.ExpSlot|rootPort)
	binary.LittleEndian.PutUint32(c[express+cfgspace.OffSlotCap:], uint32(slot+1)<<number)
	return string(c)
}

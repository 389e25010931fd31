package qemu

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A Spec describes a machine. Zero values stand for the defaults.
type Spec struct {
	Install Install
	// Dir is a directory of the caller's for the console log, QEMU's own messages and the
	// initramfs. It must exist; the VM owns its files named console.log, qemu.log and
	// initramfs.cpio.
	Dir string

	Chipset Chipset // "": Q35
	Memory  int64   // bytes, a multiple of 2 MiB; 0: 1 GiB
	// Backend is the type of the objects that hold the memory, with options; "":
	// memory-backend-memfd,share=on. With [Anonymous] QEMU makes its own memory.
	Backend string
	// Nodes is the number of NUMA nodes, each with a backend and an equal part of the
	// memory and CPUs; 0: one backend, no NUMA.
	Nodes int
	CPUs  int    // 0: 1, which boots fastest without KVM; with NUMA one for each node
	Accel string // "tcg" or "kvm"; "": tcg, which runs everywhere

	// Slots is the number of ports for hot-plug; port i is the bus [Slot](i). They are PCIe
	// root ports, or PCI bridges on I440FX.
	Slots int
	// Switch puts the ports behind an x3130 switch in one root port. The firmware keeps the
	// least window for such a port, 2 MiB: larger BARs can only be there from the start.
	Switch bool
	// NativeHotPlug makes the guest plug by the slot's registers (pciehp) instead of ACPI.
	NativeHotPlug bool
	// Window is the 64-bit prefetchable address space, in bytes, that the firmware reserves
	// behind each port, for the large BARs of a plugged device. 0: 1 GiB.
	Window int64
	// IOMMU gives the machine an emulated Intel IOMMU, so that VFIO in the guest works as
	// on hardware: Debian's kernels are built without VFIO's no-IOMMU mode.
	IOMMU bool

	QMPSocket string   // path of a second QMP server, for other programs; "": none
	Cmdline   string   // more kernel arguments
	Files     []File   // added to the guest's file system
	Args      []string // more QEMU arguments
}

// A Chipset is a QEMU machine type.
type Chipset string

// Chipsets.
const (
	Q35    Chipset = "q35"
	I440FX Chipset = "pc" // conventional PCI only
)

// Anonymous is the Backend of a machine with -m alone.
const Anonymous = "anonymous"

// MaxSlots is the number of root ports that fit on the root bus, one in each device
// number from firstPort to below the chipset's own at 0x1d.
const MaxSlots = 24

const firstPort = 4

// tcgCPU has more physical address bits than the 40 of QEMU's own model: with
// those the firmware puts the large windows right below 1 TiB, where QEMU
// reserves the hypertransport range of AMD processors and Linux assigns nothing.
const tcgCPU = "max,phys-bits=42"

const (
	// defaultMemory is above the 512 MiB below which Linux does without transparent huge
	// pages. With them the memory that a driver gives to a device behind the IOMMU is mapped
	// in pieces of 2 MiB and not of 4 KiB: 8 MiB take 1 to 13 ms instead of 60.
	defaultMemory = 1 << 30
	defaultWindow = 1 << 30
)

// Descriptors that QEMU inherits, in the order of exec.Cmd.ExtraFiles.
const (
	controlFD = 3
	qmpFD     = 4
)

// Slot is the name of the bus of root port i, for device_add.
func Slot(i int) string { return "rp" + strconv.Itoa(i) }

func (s Spec) withDefaults() (Spec, error) {
	s.Memory, s.CPUs = cmp.Or(s.Memory, defaultMemory), cmp.Or(s.CPUs, s.Nodes, 1)
	s.Accel, s.Window = cmp.Or(s.Accel, "tcg"), cmp.Or(s.Window, defaultWindow)
	s.Chipset, s.Backend = cmp.Or(s.Chipset, Q35), cmp.Or(s.Backend, "memory-backend-memfd,share=on")
	switch {
	case s.Memory < 0 || s.Memory%(2<<20) != 0:
		return s, fmt.Errorf("memory of %d bytes is not a multiple of 2 MiB", s.Memory)
	case s.Nodes < 0 || s.Nodes > 0 && (s.Backend == Anonymous || s.Memory/(2<<20)%int64(s.Nodes) != 0 || s.CPUs%s.Nodes != 0):
		return s, fmt.Errorf("%d nodes cannot share %d bytes of %s and %d CPUs equally", s.Nodes, s.Memory, s.Backend, s.CPUs)
	case s.Chipset != Q35 && s.Chipset != I440FX:
		return s, fmt.Errorf("chipset %q, want %s or %s", s.Chipset, Q35, I440FX)
	case s.Chipset == I440FX && (s.IOMMU || s.Switch || s.NativeHotPlug):
		return s, errors.New("an IOMMU, a switch and native hot-plug need PCI Express: chipset q35")
	case s.CPUs < 0:
		return s, fmt.Errorf("%d CPUs", s.CPUs)
	case s.Slots < 0 || s.Slots > MaxSlots:
		return s, fmt.Errorf("%d slots, want 0 to %d", s.Slots, MaxSlots)
	case s.Accel != "tcg" && s.Accel != "kvm":
		return s, fmt.Errorf("accelerator %q, want tcg or kvm", s.Accel)
	case s.Dir == "":
		return s, errors.New("no directory")
	}
	return s, nil
}

// argv returns QEMU's arguments for a spec with its defaults filled in.
func (s Spec) argv(console, initrd string) []string {
	machine, cpu := string(s.Chipset), tcgCPU
	if s.Nodes == 0 && s.Backend != Anonymous {
		machine += ",memory-backend=ram0"
	}
	if s.Accel == "kvm" {
		cpu = "host"
		if s.IOMMU {
			machine += ",kernel-irqchip=split" // interrupt remapping is in QEMU
		}
	}
	smp := strconv.Itoa(s.CPUs)
	if s.Nodes > 0 {
		smp += fmt.Sprintf(",sockets=%d", s.Nodes) // Linux expects no socket in two nodes
	}
	a := []string{
		"-name", "dxpu,process=dxpu-qemu",
		"-machine", machine, "-accel", s.Accel, "-cpu", cpu,
		"-smp", smp, "-m", fmt.Sprintf("%dB", s.Memory),
	}
	a = append(a, s.memory()...)
	a = append(a,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-chardev", "file,id=console,path="+escape(console), "-serial", "chardev:console",
		"-device", "virtio-serial-pci,id=serial,bus="+s.rootBus()+",addr=0x2,max_ports=2",
		"-chardev", fmt.Sprintf("socket,id=control,fd=%d", controlFD),
		"-device", "virtserialport,bus=serial.0,nr=1,chardev=control,name="+controlPort,
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", qmpFD), "-qmp", "chardev:qmp",
	)
	if s.QMPSocket != "" {
		a = append(a, "-chardev", "socket,id=qmp1,server=on,wait=off,path="+escape(s.QMPSocket), "-qmp", "chardev:qmp1")
	}
	if s.IOMMU {
		// Before the devices, which look for it when QEMU realizes them.
		a = append(a, "-device", "intel-iommu,caching-mode=on,intremap=on")
	}
	a = append(a, s.ports()...)
	a = append(a, "-kernel", s.Install.Kernel, "-initrd", initrd, "-append", s.cmdline())
	return append(a, s.Args...)
}

// memory returns the arguments for the backends and the nodes.
func (s Spec) memory() (a []string) {
	if s.Backend == Anonymous {
		return nil
	}
	parts := max(1, s.Nodes)
	for i := range parts {
		a = append(a, "-object", fmt.Sprintf("%s,id=ram%d,size=%dB", s.Backend, i, s.Memory/int64(parts)))
	}
	for i, each := 0, s.CPUs/parts; i < s.Nodes; i++ {
		a = append(a, "-numa", fmt.Sprintf("node,nodeid=%d,memdev=ram%d,cpus=%d-%d", i, i, i*each, (i+1)*each-1))
	}
	return a
}

// rootBus is the name of the bus that QEMU makes itself.
func (s Spec) rootBus() string {
	if s.Chipset == I440FX {
		return "pci.0"
	}
	return "pcie.0"
}

// ports returns the arguments for the slots.
func (s Spec) ports() (a []string) {
	port := func(format string, values ...any) { a = append(a, "-device", fmt.Sprintf(format, values...)) }
	if s.NativeHotPlug {
		a = append(a, "-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off")
	}
	if s.Switch {
		port("pcie-root-port,id=uplink,bus=pcie.0,addr=%#x,chassis=%d,slot=%[2]d,pref64-reserve=%dB", firstPort, MaxSlots+1, s.Window*int64(s.Slots))
		port("x3130-upstream,id=switch,bus=uplink")
	}
	for i := range s.Slots {
		switch {
		case s.Chipset == I440FX:
			port("pci-bridge,id=%s,bus=pci.0,addr=%#x,chassis_nr=%d,pref64-reserve=%dB", Slot(i), firstPort+i, i+1, s.Window)
		case s.Switch:
			port("xio3130-downstream,id=%s,bus=switch,addr=%#x,chassis=%d,slot=%d", Slot(i), firstPort+i, i+1, i+1)
		default:
			port("pcie-root-port,id=%s,bus=pcie.0,addr=%#x,chassis=%d,slot=%d,pref64-reserve=%dB", Slot(i), firstPort+i, i+1, i+1, s.Window)
		}
	}
	return a
}

// SlotPath returns a pattern for the shell: the directory of the device in slot i in the
// guest's /sys.
func (s Spec) SlotPath(i int) string {
	root := "/sys/bus/pci/devices/0000:00"
	if s.Switch {
		return fmt.Sprintf("%s:%02x.0/0000:*/0000:*:%02x.0/0000:*", root, firstPort, firstPort+i)
	}
	return fmt.Sprintf("%s:%02x.0/0000:*", root, firstPort+i)
}

func (s Spec) cmdline() string {
	// Without no_timer_check the kernel counts ticks of the timer early in its boot, and
	// panics when a busy machine runs QEMU too late to deliver them.
	args := []string{"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "no_timer_check"}
	if s.IOMMU {
		args = append(args, "intel_iommu=on")
	}
	if s.Cmdline != "" {
		args = append(args, s.Cmdline)
	}
	return strings.Join(args, " ")
}

// escape keeps a comma in a value from ending it.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }

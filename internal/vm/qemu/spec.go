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

	Memory int64  // bytes, a multiple of 2 MiB; 0: 1 GiB
	CPUs   int    // 0: 1, which boots fastest without KVM
	Accel  string // "tcg" or "kvm"; "": tcg, which runs everywhere

	// Slots is the number of PCIe root ports for hot-plug; port i is the bus [Slot](i).
	Slots int
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
	s.Memory, s.CPUs = cmp.Or(s.Memory, defaultMemory), cmp.Or(s.CPUs, 1)
	s.Accel, s.Window = cmp.Or(s.Accel, "tcg"), cmp.Or(s.Window, defaultWindow)
	switch {
	case s.Memory < 0 || s.Memory%(2<<20) != 0:
		return s, fmt.Errorf("memory of %d bytes is not a multiple of 2 MiB", s.Memory)
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
	machine, cpu := "q35,memory-backend=ram0", tcgCPU
	if s.Accel == "kvm" {
		cpu = "host"
		if s.IOMMU {
			machine += ",kernel-irqchip=split" // interrupt remapping is in QEMU
		}
	}
	a := []string{
		"-name", "dxpu,process=dxpu-qemu",
		"-machine", machine, "-accel", s.Accel, "-cpu", cpu,
		"-smp", strconv.Itoa(s.CPUs), "-m", fmt.Sprintf("%dB", s.Memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=ram0,size=%dB,share=on", s.Memory),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-chardev", "file,id=console,path=" + escape(console), "-serial", "chardev:console",
		"-device", "virtio-serial-pci,id=serial,bus=pcie.0,addr=0x2,max_ports=2",
		"-chardev", fmt.Sprintf("socket,id=control,fd=%d", controlFD),
		"-device", "virtserialport,bus=serial.0,nr=1,chardev=control,name=" + controlPort,
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", qmpFD), "-qmp", "chardev:qmp",
	}
	if s.QMPSocket != "" {
		a = append(a, "-chardev", "socket,id=qmp1,server=on,wait=off,path="+escape(s.QMPSocket), "-qmp", "chardev:qmp1")
	}
	if s.IOMMU {
		// Before the devices, which look for it when QEMU realizes them.
		a = append(a, "-device", "intel-iommu,caching-mode=on,intremap=on")
	}
	for i := range s.Slots {
		a = append(a, "-device", fmt.Sprintf("pcie-root-port,id=%s,bus=pcie.0,addr=%#x,chassis=%d,slot=%d,pref64-reserve=%dB",
			Slot(i), firstPort+i, i+1, i+1, s.Window))
	}
	a = append(a, "-kernel", s.Install.Kernel, "-initrd", initrd, "-append", s.cmdline())
	return append(a, s.Args...)
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

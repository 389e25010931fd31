package qemu

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestSpecDefaults(t *testing.T) {
	for _, c := range []struct {
		name string
		spec Spec
		bad  bool
	}{
		{name: "nothing but a directory", spec: Spec{Dir: "d"}},
		{name: "no directory", bad: true},
		{name: "all slots", spec: Spec{Dir: "d", Slots: MaxSlots}},
		{name: "a slot too many", spec: Spec{Dir: "d", Slots: MaxSlots + 1}, bad: true},
		{name: "negative slots", spec: Spec{Dir: "d", Slots: -1}, bad: true},
		{name: "odd memory", spec: Spec{Dir: "d", Memory: 1<<30 + 1}, bad: true},
		{name: "negative memory", spec: Spec{Dir: "d", Memory: -2 << 20}, bad: true},
		{name: "negative CPUs", spec: Spec{Dir: "d", CPUs: -1}, bad: true},
		{name: "two nodes", spec: Spec{Dir: "d", Nodes: 2}},
		{name: "nodes with a CPU too many", spec: Spec{Dir: "d", Nodes: 2, CPUs: 3}, bad: true},
		{name: "nodes of unequal memory", spec: Spec{Dir: "d", Nodes: 3}, bad: true},
		{name: "nodes without backends", spec: Spec{Dir: "d", Nodes: 2, Backend: Anonymous}, bad: true},
		{name: "unknown chipset", spec: Spec{Dir: "d", Chipset: "isapc"}, bad: true},
		{name: "a switch without PCI Express", spec: Spec{Dir: "d", Chipset: I440FX, Switch: true}, bad: true},
		{name: "unknown accelerator", spec: Spec{Dir: "d", Accel: "warp"}, bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := c.spec.withDefaults(); (err != nil) != c.bad {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestArgv(t *testing.T) {
	s, err := Spec{
		Install: Install{Kernel: "/k"}, Dir: "/d", Slots: 2, IOMMU: true, QMPSocket: "/run/a,b",
		Cmdline: "more", Args: []string{"-S"},
	}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	argv := s.argv("/d/console.log", "/d/initrd")
	line := strings.Join(argv, " ")
	for _, want := range []string{
		"-object memory-backend-memfd,share=on,id=ram0,size=1073741824B",
		"path=/run/a,,b",
		"-device pcie-root-port,id=rp0,bus=pcie.0,addr=0x4,chassis=1,slot=1,pref64-reserve=1073741824B",
		"-device pcie-root-port,id=rp1,bus=pcie.0,addr=0x5,chassis=2,slot=2,",
		"-append console=ttyS0 quiet panic=-1 mitigations=off no_timer_check intel_iommu=on more",
		" -S",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in\n%s", want, line)
		}
	}
	if i, p := strings.Index(line, "intel-iommu"), strings.Index(line, "pcie-root-port"); i < 0 || i > p {
		t.Errorf("the IOMMU is not ahead of the ports:\n%s", line)
	}
	s.IOMMU = false
	if strings.Contains(strings.Join(s.argv("", ""), " "), "iommu") {
		t.Error("IOMMU without being asked for")
	}
}

// The arguments that the fields for other machines change.
func TestMachines(t *testing.T) {
	for _, c := range []struct {
		name     string
		spec     Spec
		has, not string
		path     string // of slot 1
	}{
		{
			name: "i440fx", spec: Spec{Chipset: I440FX}, path: "/sys/bus/pci/devices/0000:00:05.0/0000:*", not: "pcie.0",
			has: "-device pci-bridge,id=rp1,bus=pci.0,addr=0x5,chassis_nr=2,pref64-reserve=1073741824B",
		},
		{
			name: "switch", spec: Spec{Switch: true}, path: "/sys/bus/pci/devices/0000:00:04.0/0000:*/0000:*:05.0/0000:*",
			has: "-device x3130-upstream,id=switch,bus=uplink -device xio3130-downstream,id=rp0,bus=switch,addr=0x4,chassis=1,slot=1",
		},
		{name: "its window", spec: Spec{Switch: true}, has: "-device pcie-root-port,id=uplink,bus=pcie.0,addr=0x4,chassis=25,slot=25,pref64-reserve=2147483648B"},
		{name: "pciehp", spec: Spec{NativeHotPlug: true}, has: "-global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"},
		{name: "no object", spec: Spec{Backend: Anonymous}, has: "-machine q35 ", not: "memory-backend"},
		{name: "private", spec: Spec{Backend: "memory-backend-ram"}, has: "-object memory-backend-ram,id=ram0,size=1073741824B"},
		{
			name: "two nodes", spec: Spec{Nodes: 2}, not: "memory-backend=ram0",
			has: "-object memory-backend-memfd,share=on,id=ram1,size=536870912B " +
				"-numa node,nodeid=0,memdev=ram0,cpus=0-0 -numa node,nodeid=1,memdev=ram1,cpus=1-1",
		},
		{name: "their CPUs", spec: Spec{Nodes: 2}, has: "-smp 2,sockets=2 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.spec.Dir, c.spec.Slots = "/d", 2
			s, err := c.spec.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			line := strings.Join(s.argv("/d/console.log", "/d/initrd"), " ")
			if !strings.Contains(line, c.has) {
				t.Errorf("no %q in\n%s", c.has, line)
			}
			if c.not != "" && strings.Contains(line, c.not) {
				t.Errorf("%q in\n%s", c.not, line)
			}
			if got := s.SlotPath(1); c.path != "" && got != c.path {
				t.Errorf("slot 1 is at %s, want %s", got, c.path)
			}
		})
	}
}

func TestLocate(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("DXPU_CACHE", cache)
	t.Setenv("DXPU_QEMU", "")
	t.Setenv("PATH", "")
	steps := []struct{ file, remedy string }{
		{"qemu/bin/qemu-system-x86_64", "install-qemu.sh"},
		{"guest/vmlinuz", "build-guest.sh"},
		{"guest/initramfs.cpio", "build-guest.sh"},
	}
	for _, s := range steps {
		if _, err := Locate(); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), s.remedy) {
			t.Errorf("without %s: %v", s.file, err)
		}
		name := filepath.Join(cache, s.file)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	i, err := Locate()
	if err != nil || i.QEMU != filepath.Join(cache, steps[0].file) {
		t.Errorf("got %+v, %v", i, err)
	}
	if _, err := LocateGuest("bookworm-cloud"); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "build-guest.sh bookworm-cloud") {
		t.Errorf("another guest: %v", err)
	}
	t.Setenv("DXPU_QEMU", filepath.Join(cache, "guest/vmlinuz"))
	if i, err := Locate(); err != nil || i.QEMU != filepath.Join(cache, "guest/vmlinuz") {
		t.Errorf("named: %+v, %v", i, err)
	}
	t.Setenv("DXPU_QEMU", "/nowhere")
	if _, err := Locate(); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("named and missing: %v", err)
	}
}

// cpio(5), "New ASCII Format": magic, 13 numbers of 8 hexadecimal digits, the name with its
// zero; header with name and data padded to 4 bytes.
func TestInitramfs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for n := range 6 { // lengths around the alignment
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			base := write("base", strings.Repeat("b", n))
			file := write("file", strings.Repeat("f", n))
			var b bytes.Buffer
			if err := writeInitramfs(&b, base, []File{{Path: "/a/b", Source: file}, {Path: "/a/c", Source: file, Mode: 0o640}}); err != nil {
				t.Fatal(err)
			}
			rest := b.Bytes()[(n+3)/4*4:]
			var got []string
			for len(rest) > 0 {
				var name, data string
				var mode uint64
				name, mode, data, rest = member(t, rest)
				got = append(got, fmt.Sprintf("%s %o %d", name, mode, len(data)))
			}
			want := []string{
				"a 40755 0", fmt.Sprintf("a/b 100755 %d", n), fmt.Sprintf("a/c 100640 %d", n), "TRAILER!!! 0 0",
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %q\nwant %q", got, want)
			}
		})
	}
	for _, p := range []string{"", "/", "a", "/a/", "/a/../b"} {
		if err := writeInitramfs(&bytes.Buffer{}, write("base", ""), []File{{Path: p, Source: write("file", "")}}); err == nil {
			t.Errorf("guest path %q: no error", p)
		}
	}
	if err := writeInitramfs(&bytes.Buffer{}, write("base", ""), []File{{Path: "/a", Source: dir}}); err == nil {
		t.Error("a directory as a file: no error")
	}
	if err := writeInitramfs(&bytes.Buffer{}, filepath.Join(dir, "none"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no base: %v", err)
	}
}

// member reads one member of an archive.
func member(t *testing.T, b []byte) (name string, mode uint64, data string, rest []byte) {
	t.Helper()
	const header = 6 + 13*8
	if len(b) < header || string(b[:6]) != "070701" {
		t.Fatalf("not a header: %.40q", b)
	}
	if _, err := hex.DecodeString(string(b[6:header])); err != nil {
		t.Fatal(err)
	}
	field := func(i int) uint64 {
		n, err := strconv.ParseUint(string(b[6+8*i:14+8*i]), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	size, nameSize := int(field(6)), int(field(11))
	start := (header + nameSize + 3) / 4 * 4
	end := (start + size + 3) / 4 * 4
	if len(b) < end || b[header+nameSize-1] != 0 {
		t.Fatalf("member is cut: %d of %d bytes", len(b), end)
	}
	return string(b[header : header+nameSize-1]), field(1), string(b[start : start+size]), b[end:]
}

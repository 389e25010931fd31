package vm_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// clDir is the directory of OpenCL programs, of the driver and of their libraries in the
// guest.
const (
	clDir    = "/opt/opencl"
	clDriver = clDir + "/libdxpu-opencl.so"
)

// clPrograms returns the programs of TestOpenCL for the guest, or skips the test.
func clPrograms(t *testing.T) (files []qemu.File, program string) {
	t.Helper()
	for _, needed := range []string{"/etc/OpenCL/vendors/pocl.icd", "/usr/include/CL/cl_icd.h", "/usr/bin/clinfo", "/usr/bin/cc"} {
		if _, err := os.Stat(needed); err != nil {
			t.Skipf("no OpenCL platform, headers, clinfo or compiler (%v): run scripts/install-tools.sh", err)
		}
	}
	dir := t.TempDir()
	program = filepath.Join(dir, "program")
	lost := filepath.Join(dir, "lost")
	for _, build := range []*exec.Cmd{
		exec.Command("make", "-s", "-C", "../..", "icd", "ICDOUT="+dir),
		exec.Command("cc", "-O1", "-o", program, "../../icd/testdata/program.c", "-l:libOpenCL.so.1"),
		exec.Command("cc", "-O1", "-o", lost, "../../icd/testdata/lost.c", "-l:libOpenCL.so.1"),
	} {
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", build.Args, err, out)
		}
	}
	files, err := qemu.ProgramFiles(t.Context(), clDir, program, lost, "/usr/bin/clinfo")
	if err != nil {
		t.Fatal(err)
	}
	return append(files, qemu.File{Path: clDriver, Source: filepath.Join(dir, "libdxpu-opencl.so")}), program
}

// TestOpenCL runs unmodified OpenCL programs in a guest, on the OpenCL device of a box behind a
// hot-plugged GPU, by VFIO.
func TestOpenCL(t *testing.T) {
	files, program := clPrograms(t)
	native, err := exec.CommandContext(t.Context(), program).Output()
	if err != nil {
		t.Fatal(err)
	}
	g := boot(t, qemu.Spec{IOMMU: true, Files: files})
	c := &cluster{t: t, g: g}
	c.startManager()
	c.start("box", "box", "--manager", c.url, "--name", "box", "--opencl")
	c.start("host", "host", "--manager", c.url, "--name", "host", "--slots", "1", "--socket-dir", g.dir, "--state-dir", t.TempDir(), "--qmp", g.qmp)
	c.says("host +connected", "get", "hosts")
	c.says("box +[a-z-]+ +connected", "get", "boxes")
	run := func(program string) string {
		return fmt.Sprintf("OCL_ICD_VENDORS=%s %s", clDriver, qemu.ProgramCommand(clDir, program))
	}
	if out, exit := g.try(t, "%s", run(program)); exit == 0 {
		t.Errorf("without a GPU, the program prints\n%s", out)
	}
	c.dxpu("lease", "create", "--host", "host", "--wait", "--timeout", patience.String())
	address := g.plugged(t, 0)
	g.sh(t, "echo vfio-pci >/sys/bus/pci/devices/%s/driver_override; echo %s >/sys/bus/pci/drivers_probe", address, address)
	if out := g.sh(t, "%s", run(program)); out != strings.TrimSpace(string(native)) {
		t.Errorf("in the guest\n%s\nnatively\n%s", out, native)
	}
	if out, exit := g.try(t, `su -s /bin/sh %s -c "%s"`, unprivileged, run("program")); exit == 0 || !strings.Contains(out, "permission denied: make this user the owner") {
		t.Errorf("a user without the group: status %d: %s", exit, out)
	}
	// A user who owns the group needs no privilege but locked memory: less than the aperture
	// of 64 MiB will do.
	g.sh(t, "chown %s /dev/vfio/$(basename $(readlink /sys/bus/pci/devices/%s/iommu_group))", unprivileged, address)
	out := g.sh(t, `ulimit -l 8192; su -s /bin/sh %s -c "%s --raw; %s"`, unprivileged, run("clinfo"), run(program))
	if !regexp.MustCompile(`CL_PLATFORM_NAME +DxPU`).MatchString(out) || !strings.HasSuffix(out, strings.TrimSpace(string(native))) {
		t.Errorf("clinfo and the program print\n%s", out)
	}
	// The GPU is taken from a program in use, which lets it go.
	j := g.start(t, "%s", run("lost"))
	j.says(t, "in use")
	c.dxpu("lease", "delete", c.lease(), "--wait")
	g.unplugged(t, address)
	if exit := j.wait(t); exit != 0 || !strings.Contains(j.out.String(), "lost -2, then -2") {
		t.Errorf("status %d: %s", exit, j.out.String())
	}
	g.healthy(t)
}

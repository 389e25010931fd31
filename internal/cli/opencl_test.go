package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptCondition knows "opencl": this machine has what build-opencl needs, and an
// OpenCL platform.
func scriptCondition(name string) (bool, error) {
	if name != "opencl" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	for _, program := range []string{"cc", "clinfo"} {
		if _, err := exec.LookPath(program); err != nil {
			return false, nil
		}
	}
	for _, file := range []string{"/usr/include/CL/cl_icd.h", "/etc/OpenCL/vendors/pocl.icd"} {
		if _, err := os.Stat(file); err != nil {
			return false, nil
		}
	}
	return true, nil
}

// buildOpenCL builds into a directory the engine's program, the driver, and, with
// sanitizers, the driver (sanitized.so, and threads.so) and the programs of icd/testdata.
func buildOpenCL(ts *testscript.TestScript, _ bool, args []string) {
	root, err := filepath.Abs("../..")
	ts.Check(err)
	bin := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(bin, 0o755))
	sources, err := filepath.Glob(filepath.Join(root, "icd/src/*.c"))
	ts.Check(err)
	flags := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}
	sanitize := append(slices.Clone(flags), "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
	library := func(name string, flags []string) *exec.Cmd {
		args := slices.Concat(flags, []string{"-fPIC", "-fvisibility=hidden", "-shared", "-o", filepath.Join(bin, name)}, sources)
		return exec.Command("cc", args...)
	}
	program := func(name string) *exec.Cmd {
		args := append(slices.Clone(sanitize), "-o", filepath.Join(bin, name), filepath.Join(root, "icd/testdata", name+".c"), "-l:libOpenCL.so.1")
		return exec.Command("cc", args...)
	}
	race := append(slices.Clone(flags), "-fsanitize=thread")
	threads := exec.Command("cc", append(slices.Clone(race), "-o", filepath.Join(bin, "threads"), filepath.Join(root, "icd/testdata/threads.c"), "-l:libOpenCL.so.1")...)
	for _, c := range []*exec.Cmd{
		exec.Command("go", "build", "-o", bin, "./cmd/dxpu-opencl"),
		library(driverName, flags),
		library("sanitized.so", sanitize),
		library("threads.so", race),
		threads,
		program("events"),
		program("program"),
		program("fault"),
		program("fork"),
		program("hostile"),
		program("errors"),
		program("edges"),
		program("images"),
		program("include"),
		program("lost"),
		program("absent"),
		program("first"),
		program("turns"),
		program("groups"),
		program("subgroups"),
		program("svm"),
		program("move"),
		exec.Command("cc", slices.Concat(flags, []string{
			"-fPIC", "-fvisibility=hidden", "-shared", "-o", filepath.Join(bin, "narrow.so"), filepath.Join(root, "icd/testdata/narrow.c"),
		})...),
	} {
		c.Dir = root
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			ts.Fatalf("%v: %v: %s", c.Args, err, out)
		}
	}
}

package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

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

// openclBuilder returns the command build-opencl, which puts into a directory links to the
// engine's program, the driver, and, with sanitizers, the driver (sanitized.so, and
// threads.so) and the programs of icd/testdata. They are built once for all scripts.
func openclBuilder(t *testing.T) func(*testscript.TestScript, bool, []string) {
	dir := t.TempDir()
	build := sync.OnceValue(func() error { return buildOpenCL(dir) })
	return func(ts *testscript.TestScript, _ bool, args []string) {
		ts.Check(build())
		bin := ts.MkAbs(args[0])
		ts.Check(os.MkdirAll(bin, 0o755))
		built, err := os.ReadDir(dir)
		ts.Check(err)
		for _, f := range built {
			ts.Check(os.Link(filepath.Join(dir, f.Name()), filepath.Join(bin, f.Name())))
		}
	}
}

func buildOpenCL(bin string) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	sources, err := filepath.Glob(filepath.Join(root, "icd/src/*.c"))
	if err != nil {
		return err
	}
	flags := []string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"}
	sanitize := append(slices.Clone(flags), "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
	library := func(name string, flags []string) *exec.Cmd {
		args := slices.Concat(flags, []string{"-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-Bsymbolic", "-o", filepath.Join(bin, name)}, sources)
		return exec.Command("cc", args...)
	}
	program := func(name string) *exec.Cmd {
		args := append(slices.Clone(sanitize), "-o", filepath.Join(bin, name), filepath.Join(root, "icd/testdata", name+".c"), "-l:libOpenCL.so.1")
		return exec.Command("cc", args...)
	}
	race := append(slices.Clone(flags), "-fsanitize=thread")
	raced := func(name, source string) *exec.Cmd {
		args := append(slices.Clone(race), "-o", filepath.Join(bin, name), filepath.Join(root, "icd/testdata", source), "-l:libOpenCL.so.1")
		return exec.Command("cc", args...)
	}
	for _, c := range []*exec.Cmd{
		exec.Command("go", "build", "-o", bin, "./cmd/dxpu-opencl"),
		library(driverName, flags),
		library("sanitized.so", sanitize),
		library("threads.so", race),
		raced("threads", "threads.c"),
		raced("random-threads", "random.c"),
		program("random"),
		program("events"),
		program("program"),
		program("fault"),
		program("fork"),
		program("hostile"),
		program("errors"),
		program("edges"),
		program("create"),
		program("images"),
		program("include"),
		program("lost"),
		program("absent"),
		program("codes"),
		program("counts"),
		program("queries"),
		program("pixels"),
		program("builds"),
		program("first"),
		program("turns"),
		program("groups"),
		program("subgroups"),
		program("extensions"),
		program("timers"),
		program("waits"),
		program("svm"),
		program("move"),
		exec.Command("cc", slices.Concat(flags, []string{
			"-fPIC", "-fvisibility=hidden", "-shared", "-o", filepath.Join(bin, "narrow.so"), filepath.Join(root, "icd/testdata/narrow.c"),
		})...),
	} {
		c.Dir = root
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", c.Args, err, out)
		}
	}
	return nil
}

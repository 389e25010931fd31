package hook

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the expected call logs in testdata anew")

// rig is what the tests build: the library, the fake driver, and programs.
type rig struct {
	dir string // of everything built
	cc  string
}

var errNoCC = errors.New("no C compiler: cc is not in PATH")

// buildOnce builds for the first test that needs it: fuzzing workers do not.
var buildOnce = sync.OnceValues(func() (rig, error) {
	dir, err := os.MkdirTemp("", "dxpu-hook")
	if err != nil {
		return rig{}, err
	}
	built = dir
	return buildRig(dir)
})

// built is what TestMain removes; "" where nothing was built.
var built string

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

func buildRig(dir string) (rig, error) {
	r := rig{dir: dir}
	var err error
	if r.cc, err = exec.LookPath("cc"); err != nil {
		return r, errNoCC
	}
	if err := r.buildHook(filepath.Join(dir, "hook"), ""); err != nil {
		return r, err
	}
	if err := r.fake(filepath.Join(dir, "fake"), ""); err != nil {
		return r, err
	}
	// A driver of CUDA 11.4: one resolver, and none of the calls of 12 and 13.
	if err := r.fake(filepath.Join(dir, "old"), "{ local: cuGetProcAddress_v2; cuMemcpyBatchAsync*; cuLaunchKernelEx*; cuMemcpy3DBatchAsync*; cuMemcpy3DWithAttributesAsync*;"+
		" cuMemPrefetchAsync_v2*; cuMemPrefetchBatchAsync*; cuMemDiscardAndPrefetchBatchAsync*; cuGraphAddNode*; cuGraphNodeGetParams; };"); err != nil {
		return r, err
	}
	if err := command(".", r.cc, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "testdata/constructor.c", "-o", filepath.Join(dir, "constructor.so"), "-ldl"); err != nil {
		return r, err
	}
	if err := r.program(filepath.Join(dir, "program"), "-ldl"); err != nil {
		return r, err
	}
	return r, r.program(filepath.Join(dir, "linked"), "-DWAY_LINK", "-L"+filepath.Join(dir, "hook"), "-lcuda", "-ldl")
}

// library builds libcuda.so.1 in the folder by the Makefile.
func (r rig) buildHook(dir, flags string) error {
	return command("..", "make", "-f", "hook/Makefile", "hook", "HOOKOUT="+dir, "CC="+r.cc, "CFLAGS="+flags)
}

func (r rig) fake(dir, versionScript string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	generated := filepath.Join(r.dir, "hook")
	args := []string{
		"-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared",
		"-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-Wl,-z,defs",
		"-Itestdata/fake", "-Isrc", "-I" + generated, "testdata/fakecuda.c", "testdata/fakecopies.c", "testdata/fakegraph.c",
		filepath.Join(generated, "symbols.c"), filepath.Join(generated, "trampolines.S"),
		"-o", filepath.Join(dir, Library), "-ldl", "-pthread",
	}
	if versionScript != "" {
		script := filepath.Join(dir, "script")
		if err := os.WriteFile(script, []byte(versionScript), 0o644); err != nil {
			return err
		}
		args = append(args, "-Wl,--version-script="+script)
	}
	return command(".", r.cc, args...)
}

func (r rig) program(out string, flags ...string) error {
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-Isrc", "-Itestdata/fake", "testdata/program.c", "testdata/late.c", "-o", out, "-pthread", "-rdynamic"}, flags...)
	return command(".", r.cc, args...)
}

// has reports whether the compiler can make any program with these flags.
func (r rig) has(t *testing.T, flags string) error {
	source := filepath.Join(t.TempDir(), "empty.c")
	if err := os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return command(".", r.cc, append(strings.Fields(flags), source, "-o", source+".out")...)
}

func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// needRig returns what was built, or skips where there is no compiler.
func needRig(t testing.TB) rig {
	t.Helper()
	r, err := buildOnce()
	if errors.Is(err, errNoCC) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ways are how the test programs find the driver: the program, its argument.
var ways = []struct{ name, program, arg string }{
	{"linked", "linked", "l"},
	{"dlsym", "program", "d"},
	{"cuGetProcAddress", "program", "v1"},
	{"cuGetProcAddress_v2", "program", "v2"},
}

// run is one run of a test program.
type run struct {
	program, way, scenario string
	driver                 string   // folder of the driver, "fake" if empty
	bare                   bool     // without the library
	env                    []string // settings
	hookDir                string   // "hook" if empty
}

type result struct {
	out, errOut string
	log         []string // calls that reached the driver
}

// do runs the program and fails the test unless it succeeds.
func (r rig) do(t testing.TB, x run) result {
	t.Helper()
	dirs := []string{filepath.Join(r.dir, cmp.Or(x.hookDir, "hook")), filepath.Join(r.dir, cmp.Or(x.driver, "fake"))}
	if x.bare {
		dirs = dirs[1:]
	}
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.CommandContext(t.Context(), filepath.Join(r.dir, cmp.Or(x.program, "program")), cmp.Or(x.way, "v2"), x.scenario)
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + strings.Join(dirs, ":"), "FAKE_LOG=" + log, "PATH=" + os.Getenv("PATH")}, x.env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s %s: %v\n%s%s", x.program, x.way, x.scenario, err, out.String(), errOut.String())
	}
	text, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return result{out.String(), errOut.String(), strings.Split(strings.TrimSpace(string(text)), "\n")}
}

// inject are settings of the paper's slower system, nothing measured.
func inject(more ...string) []string {
	return append([]string{"DXPU_RTT=6.8us", "DXPU_CALIBRATE=0", "DXPU_NATIVE_GBPS=12"}, more...)
}

// calls are the lines of a log without those that resolve names.
func (r result) calls() []string {
	return slices.DeleteFunc(slices.Clone(r.log), func(l string) bool { return strings.HasPrefix(l, "cuGetProcAddress") })
}

func (r result) count(re string) int {
	x, n := regexp.MustCompile(re), 0
	for _, l := range r.log {
		if x.MatchString(l) {
			n++
		}
	}
	return n
}

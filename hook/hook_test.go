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

var rewrite = flag.Bool("rewrite", false, "rewrite the expected call logs in testdata")

// builds holds the results of the build: the library, the fake driver and programs.
type builds struct {
	dir string
	cc  string
}

var errNoCC = errors.New("no C compiler: cc is not in PATH")

// buildOnce builds for the first test that needs it; fuzzing workers do not.
var buildOnce = sync.OnceValues(func() (builds, error) {
	dir, err := os.MkdirTemp("", "dxpu-hook")
	if err != nil {
		return builds{}, err
	}
	builtDir = dir
	return buildAll(dir)
})

// builtDir is the folder that TestMain removes, or "".
var builtDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if builtDir != "" {
		_ = os.RemoveAll(builtDir)
	}
	os.Exit(code)
}

func buildAll(dir string) (builds, error) {
	r := builds{dir: dir}
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
	// A driver of CUDA 11.4: one resolver, without the calls of CUDA 12 and 13.
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

// buildHook builds libcuda.so.1 in the folder with the Makefile.
func (r builds) buildHook(dir, flags string) error {
	return command("..", "make", "-f", "hook/Makefile", "hook", "HOOKOUT="+dir, "CC="+r.cc, "CFLAGS="+flags)
}

func (r builds) fake(dir, versionScript string) error {
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

func (r builds) program(out string, flags ...string) error {
	args := append([]string{"-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-Isrc", "-Itestdata/fake", "testdata/program.c", "testdata/recent.c", "-o", out, "-pthread", "-rdynamic"}, flags...)
	return command(".", r.cc, args...)
}

// has returns an error unless the compiler can build a program with these flags.
func (r builds) has(t *testing.T, flags string) error {
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

// needBuilds returns the builds, or skips the test without a compiler.
func needBuilds(t testing.TB) builds {
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

// ways are the ways in which test programs find the driver.
var ways = []struct{ name, program, arg string }{
	{"linked", "linked", "l"},
	{"dlsym", "program", "d"},
	{"cuGetProcAddress", "program", "v1"},
	{"cuGetProcAddress_v2", "program", "v2"},
}

// run describes one run of a test program.
type run struct {
	program, way, scenario string
	driver                 string   // folder of the driver; "" is "fake"
	bare                   bool     // without the library
	env                    []string // settings
	hookDir                string   // "" is "hook"
}

type result struct {
	out, errOut string
	log         []string // calls that reached the driver
}

// do runs the program. It fails the test unless the program succeeds.
func (r builds) do(t testing.TB, x run) result {
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

// inject returns the settings of the paper's slower system, without calibration.
func inject(more ...string) []string {
	return append([]string{"DXPU_RTT=6.8us", "DXPU_CALIBRATE=0", "DXPU_NATIVE_GBPS=12"}, more...)
}

// calls returns the log without the calls that resolve names.
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

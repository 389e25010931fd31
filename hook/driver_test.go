package hook

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Both versions of the resolver return the driver's answers.
func TestResolution(t *testing.T) {
	r := needBuilds(t)
	x := run{scenario: "resolution", bare: true}
	want := r.do(t, x)
	x.bare, x.env = false, inject()
	if diff := cmp.Diff(want.log, r.do(t, x).log); diff != "" {
		t.Errorf("calls without and with the library:\n%s", diff)
	}
	for _, call := range []string{"cuCtxCreate_v3", "cuCtxCreate_v4"} {
		if n := want.count("^" + call + "$"); n != 1 {
			t.Errorf("%s was called %d times", call, n)
		}
	}
}

// A driver may return addresses that it does not export.
func TestAliases(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways[2:] {
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "every", env: inject("FAKE_ALIAS=1")})
		if n := res.count("^cuLaunch.* dxpu_spin"); n != 6 {
			t.Errorf("%s: %d insertions, want 6", way.name, n)
		}
	}
}

// A driver before CUDA 12 has no second resolver and lacks calls.
func TestOldDriver(t *testing.T) {
	r := needBuilds(t)
	for _, env := range [][]string{nil, inject()} {
		cmd := exec.Command(filepath.Join(r.dir, "program"), "v2", "every")
		cmd.Env = append([]string{"LD_LIBRARY_PATH=" + filepath.Join(r.dir, "hook") + ":" + filepath.Join(r.dir, "old")}, env...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "FAILED cuMemcpyBatchAsync") || strings.Contains(string(out), "FAILED cuMemcpyAsync") {
			t.Errorf("%v\n%s\nwant only the new calls missing", err, out)
		}
	}
	// A program linked to a call that the driver lacks gets an error from it.
	cmd := exec.Command(filepath.Join(r.dir, "linked"), "l", "every")
	cmd.Env = append([]string{"LD_LIBRARY_PATH=" + filepath.Join(r.dir, "hook") + ":" + filepath.Join(r.dir, "old")}, inject()...)
	if out, err := cmd.CombinedOutput(); err == nil || string(out) != "FAILED launch ex\nFAILED batch\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// No entry leads to the driver before the table is complete, because wrappers use
// the functions of other symbols.
func TestTableIsPublishedWhole(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways[:2] {
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "every", env: inject("FAKE_RESOLVER=1")})
		if n := res.count("^entry while the table is filled: 100$"); n != 1 { // CUDA_ERROR_NO_DEVICE
			t.Errorf("%s: the entry reached the driver:\n%s", way.name, strings.Join(res.log[:3], "\n"))
		}
	}
}

// Several threads that make the first call at the same time lose no insertion.
func TestFirstCalls(t *testing.T) {
	r := needBuilds(t)
	for i := range 40 {
		way := ways[i%2]
		stats := filepath.Join(t.TempDir(), "stats")
		r.do(t, run{program: way.program, way: way.arg, scenario: "first", env: inject("FAKE_QUIET=1", "DXPU_STATS="+stats)})
		if s := readStats(t, stats); s.Kernels != 400 || s.Spins != 400 || s.NotReady != 0 || s.Failed != 0 {
			t.Fatalf("%s, run %d: %+v, want 400 kernels and insertions", way.name, i, s)
		}
	}
}

// A constructor may call the driver, under the loader's lock, while another thread
// looks for the driver, which needs that lock.
func TestFirstCallInConstructor(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways[:2] {
		r.do(t, run{program: way.program, way: way.arg, scenario: "loader", env: inject("CONSTRUCTOR=" + filepath.Join(r.dir, "constructor.so"))})
	}
}

// The library does not keep pointers into the program's environment.
func TestChangedEnvironment(t *testing.T) {
	r := needBuilds(t)
	stats := filepath.Join(t.TempDir(), "stats")
	res := r.do(t, run{scenario: "environment", env: inject("DXPU_STATS=" + stats)})
	if res.errOut != "" {
		t.Error(res.errOut)
	}
	if s := readStats(t, stats); s.Spins != 1 {
		t.Errorf("%+v", s)
	}
}

func TestNoDriver(t *testing.T) {
	r := needBuilds(t)
	for _, way := range []string{"program", "linked"} {
		res := r.do(t, run{program: way, way: "d", scenario: "nothing", env: []string{"DXPU_REAL_LIBCUDA=/nowhere/libcuda.so.1"}})
		if !strings.Contains(res.errOut, "/nowhere") {
			t.Errorf("%s: standard error %q", way, res.errOut)
		}
	}
	// The library does not mistake itself or a copy of itself for the driver.
	copied := filepath.Join(t.TempDir(), Library)
	b, err := os.ReadFile(filepath.Join(r.dir, "hook", Library))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, b, 0o755); err != nil {
		t.Fatal(err)
	}
	r.do(t, run{way: "d", scenario: "nothing", env: []string{"DXPU_REAL_LIBCUDA=" + copied}})
	r.do(t, run{way: "d", scenario: "nothing", env: []string{"DXPU_REAL_LIBCUDA=" + filepath.Join(r.dir, "hook", Library)}})
}

// If cuInit fails, the library writes no file and inserts nothing.
func TestInitFails(t *testing.T) {
	r := needBuilds(t)
	dir := t.TempDir()
	r.do(t, run{scenario: "nothing", env: inject("FAKE_INIT_FAILS=1", "DXPU_STATS="+dir+"/s", "DXPU_TRACE="+dir+"/t")})
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 0 {
		t.Errorf("files: %v", files)
	}
}

func TestBadSettings(t *testing.T) {
	r := needBuilds(t)
	for _, tc := range []struct{ name, set, message string }{
		{"no unit", "DXPU_RTT=6.8", "want a time"},
		{"not a time", "DXPU_RTT=fast", "want a time"},
		{"negative", "DXPU_RTT=-1us", "want a time"},
		{"too long", "DXPU_RTT=2s", "want a time"},
		{"below native", "DXPU_RTT=1us", "below DXPU_NATIVE_RTT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			res := r.do(t, run{scenario: "every", env: []string{tc.set}})
			if !strings.Contains(res.errOut, tc.message) || res.count("^cuLaunch.* dxpu_") != 0 {
				t.Errorf("standard error %q", res.errOut)
			}
		})
	}
	for _, tc := range []struct{ set, message string }{
		{"DXPU_TAGS=0", "DXPU_TAGS=0: want a number from 1 to 15360; ignored"},
		{"DXPU_MRRS=1e9", "DXPU_MRRS=1e9: want a number"},
		{"DXPU_GRAPHS=some", "launch, node or none"},
		{"DXPU_SYNCS=yes", "0 or 1"},
		{"DXPU_TRACE=/nowhere/trace", "no trace is written"},
		{"DXPU_STATS=/nowhere/stats", "cannot be written"},
	} {
		t.Run(tc.set, func(t *testing.T) {
			res := r.do(t, run{scenario: "every", env: inject(tc.set)})
			if !strings.Contains(res.errOut, tc.message) || res.count("^cuLaunch.* dxpu_spin") != 6 {
				t.Errorf("standard error %q", res.errOut)
			}
		})
	}
}

// The library exports the symbols of the list under the driver's name.
func TestExports(t *testing.T) {
	r := needBuilds(t)
	f, err := elf.Open(filepath.Join(r.dir, "hook", Library))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if so, err := f.DynString(elf.DT_SONAME); err != nil || len(so) != 1 || so[0] != Library {
		t.Errorf("SONAME %v, %v", so, err)
	}
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(got)
	want := append(listed(t), "dxpu_hook_version")
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("exports:\n%s", diff)
	}
	if len(want) < 700 {
		t.Errorf("only %d symbols", len(want))
	}
}

// listed returns the symbols of symbols.txt, read independently of the generator.
func listed(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	suffix := regexp.MustCompile(`^[^@*+]*`)
	var out []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		for _, form := range f[2:] {
			out = append(out, f[0]+strings.TrimPrefix(suffix.FindString(form), "."))
		}
	}
	return out
}

// The scenarios run clean under the sanitizers.
func TestSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the library twice more")
	}
	r := needBuilds(t)
	for _, tc := range []struct{ name, flags string }{
		{"address", "-fsanitize=address,undefined -fno-sanitize-recover=undefined"},
		{"thread", "-fsanitize=thread"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := r.has(t, tc.flags); err != nil {
				t.Skipf("the compiler has no such sanitizer: %v", err)
			}
			program := filepath.Join(r.dir, tc.name)
			if err := r.program(program, append(strings.Fields(tc.flags), "-ldl")...); err != nil {
				t.Fatal(err)
			}
			r.sanitizedHook(t, tc.name, tc.flags)
			for _, scenario := range []string{"every", "recent", "graph", "conditional", "threads", "first", "fork", "resolution"} {
				res := r.do(t, run{program: tc.name, scenario: scenario, hookDir: "hook-" + tc.name, env: []string{
					"DXPU_RTT=6.8us", "DXPU_TRACE=" + t.TempDir() + "/t.%p", "DXPU_STATS=" + t.TempDir() + "/s.%p",
					"ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1",
				}})
				if res.errOut != "" {
					t.Errorf("%s: %s", scenario, res.errOut)
				}
			}
		})
	}
}

// BenchmarkEntry reports the time of a call through an entry, of a recorded call, and
// of a launch with its insertion, in ns. The case without the library is the time of
// the fake driver.
func BenchmarkEntry(b *testing.B) {
	r := needBuilds(b)
	for _, tc := range []struct {
		name string
		bare bool
		env  []string
	}{
		{"driver", true, nil},
		{"transparent", false, nil},
		{"record", false, []string{"DXPU_TRACE=/dev/null"}},
		{"inject", false, inject()},
	} {
		b.Run(tc.name, func(b *testing.B) {
			for b.Loop() {
				res := r.do(b, run{way: "d", scenario: "bench", bare: tc.bare, env: append([]string{"FAKE_QUIET=1"}, tc.env...)})
				for line := range strings.Lines(res.out) {
					name, v, _ := strings.Cut(strings.TrimSpace(line), " ")
					var ns float64
					if _, err := fmt.Sscan(v, &ns); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(ns, name+"-ns/call")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

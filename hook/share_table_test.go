package hook

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// listedForm is one form of symbols.txt, read without the generator.
type listedForm struct {
	symbol, class string
	version       int // 2000 if it is not known
	shared        bool
}

func listedForms(t *testing.T) []listedForm {
	t.Helper()
	text, err := os.ReadFile("symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []listedForm
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		for _, form := range f[2:] {
			suffix, number, _ := strings.Cut(strings.TrimRight(form, "*+"), "@")
			version, err := strconv.Atoi(number)
			if err != nil {
				version = 2000
			}
			out = append(out, listedForm{f[0] + strings.TrimPrefix(suffix, "."), f[1], version, strings.HasSuffix(form, "+")})
		}
	}
	return out
}

// tableTests returns the table of README.md: the test of each symbol.
func tableTests(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("^\\| (`cu.*`) \\|.*\\| `(Test[A-Za-z]+)` \\|$")
	symbol := regexp.MustCompile("`(cu[A-Za-z0-9_]+)`")
	out := map[string]string{}
	in := bufio.NewScanner(strings.NewReader(string(text)))
	for in.Scan() {
		m := row.FindStringSubmatch(in.Text())
		if m == nil {
			continue
		}
		for _, s := range symbol.FindAllStringSubmatch(m[1], -1) {
			out[s[1]] = m[2]
		}
	}
	return out
}

// Each symbol that allocates or launches is wrapped, and has a test.
func TestShareTable(t *testing.T) {
	tests := tableTests(t)
	files, err := filepath.Glob("share_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, f := range append(files, "share_test.go", "testdata/share.c") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(b)
	}
	for _, f := range listedForms(t) {
		test, ok := tests[f.symbol]
		if f.class != "allocate" && f.class != "launch" {
			if ok {
				t.Errorf("%s is in the table of README.md, but of class %s", f.symbol, f.class)
			}
			continue
		}
		switch {
		case !f.shared:
			t.Errorf("%s is not wrapped in sharing mode", f.symbol)
		case !ok:
			t.Errorf("%s of class %s is not in the table of README.md", f.symbol, f.class)
		case !strings.Contains(code.String(), "func "+test+"("):
			t.Errorf("%s: there is no %s", f.symbol, test)
		case !regexp.MustCompile(`\b` + f.symbol + `\b`).MatchString(code.String()):
			t.Errorf("%s: no test calls it", f.symbol)
		}
	}
	if len(tests) < 35 {
		t.Errorf("the table has only %d symbols", len(tests))
	}
}

// A name that says that the call allocates, launches or maps memory has a class that
// says so too.
func TestShareClasses(t *testing.T) {
	suspect := regexp.MustCompile(`Alloc|Launch|Memcpy|Memset|Synchronize|ImportFrom|ArrayCreate|MemCreate|ModuleLoad|LibraryLoad`)
	harmless := []string{
		"cuLaunchHostFunc", "cuLaunchHostFunc_v2", "cuLaunchHostFunc_ptsz", "cuLaunchHostFunc_v2_ptsz", // of the host
		"cuMemGetAllocationGranularity", "cuMemGetAllocationPropertiesFromHandle", // questions
	}
	for _, f := range listedForms(t) {
		graph := strings.HasPrefix(f.symbol, "cuGraph") && f.class == "other" // nodes, not yet launched
		if suspect.MatchString(f.symbol) && f.class == "other" && !graph && !slices.Contains(harmless, f.symbol) {
			t.Errorf("%s has class other", f.symbol)
		}
	}
}

// No way to look up a call that takes memory or launches leads to the driver's function:
// not the versions of cuGetProcAddress, the forms of the per-thread default stream, another
// address of the function, or a form that is newer than the list.
func TestShareResolution(t *testing.T) {
	x := newSharing(t, 1000)
	var ask, want []string
	add := func(owner, format string, args ...any) {
		ask, want = append(ask, fmt.Sprintf(format, args...)), append(want, owner)
	}
	for _, f := range listedForms(t) {
		if f.class != "allocate" && f.class != "launch" {
			continue
		}
		add("library", "d %s 0 0", f.symbol)
		flags, plain := 0, regexp.MustCompile(`(_v[2-9])?(_pt[ds][sz])?$`).ReplaceAllString(f.symbol, "")
		if strings.HasSuffix(f.symbol, "sz") {
			flags = 2
		}
		for _, version := range []int{f.version, 13000, 14000} {
			add("library", "v1 %s %d %d", plain, version, flags)
			add("library", "v2 %s %d %d", plain, version, flags)
		}
		add("none 500 0", "v1 %s 99000 %d", plain, flags)
		add("none 0 1", "v2 %s 99000 %d", plain, flags)
	}
	// Calls that the list does not know: their names tell what they may do.
	for _, name := range []string{"cuMemAllocTiered", "cuMemCreateTiered", "cuTensorArrayCreate", "cuLaunchTile", "cuGraphLaunchPart", "cuMemImportFromFabric", "cuGraphInstantiateTo", "cuCtxCreateFor"} {
		add("none 500 0", "v1 %s 99000 0", name)
		add("none 0 1", "v2 %s 99000 2", name)
	}
	for _, name := range []string{"cuDeviceGetCount", "cuMemGetAllocationTier", "cuDeviceGetTile", "cuTileEncode"} { // take nothing
		add("driver", "v2 %s 99000 0", name)
	}
	r := needBuilds(t)
	cmd := exec.Command(filepath.Join(r.dir, "resolve"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Join(r.dir, "hook") + ":" + filepath.Join(r.dir, "gpu"), "DXPU_SHARE=" + x.agent.path}
	cmd.Stdin = strings.NewReader(strings.Join(ask, "\n"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(got) != len(ask) || len(ask) < 200 {
		t.Fatalf("%d answers to %d questions", len(got), len(ask))
	}
	for i := range ask {
		if got[i] != want[i] {
			t.Errorf("%s: %s, want %s", ask[i], got[i], want[i])
		}
	}
}

// The C library reads pages and messages as package wire writes them.
func TestShareLayout(t *testing.T) {
	r := needBuilds(t)
	program := filepath.Join(t.TempDir(), "layout")
	if err := command(".", r.cc, "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Isrc", "-I"+filepath.Join(r.dir, "hook"), "testdata/layout.c", "-o", program); err != nil {
		t.Fatal(err)
	}
	page := wire.Page{Closed: true, End: true, Grace: 5, Silence: 6, Agent: 7, GPUs: make([]wire.GPU, wire.MaxGPUs)}
	page.GPUs[wire.MaxGPUs-1] = wire.GPU{UUID: [16]byte{15: 8}, Domain: 9, Address: 10, Gate: wire.Held, Window: 11, Limit: 12, Used: 13, Compute: 14}
	var b [wire.PageSize]byte
	page.Encode(&b)
	m := wire.Message{Type: wire.Launch, GPU: 1, ID: 2, Bytes: 3, Arg: [wire.Args]uint64{0: 4, 4: 5}}
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(string(b[:]) + string(m.Append(nil)))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := "page 1 flags 3 silence 6 grace 5 agent 7 gpus 16\ngpu 8 9 10 gate 2 window 11 limit 12 used 13 compute 14\nmessage 4 1 2 3 4 5\n" +
		"types 1 2 3 4 5 6 7 8 9 10 65 66 67 68 69 70\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Error(diff)
	}
	if wire.Reject != 70 || wire.Usage != 10 {
		t.Error("the numbers of the types have changed")
	}
}

// The parts of the benchmark that need no GPU.
func TestShareBenchmark(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH")
	}
	cmd := exec.Command(python, "-B", "-m", "unittest", "share_test", "stages_test")
	cmd.Dir = "realgpu"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// BenchmarkShareLaunch reports the time of a launch without the library, with an open
// gate, with credit, and with a gate that asks an agent in Go, in ns. The driver's function
// does nothing.
func BenchmarkShareLaunch(b *testing.B) {
	for _, tc := range []struct {
		name string
		bare bool
		gate uint32
		// Launches that may be in flight without permits.
		credit uint32
		n      int
	}{
		{"driver", true, 0, 0, 200_000},
		{"open", false, 0, 0, 200_000},
		{"credit", false, 1, 64, 20_000},
		{"asked", false, 1, 0, 5_000},
	} {
		b.Run(tc.name, func(b *testing.B) {
			x := newSharing(b, 1000, "FAKE_GPU_FREE=1")
			x.bare = tc.bare
			x.agent.set32(gpuGate, tc.gate)
			x.agent.set32(gpuCredit, tc.credit)
			x.agent.set32(gpuWindow, 64)
			p := x.start(b)
			p.do(success, "init")
			for b.Loop() {
				hundredths, _ := p.do(success, "bench x %d", tc.n)
				b.ReportMetric(float64(hundredths)/100, "ns/launch")
			}
			b.ReportMetric(0, "ns/op")
			p.end()
		})
	}
}

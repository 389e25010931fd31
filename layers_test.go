package dxpu_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/dxpu-project/dxpu"

// layer says how high each package stands. A package imports only packages
// below it, or beside it where the pair is listed in beside. ARCHITECTURE.md
// tells what each layer is for.
var layer = map[string]int{
	"pcie": 0,

	"tlp":            1,
	"pcapng":         1,
	"device/gpu/reg": 1,
	"frame":          1,
	"cfgspace":       1,
	"backup":         1,
	"api/dxpu/v1":    1, "api/dxpu/v1/dxpuv1connect": 1,

	"transaction":       2,
	"link":              2,
	"link/linktest":     2,
	"mapping":           2,
	"vswitch":           2,
	"device":            2,
	"device/gpu":        2,
	"device/devicetest": 2,
	"rootcomplex":       2,
	"perf":              2,
	"perf/paper":        2,
	"workload":          2,
	"predict":           2,
	"placement":         2,
	"fault":             2,
	"auth":              2,
	"xid":               2,

	"descriptor": 3,

	"turn":     3,
	"udp":      3,
	"fabric":   3,
	"capture":  3,
	"vfiouser": 3,
	"qmp":      3,
	"qemu":     3,
	"gpudrv":   3, "gpudrv/vfio": 3, "gpudrv/embedded": 3, "gpudrv/gpudrvtest": 3, "gpudrv/vfiouserbus": 3,
	"trace": 3, "trace/sqlite": 3,
	"hook":      3,
	"etcdstore": 3,
	"leaktest":  3,
	"endpoint":  3,

	"hostproxy": 4,
	"boxproxy":  4,
	"manager":   4,
	"web":       4,
	"node":      4,
	"sim":       4,
	"demo":      4,
	"soak":      4,
	"replay":    4,
	"bench":     4, "bench/capacity": 4, "bench/fleet": 4, "bench/store": 4, "bench/process": 3,
	"vmtest":  4,
	"nettest": 4,

	"cli":      5,
	"cmd/dxpu": 6,
	"hook/gen": 6,
	"torture":  6,
}

// beside lists the imports inside one layer that are allowed: importer -> imported.
var beside = map[string][]string{
	"api/dxpu/v1/dxpuv1connect": {"api/dxpu/v1"},
	"device/gpu":                {"device", "transaction"},
	"device/devicetest":         {"device", "transaction"},
	"link/linktest":             {"link", "fault"},
	"vswitch":                   {"mapping", "device"},
	"rootcomplex":               {"transaction"},
	"turn":                      {"descriptor"},
	"udp":                       {"descriptor"},
	"gpudrv/vfio":               {"gpudrv"},
	"gpudrv/embedded":           {"gpudrv", "turn"},
	"vfiouser":                  {"turn", "descriptor"},
	"gpudrv/vfiouserbus":        {"gpudrv", "vfiouser", "turn"},
	"fabric":                    {"udp", "turn", "capture"},
	"gpudrv/gpudrvtest":         {"gpudrv", "gpudrv/embedded"},
	"perf/paper":                {"perf"},
	"predict":                   {"perf", "workload"},
	"trace":                     {"trace/sqlite"},
	"qemu":                      {"qmp"},
	"hostproxy":                 {"node"},
	"boxproxy":                  {"node"},
	"demo":                      {"hostproxy", "node"},
	"replay":                    {"sim"},
	"bench":                     {"hostproxy", "boxproxy", "node", "replay"},
	"bench/capacity":            {"manager", "hostproxy", "boxproxy", "node"},
	"bench/fleet":               {"manager", "node"},
	"bench/store":               {"manager"},
	"soak":                      {"hostproxy", "boxproxy", "node"},
}

// impure are packages that a machine (layers 0 to 2) may not import: they
// bring I/O, clocks or logs.
var impure = []string{"net", "os", "unsafe", "log/slog", "log", "syscall", "os/exec", "os/signal", "net/http"}

func TestImportsPointDown(t *testing.T) {
	for _, f := range goFiles(t) {
		dir := path.Dir(f)
		if dir == "." {
			continue
		}
		from, known := layer[dir]
		if !known {
			t.Errorf("%s: package %s has no layer: add it to layers_test.go", f, dir)
			continue
		}
		test := strings.HasSuffix(f, "_test.go")
		for _, imp := range imports(t, f) {
			generated := strings.HasPrefix(dir, "api/")
			if !test && !generated && from <= 2 && slices.Contains(impure, imp) {
				t.Errorf("%s: a package of layer %d imports %q: machines are pure", f, from, imp)
			}
			rel, ours := strings.CutPrefix(imp, module+"/")
			if !ours || test || rel == dir {
				continue
			}
			to, known := layer[rel]
			if !known {
				t.Errorf("%s: imports %s, which has no layer", f, rel)
				continue
			}
			if to > from || to == from && !slices.Contains(beside[dir], rel) {
				t.Errorf("%s: layer %d imports %s of layer %d", f, from, rel, to)
			}
		}
	}
}

// Machines take now as an argument; only comments may speak of time.Now.
func TestMachinesHaveNoClockOrGoroutine(t *testing.T) {
	for _, f := range goFiles(t) {
		if l, ok := layer[path.Dir(f)]; !ok || l > 2 || strings.HasSuffix(f, "_test.go") {
			continue
		}
		if strings.HasSuffix(f, ".pb.go") || strings.HasSuffix(f, ".connect.go") {
			continue
		}
		src, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(src), "\n") {
			code, _, _ := strings.Cut(line, "//")
			for _, word := range []string{"time.Now(", "time.Sleep(", "time.After(", "go func", "make(chan "} {
				if strings.Contains(code, word) {
					t.Errorf("%s:%d: %s in a pure machine", f, n+1, word)
				}
			}
		}
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	has := map[string]int{}
	for _, f := range goFiles(t) {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		has[path.Dir(f)] += 0
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if file.Doc != nil {
			has[path.Dir(f)]++
		}
	}
	for dir, n := range has {
		if n != 1 {
			t.Errorf("package %s has %d package comments, want 1", dir, n)
		}
	}
}

func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "out" || p != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(p, ".go") {
			files = append(files, filepath.ToSlash(p))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func imports(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

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
	"pcie":              0,
	"machine":           0,
	"internal/quantile": 0,
	"internal/plural":   0,

	"tlp":                   1,
	"device/gpu/reg":        1,
	"frame":                 1,
	"cfgspace":              1,
	"internal/pool/backup":  1,
	"internal/sharing/wire": 1,
	"internal/opencl/move":  1,
	"api/dxpu/v1":           1, "api/dxpu/v1/dxpuv1connect": 1,

	"internal/dataplane/engine":      2,
	"internal/dataplane/transaction": 2,
	"internal/dataplane/migration":   2,
	"link":                           2,
	"link/linktest":                  2,
	"internal/dataplane/mapping":     2,
	"internal/embedded/vswitch":      2,
	"device":                         2,
	"device/gpu":                     2,
	"device/virtio":                  2,
	"device/virtio/virtiotest":       2,
	"device/devicetest":              2,
	"internal/boxproxy/controller":   2,
	"internal/embedded/rootcomplex":  2,
	"internal/model/perf":            2,
	"internal/model/network":         2,
	"internal/model/perf/paper":      2,
	"internal/model/workload":        2,
	"internal/model/predict":         2,
	"internal/pool/defrag":           2,
	"internal/pool/placement":        2,
	"fault":                          2,
	"share":                          2,
	"share/plant":                    2,
	"share/scenario":                 2,
	"share/dispatch":                 2,
	"share/meter":                    2,
	"internal/sharing/gate":          2,
	"internal/sharing/broker":        2,
	"internal/sharing/offer":         2,
	"internal/pool/auth":             2,
	"internal/pool/gpuerr":           2,
	"internal/sharing/mps":           2,
	"internal/sharing/mig":           2,
	"internal/pool/revision":         0,
	"internal/atomicfile":            3,
	"internal/dirlock":               3,
	"internal/yamltext":              0,
	"internal/loglimit":              3,
	"internal/httpserver":            3,

	"internal/rawio/fd": 3, "internal/rawio/eventfd": 3, "internal/rawio/rights": 3, "internal/rawio/rights/rightstest": 3,

	"internal/rawio/reader":          3,
	"internal/dataplane/udp":         3,
	"internal/dataplane/netio":       3,
	"internal/dataplane/capture":     3,
	"vfiouser":                       3,
	"device/vfioserver":              3,
	"device/vhostuser":               3,
	"device/vhostuser/vhostusertest": 3,
	"device/opencl":                  3,
	"internal/opencl/cl":             3,
	"internal/opencl/session":        3,
	"internal/opencl/ring":           3,
	"internal/vm/qmp":                3,
	"internal/vm/qemu":               3,
	"device/gpu/driver":              3, "device/gpu/driver/vfio": 3, "internal/embedded": 3, "device/gpu/driver/drivertest": 3, "device/gpu/driver/vfiouserbus": 3,
	"internal/model/trace": 3, "internal/model/trace/sqlite": 3,
	"internal/model/cluster":  3,
	"hook":                    3,
	"internal/pool/etcdstore": 3,
	"internal/pool/oidc":      3, "internal/pool/oidc/oidctest": 3,
	"internal/sharing/nvidia": 3, "internal/sharing/nvidiatest": 3,
	"internal/leaktest": 3,
	"internal/fdstore":  3,
	"client":            3,

	"internal/hostproxy":            4,
	"internal/hostproxy/controller": 2,
	"internal/boxproxy":             4,
	"internal/pool/manager":         4,
	"internal/pool/web":             4,
	"internal/pool/cohdi":           4,
	"internal/agent":                4,
	"internal/sharing/agent":        4,
	"internal/sharing/member":       4,
	"internal/sharing/gpus":         3,
	"internal/agent/simulated":      4,
	"internal/localpool":            4,
	"internal/agent/agenttest":      2,
	"internal/sim":                  4,
	"internal/demo":                 4,
	"internal/soak":                 4,
	"internal/model/playback":       4,
	"internal/bench":                4, "internal/bench/capacity": 4, "internal/bench/fleet": 4, "internal/bench/store": 4, "internal/bench/process": 3,
	"test/vm":        4,
	"test/namespace": 3,
	"test/network":   4,

	"internal/cli":           5,
	"cmd/dxpu":               6,
	"cmd/dxpu-opencl":        6,
	"internal/tools/prose":   6,
	"internal/tools/release": 6,
	"hook/gen":               6,
	"test/mutation":          6,
	"test/conformance":       6,
	"test/torture":           6,
	// A module of its own.
	"deploy/kubernetes/internal/devicedata":  0,
	"deploy/kubernetes/internal/performance": 1,
	"deploy/kubernetes/internal/claims":      2,
	"deploy/kubernetes/internal/inventory":   2,
	"deploy/kubernetes/internal/cdi":         3,
	"deploy/kubernetes/internal/pool":        3,
	"deploy/kubernetes/internal/kubevirt":    3,
	"deploy/kubernetes/internal/kubetest":    4,
	"deploy/kubernetes/internal/controller":  4,
	"deploy/kubernetes/internal/plugin":      4,
	"deploy/kubernetes/cmd/dxpu-dra":         6,
	"deploy/kubernetes/test":                 6,
}

// beside lists the imports inside one layer that are allowed: importer -> imported.
var beside = map[string][]string{
	"internal/hostproxy/controller": {"internal/dataplane/engine", "link"},
	"api/dxpu/v1/dxpuv1connect":     {"api/dxpu/v1"},
	"device/gpu":                    {"device", "internal/dataplane/transaction", "share"},
	"device/virtio":                 {"device", "internal/dataplane/transaction"},
	"internal/boxproxy/controller":  {"link", "internal/dataplane/engine"},
	"device/devicetest":             {"device", "internal/dataplane/transaction"},
	"link/linktest":                 {"link", "fault"},
	"internal/dataplane/engine":     {"link"},
	"share/plant":                   {"share"},
	"internal/sharing/mig":          {"share"},
	"internal/sharing/mps":          {"share", "internal/pool/gpuerr"},
	"share/dispatch":                {"share", "share/meter"},
	"share/meter":                   {"share"},
	"internal/sharing/gate":         {"share", "share/meter"},
	"internal/sharing/broker":       {"share", "internal/sharing/gate"},
	"internal/sharing/offer":        {"share"},
	"internal/pool/etcdstore":       {"internal/dirlock"},
	"internal/sharing/nvidia":       {"internal/dirlock"},
	"internal/httpserver":           {"internal/loglimit"},
	"internal/sharing/member":       {"internal/agent"},
	"share/scenario":                {"share", "share/plant", "internal/model/workload"},
	"internal/embedded/vswitch":     {"internal/dataplane/mapping", "internal/dataplane/transaction", "device"},
	"internal/embedded/rootcomplex": {"internal/dataplane/transaction"},
	"internal/rawio/reader":         {"internal/rawio/fd"},
	"internal/rawio/rights":         {"internal/rawio/eventfd"},
	"internal/vm/qmp":               {"internal/rawio/rights"},
	"internal/dataplane/udp":        {"internal/rawio/fd"},
	"device/gpu/driver/vfio":        {"device/gpu/driver"},
	"internal/embedded":             {"device/gpu/driver", "internal/rawio/reader"},
	"device/vfioserver":             {"vfiouser", "internal/rawio/rights"},
	"device/vhostuser":              {"internal/rawio/eventfd", "internal/rawio/rights"},
	"device/opencl":                 {"internal/opencl/ring", "internal/rawio/reader", "internal/rawio/fd", "internal/rawio/rights"},
	"internal/opencl/ring":          {"internal/rawio/reader", "internal/rawio/rights"},
	"internal/opencl/session":       {"internal/opencl/cl", "internal/rawio/reader"},
	"vfiouser":                      {"internal/rawio/reader", "internal/rawio/fd", "internal/rawio/eventfd", "internal/rawio/rights"},
	"device/gpu/driver/vfiouserbus": {"device/gpu/driver", "vfiouser", "internal/rawio/reader"},
	"internal/dataplane/netio":      {"internal/dataplane/udp", "internal/rawio/reader", "internal/dataplane/capture"},
	"device/gpu/driver/drivertest":  {"device/gpu/driver", "internal/embedded"},
	"internal/model/perf/paper":     {"internal/model/perf"},
	"internal/model/network":        {"internal/model/perf"},
	"internal/model/predict":        {"internal/model/perf", "internal/model/workload"},
	"internal/model/trace":          {"internal/model/trace/sqlite"},
	"internal/vm/qemu":              {"internal/vm/qmp"},
	"internal/hostproxy":            {"internal/agent"},
	"internal/boxproxy":             {"internal/agent"},
	"internal/agent/simulated":      {"internal/agent"},
	"internal/demo":                 {"internal/hostproxy", "internal/agent", "internal/localpool"},
	"internal/localpool":            {"internal/agent/simulated"},
	"internal/model/playback":       {"internal/sim"},
	"internal/sim":                  {"internal/hostproxy", "internal/boxproxy", "internal/agent"},
	"internal/bench":                {"internal/hostproxy", "internal/boxproxy", "internal/agent", "internal/model/playback"},
	"internal/bench/capacity":       {"internal/pool/manager", "internal/hostproxy", "internal/boxproxy", "internal/agent"},
	"internal/bench/fleet":          {"internal/pool/manager", "internal/agent/simulated"},
	"internal/bench/store":          {"internal/pool/manager"},
	"internal/soak":                 {"internal/hostproxy", "internal/boxproxy", "internal/agent"},
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

// A file has at most 500 lines, whatever its language.
func TestFilesAreShort(t *testing.T) {
	const most = 500
	for _, f := range sourceFiles(t, ".go", ".c", ".h", ".sh") {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(raw), "\n"); n > most && !strings.HasPrefix(f, "api/") { // api is generated
			t.Errorf("%s has %d lines, want at most %d", f, n, most)
		}
	}
}

func goFiles(t *testing.T) []string {
	t.Helper()
	return sourceFiles(t, ".go")
}

// sourceFiles returns the files of this repository with some extensions.
func sourceFiles(t *testing.T, extensions ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "bin" || d.Name() == "out" || p != "." && strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if slices.Contains(extensions, path.Ext(filepath.ToSlash(p))) {
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

// TestLinterKnowsPureMachines keeps the depguard rule of .golangci.yml, for
// those who run golangci-lint, the same as layers 0 to 2 of this file.
func TestLinterKnowsPureMachines(t *testing.T) {
	config, err := os.ReadFile(".golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	for dir, l := range layer {
		listed := strings.Contains(string(config), `"**/`+dir+`/*.go"`)
		if want := l <= 2 && !strings.HasPrefix(dir, "api/"); listed != want {
			t.Errorf("%s of layer %d: in the rule \"pure\" of .golangci.yml: %v, want %v", dir, l, listed, want)
		}
	}
}

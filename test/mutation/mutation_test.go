package mutation

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	mutate  = flag.Bool("mutate", false, "put each fault in and run its test")
	rewrite = flag.Bool("rewrite", false, "write docs/mutations.md")
)

const (
	root     = "../.."
	listFile = "testdata/mutations.txt"
	document = root + "/docs/mutations.md"
	// minFaults is the number of faults that the list has at least.
	minFaults = 30
)

// fault is a deliberate fault and the test that notices it.
type fault struct {
	name, file, pkg, test string
	old, new              string
}

// readFaults reads the list.
func readFaults(t *testing.T) []*fault {
	t.Helper()
	raw, err := os.ReadFile(listFile)
	if err != nil {
		t.Fatal(err)
	}
	var out []*fault
	f := &fault{}
	for i, line := range strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		switch {
		case kind == "==":
			f = &fault{name: rest}
			out = append(out, f)
		case kind == "file":
			f.file = rest
		case kind == "test":
			f.pkg, f.test, _ = strings.Cut(rest, " ")
		case strings.HasPrefix(line, "-"):
			f.old += "\n" + line[1:]
		case strings.HasPrefix(line, "+"):
			f.new += "\n" + line[1:]
		default:
			t.Fatalf("%s:%d: %q is neither a heading, a file, a test nor a text", listFile, i+1, line)
		}
	}
	for _, f := range out {
		f.old, f.new = strings.TrimPrefix(f.old, "\n"), strings.TrimPrefix(f.new, "\n")
	}
	return out
}

// apply returns the text of the file with the fault.
func (f *fault) apply() (string, error) {
	raw, err := os.ReadFile(filepath.Join(root, f.file))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(raw), f.old); n != 1 || f.old == "" {
		return "", fmt.Errorf("%s has the text %d times, want once: %s", f.file, n, f.old)
	}
	return strings.Replace(string(raw), f.old, f.new, 1), nil
}

// The list fits the code, and the document the list.
func TestList(t *testing.T) {
	faults := readFaults(t)
	if len(faults) < minFaults {
		t.Errorf("%d faults, want %d", len(faults), minFaults)
	}
	tests := map[string]string{} // by package: the text of its tests
	table := ""
	for _, f := range faults {
		if _, err := f.apply(); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
		if tests[f.pkg] == "" {
			files, err := filepath.Glob(filepath.Join(root, f.pkg, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range files {
				raw, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				tests[f.pkg] += string(raw)
			}
		}
		if !strings.Contains(tests[f.pkg], "\nfunc "+f.test+"(t *testing.T)") {
			t.Errorf("%s: %s has no %s", f.name, f.pkg, f.test)
		}
		table += fmt.Sprintf("| %s | `%s` | `%s` |\n", f.name, strings.TrimPrefix(f.file, "internal/pool/"), f.test)
	}
	const head = "| fault | file in `internal/pool` | test that notices it |\n|---|---|---|\n"
	raw, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(raw), head)
	if want := before + head + table; string(raw) != want {
		if !*rewrite {
			t.Fatalf("%s is not that of %s: go test ./test/mutation -rewrite", document, listFile)
		}
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Each fault makes its test fail.
func TestMutations(t *testing.T) {
	if !*mutate {
		t.Skip("takes minutes: scripts/mutations.sh")
	}
	for _, f := range readFaults(t) {
		t.Run(f.name, func(t *testing.T) {
			text, err := f.apply()
			if err != nil {
				t.Fatal(err)
			}
			at, err := filepath.Abs(filepath.Join(root, f.file))
			if err != nil {
				t.Fatal(err)
			}
			mutant, overlay := filepath.Join(t.TempDir(), "mutant.go"), filepath.Join(t.TempDir(), "overlay.json")
			list, err := json.Marshal(map[string]map[string]string{"Replace": {at: mutant}})
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(mutant, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(overlay, list, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout", "2m", "-run", "^"+f.test+"$", f.pkg)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("%s does not notice it", f.test)
			case strings.Contains(string(out), "[build failed]"):
				t.Errorf("it does not compile:\n%s", out)
			case !strings.Contains(string(out), "--- FAIL: "+f.test) && !strings.Contains(string(out), "panic: "):
				t.Errorf("%s did not run:\n%s", f.test, out)
			}
		})
	}
}

package kubetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Programs are the directories of the programs of a cluster.
type Programs struct {
	Version    string // of Kubernetes, such as "1.36.3"
	Kubernetes string // kube-apiserver and so on
	Node       string // etcd, containerd, CNI plugins
}

// ErrNotBuilt is returned by FindPrograms where the programs are not in the cache.
var ErrNotBuilt = errors.New("the programs of the cluster are not built")

// moduleDir returns the directory of this module, in a directory of which tests run. The path of
// this file is no help: "-trimpath" takes its directory away.
func moduleDir() string {
	at, err := filepath.Abs(".")
	for ; err == nil && at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
	}
	return "."
}

// FindPrograms returns the programs of a version from the user's cache.
func FindPrograms(version string) (Programs, error) {
	script := filepath.Join(moduleDir(), "scripts/build-cluster.sh")
	out, err := exec.Command(script, "-n", version).Output()
	if e := (*exec.ExitError)(nil); errors.As(err, &e) && e.ExitCode() == 3 {
		return Programs{}, fmt.Errorf("%w: %s %s", ErrNotBuilt, script, version)
	}
	if err != nil {
		return Programs{}, err
	}
	dirs := strings.Fields(string(out))
	if len(dirs) != 2 {
		return Programs{}, fmt.Errorf("%s printed %q", script, out)
	}
	return Programs{Version: version, Kubernetes: dirs[0], Node: dirs[1]}, nil
}

// NeedPrograms is FindPrograms for a test, which is skipped where they are not built.
func NeedPrograms(t testing.TB, version string) Programs {
	t.Helper()
	p, err := FindPrograms(version)
	if errors.Is(err, ErrNotBuilt) {
		t.Skipf("Kubernetes %s is not in the cache: \"make kube-test\" builds it, in a quarter of an hour", version)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p Programs) kubernetes(name string) string { return filepath.Join(p.Kubernetes, name) }
func (p Programs) node(name string) string       { return filepath.Join(p.Node, name) }

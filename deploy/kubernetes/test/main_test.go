// Package test runs the driver in real clusters. Its tests are skipped where the programs
// of Kubernetes are not in the user's cache: "make kube-test" builds them.
package test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/kubetest"
)

// versions are those of Kubernetes that the tests use; the first is used by all. A flag
// chooses others:
//
//	go test ./test -run 'TestFaults|TestTaints|TestBinding' -versions 1.35.4
var versions = []string{"1.36.3", "1.35.4"}

func init() { //nolint:gochecknoinits // run parses the flags
	flag.Func("versions", "comma-separated `list` of the versions of Kubernetes (default 1.36.3,1.35.4)", func(list string) error {
		versions = strings.Split(list, ",")
		return nil
	})
}

// programs are the program of the pool and the driver, built once.
var programs struct{ dxpu, driver string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if _, err := kubetest.FindPrograms(versions[0]); err != nil {
		return m.Run() // the tests skip themselves
	}
	dir, err := os.MkdirTemp("", "dxpu-kube-")
	if err == nil {
		defer os.RemoveAll(dir)
		programs.dxpu, programs.driver, err = kubetest.BuildDxPU(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// patience bounds every wait of a test, on a busy machine too.
const patience = 5 * time.Minute

// env is a cluster with a pool and a controller.
type env struct {
	*kubetest.Cluster
	t          *testing.T
	pool       *kubetest.Pool
	kubeconfig string
	controller *kubetest.Process
	flags      []string
}

// newEnv starts a cluster, a pool and a controller, with a node for each host of the pool.
func newEnv(t *testing.T, version string, size kubetest.PoolSpec, flags ...string) *env {
	t.Helper()
	e := newBareEnv(t, version, size)
	e.flags = flags
	ctx := t.Context()
	e.must(e.Apply(ctx, "manifests/rbac.yaml"))
	e.must(e.Apply(ctx, "manifests/deviceclass.yaml"))
	var err error
	e.kubeconfig, err = e.ServiceAccount(ctx, "dxpu-system", "dxpu-dra-controller")
	e.must(err)
	for i := range size.Hosts {
		if size.OpenCL {
			break // the test starts kubelets
		}
		e.must(e.AddNode(ctx, nodeName(i), map[string]string{"dxpu.dev.node-restriction.kubernetes.io/host": hostID(i, size.Simulate)}))
	}
	e.startController()
	t.Cleanup(func() { e.controller.Stop() })
	e.waitDevices(size.Boxes * size.GPUs)
	return e
}

// newBareEnv starts a cluster that has no part of the driver, and a pool.
func newBareEnv(t *testing.T, version string, size kubetest.PoolSpec) *env {
	t.Helper()
	p := kubetest.NeedPrograms(t, version)
	e := &env{t: t}
	// Sockets are in the directories: their paths are short.
	dir, err := os.MkdirTemp("", "dk")
	e.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	e.pool, err = kubetest.StartPool(t.Context(), programs.dxpu, dir, size)
	if e.pool != nil {
		t.Cleanup(e.pool.Stop)
	}
	e.must(err)
	e.Cluster, err = kubetest.Start(t.Context(), p, dir)
	t.Cleanup(e.Stop)
	e.must(err)
	return e
}

// must ends the test after an error.
func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// waitDevices waits until n devices are published.
func (e *env) waitDevices(n int) {
	e.t.Helper()
	e.wait("the devices of the pool", func(ctx context.Context) (bool, error) {
		found, err := e.countDevices(ctx)
		return found == n, err
	})
}

func nodeName(i int) string { return fmt.Sprintf("n%03d", i) }

func hostID(i int, simulated bool) string {
	if simulated {
		return fmt.Sprintf("host-%05d", i)
	}
	return fmt.Sprintf("host-%d", i+1)
}

func (e *env) startController() {
	e.t.Helper()
	e.controller = e.startReplica("controller", e.flags...)
}

// startReplica starts a controller whose log has a name.
func (e *env) startReplica(name string, flags ...string) *kubetest.Process {
	e.t.Helper()
	p, err := kubetest.StartProcess(e.Dir, name, programs.driver, append([]string{
		"controller", "--kubeconfig", e.kubeconfig, "--manager", e.pool.URL, "--tenant", "default", "-v", "2",
	}, flags...)...)
	if err != nil {
		e.t.Fatal(err)
	}
	return p
}

// wait polls until a condition holds.
func (e *env) wait(what string, holds func(context.Context) (bool, error)) {
	e.t.Helper()
	// The calls may take longer: their own end would hide what does not hold.
	ctx, cancel := context.WithTimeout(e.t.Context(), 2*patience)
	defer cancel()
	late := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := holds(ctx)
		if ok {
			return
		}
		select {
		case <-late:
			e.t.Fatalf("waited for %s: %v; the controller says:\n%s", what, err, e.controller.Tail(10))
		case <-tick.C:
		}
	}
}

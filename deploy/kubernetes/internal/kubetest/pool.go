package kubetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/client"
)

// BuildDxPU builds the programs of the pool, and that of the driver, into a directory.
func BuildDxPU(dir string) (dxpu, driver string, err error) {
	dxpu, driver = filepath.Join(dir, "dxpu"), filepath.Join(dir, "dxpu-dra")
	root := filepath.Join(moduleDir(), "../..")
	for _, b := range []struct{ in, out, pkg string }{
		{root, dxpu, "./cmd/dxpu"}, {root, dxpu + "-opencl", "./cmd/dxpu-opencl"}, {moduleDir(), driver, "./cmd/dxpu-dra"},
	} {
		// As in build-cluster.sh, whose compiled packages are used again.
		cmd := exec.Command("go", "build", "-trimpath", "-o", b.out, b.pkg)
		cmd.Dir = b.in
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("build %s: %w\n%s", b.pkg, err, out)
		}
	}
	return dxpu, driver, nil
}

// PoolSpec is the size of a pool.
type PoolSpec struct {
	Boxes, GPUs, Hosts, Slots int
	Simulate                  bool
	// OpenCL makes each box one with the OpenCL device of this machine, in a process of its
	// own, for programs that compute. GPUs is 1 then.
	OpenCL bool
}

// Pool is a DxPU pool on this machine.
type Pool struct {
	URL string
	API *client.Client
	Dir string

	program string
	token   string // of nodes that join
	parts   map[string]*Process
}

// StartPool starts a pool. The directory's name is short, because sockets are in it.
func StartPool(ctx context.Context, dxpu, dir string, s PoolSpec) (*Pool, error) {
	p := &Pool{Dir: dir, program: dxpu, token: rand.Text(), parts: map[string]*Process{}}
	file := filepath.Join(dir, "url")
	if s.OpenCL {
		if err := p.start("manager", "manager", "--listen", "127.0.0.1:0", "--url-file", file, "--spares", "0"); err != nil {
			return p, err
		}
		if err := p.await(ctx, file); err != nil {
			return p, err
		}
		return p, p.startNodes(s)
	}
	args := []string{
		"dev", "--listen", "127.0.0.1:0", "--url-file", file, "--dir", filepath.Join(dir, "p"), "--spares", "0",
		"--boxes", fmt.Sprint(s.Boxes), "--gpus", fmt.Sprint(s.GPUs), "--hosts", fmt.Sprint(s.Hosts), "--slots", fmt.Sprint(s.Slots),
	}
	if s.Simulate {
		args = append(args, "--simulate")
	}
	if err := p.start("pool", args...); err != nil {
		return p, err
	}
	return p, p.await(ctx, file)
}

func (p *Pool) start(name string, args ...string) error {
	started, err := startProcess(p.Dir, name, []string{"DXPU_JOIN_TOKEN=" + p.token, "DXPU_CONFIG=" + filepath.Join(p.Dir, "none")}, p.program, args...)
	if err == nil {
		p.parts[name] = started
	}
	return err
}

// await waits until a daemon has written the URL of the manager.
func (p *Pool) await(ctx context.Context, file string) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if raw, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(raw), "\n") {
			p.URL = strings.TrimSpace(string(raw))
			break
		}
		for _, part := range p.parts {
			if err := part.ended(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	var err error
	p.API, err = client.New(client.Config{Managers: []string{p.URL}})
	return err
}

// startNodes starts boxes with OpenCL, box-1 and so on, and hosts, host-1 and so on.
func (p *Pool) startNodes(s PoolSpec) error {
	for i := range s.Boxes {
		if err := p.StartBox(i); err != nil {
			return err
		}
	}
	for i := range s.Hosts {
		name := fmt.Sprintf("host-%d", i+1)
		if err := p.StartHostWith(name, "--slots", fmt.Sprint(s.Slots), "--socket-dir", p.SocketDir(i)); err != nil {
			return err
		}
	}
	return nil
}

// StartHostWith starts a host that its flags describe.
func (p *Pool) StartHostWith(name string, flags ...string) error {
	return p.start(name, append([]string{"host", "--name", name, "--manager", p.URL, "--state-dir", filepath.Join(p.Dir, name)}, flags...)...)
}

func boxName(i int) string { return fmt.Sprintf("box-%d", i+1) }

// StartBox starts a box with OpenCL, also after KillBox.
func (p *Pool) StartBox(i int) error {
	return p.StartBoxWith(boxName(i), "--opencl")
}

// StartBoxWith starts a box with devices that its flags describe.
func (p *Pool) StartBoxWith(name string, flags ...string) error {
	return p.start(name, append([]string{"box", "--name", name, "--manager", p.URL, "--state-dir", filepath.Join(p.Dir, name)}, flags...)...)
}

// KillBox ends a box at once.
func (p *Pool) KillBox(i int) { p.Kill(boxName(i)) }

// Processes returns the processes of the pool.
func (p *Pool) Processes() []*Process { return slices.Collect(maps.Values(p.parts)) }

// Process returns a process of the pool: "pool" is all of a simulated one.
func (p *Pool) Process(name string) *Process { return p.parts[name] }

// Kill ends a part of the pool at once.
func (p *Pool) Kill(name string) { p.parts[name].Kill() }

// Command runs the program of the pool to its end, and returns what it prints.
func (p *Pool) Command(ctx context.Context, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, p.program, args...).CombinedOutput()
}

// SocketDir returns the directory with the vfio-user sockets of a host.
func (p *Pool) SocketDir(i int) string { return filepath.Join(p.Dir, fmt.Sprintf("s%d", i+1)) }

// Stop ends the pool, the manager last.
func (p *Pool) Stop() {
	if p.API != nil {
		p.API.Close()
	}
	for name, part := range p.parts {
		if name != "manager" {
			part.Stop()
		}
	}
	p.parts["manager"].Stop()
}

// BuildOpenCL builds an OpenCL program of this repository's tests and the OpenCL driver of
// the pool into a directory, and skips the test where that is not possible.
func BuildOpenCL(t testing.TB, dir string) (program, driver string) {
	t.Helper()
	if all, err := filepath.Glob("/etc/OpenCL/vendors/*.icd"); err != nil || len(all) == 0 {
		t.Skip("this machine has no OpenCL platform; remedy: scripts/install-tools.sh")
	}
	if _, err := os.Stat("/usr/include/CL/cl_icd.h"); err != nil {
		t.Skip("the headers of OpenCL are missing; remedy: scripts/install-tools.sh")
	}
	root := filepath.Join(moduleDir(), "../..")
	program, driver = filepath.Join(dir, "program"), filepath.Join(dir, "libdxpu-opencl.so")
	for _, args := range [][]string{
		{"cc", "-O2", "-o", program, "icd/testdata/program.c", "-l:libOpenCL.so.1"},
		{"make", "-s", "icd", "ICDOUT=" + dir},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return program, driver
}

package kubetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/client"
)

// BuildDxPU builds the program of the pool, and that of the driver, into a directory.
func BuildDxPU(dir string) (dxpu, driver string, err error) {
	dxpu, driver = filepath.Join(dir, "dxpu"), filepath.Join(dir, "dxpu-dra")
	for _, b := range []struct{ in, out, pkg string }{
		{filepath.Join(moduleDir(), "../.."), dxpu, "./cmd/dxpu"}, {moduleDir(), driver, "./cmd/dxpu-dra"},
	} {
		cmd := exec.Command("go", "build", "-o", b.out, b.pkg)
		cmd.Dir = b.in
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
}

// Pool is a DxPU pool on this machine.
type Pool struct {
	URL string
	API *client.Client
	Dir string
	dev *Process
}

// StartPool starts a pool with "dxpu dev". The directory's name is short, because sockets
// are in it.
func StartPool(ctx context.Context, dxpu, dir string, s PoolSpec) (*Pool, error) {
	p := &Pool{Dir: dir}
	file := filepath.Join(dir, "url")
	args := []string{
		"dev", "--listen", "127.0.0.1:0", "--url-file", file, "--dir", filepath.Join(dir, "p"), "--spares", "0",
		"--boxes", fmt.Sprint(s.Boxes), "--gpus", fmt.Sprint(s.GPUs), "--hosts", fmt.Sprint(s.Hosts), "--slots", fmt.Sprint(s.Slots),
	}
	if s.Simulate {
		args = append(args, "--simulate")
	}
	var err error
	if p.dev, err = StartProcess(dir, "pool", dxpu, args...); err != nil {
		return nil, err
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if raw, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(raw), "\n") {
			p.URL = strings.TrimSpace(string(raw))
			break
		}
		if err := p.dev.ended(); err != nil {
			return p, err
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-tick.C:
		}
	}
	p.API, err = client.New(client.Config{Managers: []string{p.URL}})
	return p, err
}

// Stop ends the pool.
func (p *Pool) Stop() {
	if p.API != nil {
		p.API.Close()
	}
	p.dev.Stop()
}

package localpool

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/agent/simulated"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
)

// Spec describes a pool.
type Spec struct {
	Program string // the dxpu binary
	Version string // of simulated nodes
	// Dir keeps the state of the daemons, their logs and their sockets: a pool with the
	// directory of an earlier one continues it. Paths of sockets in it have at most 107
	// bytes.
	Dir    string
	Listen string // address of the manager
	Spares int

	Boxes, GPUs  int // GPUs of each box
	Slices       int // of each GPU, which has a slot for each; 0: GPUs are not divided
	Hosts, Slots int // slots of each host
	// Simulate replaces the processes of boxes and hosts by nodes in this process that
	// have no data plane: the pool may have thousands, and no GPU can be used.
	Simulate bool

	// Say receives what happens, one line each.
	Say func(format string, args ...any)
}

const (
	// boxesPerRack is the number of boxes that report the same rack.
	boxesPerRack = 8
	// restartPause is the time between the end of a daemon and its next start.
	restartPause = 2 * time.Second
	// simulatedReports is the number of reports a second of all simulated nodes. They share
	// a process with each other, and a machine with the manager and with other work: if they
	// reported as real nodes do, they would be silent as soon as that process waits.
	simulatedReports = 200
	// startTimeout bounds the time until all nodes are connected.
	startTimeout = 5 * time.Minute
)

// Pool is a pool on this machine.
type Pool struct {
	// URL is that of the manager and of its pages.
	URL string

	spec    Spec
	daemons Daemons
	ended   chan End
	args    map[string][]string // the command line of each daemon
	nodes   *simulated.Nodes    // nil unless Spec.Simulate
}

// BoxName returns the name of box i, from 0.
func BoxName(i int) string { return "box-" + strconv.Itoa(i+1) }

// HostName returns the name of host i, from 0.
func HostName(i int) string { return "host-" + strconv.Itoa(i+1) }

// Start starts the daemons and returns when all nodes are connected. Stop ends them,
// also after an error.
func Start(ctx context.Context, spec Spec) (*Pool, error) {
	p := &Pool{spec: spec, ended: make(chan End, 1+spec.Boxes+spec.Hosts), args: map[string][]string{}}
	p.daemons = Daemons{Program: spec.Program, Dir: spec.Dir, Ended: p.ended}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the pool did not start within %v", startTimeout))
	defer cancel()
	if err := p.start(ctx); err != nil {
		return p, err
	}
	return p, nil
}

func (p *Pool) start(ctx context.Context) (err error) {
	if p.daemons.JoinToken, err = joinToken(p.daemons.Path("join-token")); err != nil {
		return err
	}
	if err := p.startManager(ctx); err != nil {
		return err
	}
	if p.spec.Simulate {
		p.nodes = simulated.New(simulated.Spec{
			Manager: p.URL, JoinToken: p.daemons.JoinToken, Version: p.spec.Version,
			Boxes: p.spec.Boxes, GPUsPerBox: p.spec.GPUs, PartsPerGPU: partsPerGPU, Hosts: p.spec.Hosts, SlotsPerHost: p.spec.Slots,
			AtOnce: 64, NodesPerConnection: 4, Progress: func(string, ...any) {},
		})
		if err := p.nodes.Start(ctx); err != nil {
			return err
		}
	} else if err := p.startNodes(); err != nil {
		return err
	}
	return p.awaitNodes(ctx)
}

// joinToken returns the token in a file, which it creates.
func joinToken(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		raw = []byte(rand.Text() + "\n")
		err = atomicfile.Write(file, raw)
	}
	return strings.TrimSpace(string(raw)), err
}

func (p *Pool) startManager(ctx context.Context) (err error) {
	urlFile := p.daemons.Path("manager.url")
	if err := os.Remove(urlFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	args := func(listen string) []string { return p.managerArgs(listen, urlFile) }
	if err := p.daemons.Start("manager", args(p.spec.Listen)...); err != nil {
		return err
	}
	if err := p.poll(ctx, func() (bool, error) {
		raw, err := os.ReadFile(urlFile)
		p.URL = strings.TrimSpace(string(raw))
		return err == nil && bytes.HasSuffix(raw, []byte("\n")), nil
	}); err != nil {
		return err
	}
	// A manager that starts again has the same address.
	p.args["manager"] = args(p.URL[strings.LastIndexByte(p.URL, '/')+1:])
	return nil
}

func (p *Pool) managerArgs(listen, urlFile string) []string {
	args := []string{
		"manager", "--listen", listen, "--url-file", urlFile, "--data-dir", p.daemons.Path("manager"),
		"--join-token-file", p.daemons.Path("join-token"), "--spares", strconv.Itoa(p.spec.Spares),
	}
	if p.spec.Simulate {
		args = append(args, "--report-rate", strconv.Itoa(simulatedReports))
	}
	return args
}

func (p *Pool) startNodes() error {
	for i := range p.spec.Boxes {
		name := BoxName(i)
		args := []string{
			"box", "--gpus", strconv.Itoa(p.spec.GPUs), "--rack", fmt.Sprintf("rack-%d", 1+i/boxesPerRack),
			"--admin-listen", "127.0.0.1:0", "--allow-faults", "--admin-url-file", p.daemons.Path(name + ".url"),
		}
		if p.spec.Slices > 0 {
			args = append(args, "--slices", strconv.Itoa(p.spec.Slices))
		}
		p.args[name] = args
	}
	for i := range p.spec.Hosts {
		p.args[HostName(i)] = []string{"host", "--slots", strconv.Itoa(p.spec.Slots), "--socket-dir", p.SocketDir(i)}
	}
	for name, args := range p.args {
		if name == "manager" {
			continue
		}
		p.args[name] = append(args, "--manager", p.URL, "--name", name, "--state-dir", p.daemons.Path(name))
		if err := p.daemons.Start(name, p.args[name]...); err != nil {
			return err
		}
	}
	return nil
}

// SocketDir returns the directory with the vfio-user sockets of host i.
func (p *Pool) SocketDir(i int) string { return filepath.Join(p.daemons.Path(HostName(i)), "vm") }

// Admin returns the URL at which box i accepts faults, "" if it has none.
func (p *Pool) Admin(i int) string {
	raw, err := os.ReadFile(p.daemons.Path(BoxName(i) + ".url"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func (p *Pool) awaitNodes(ctx context.Context) error {
	api, err := client.New(client.Config{Managers: []string{p.URL}})
	if err != nil {
		return err
	}
	return p.poll(ctx, func() (bool, error) {
		res, err := api.Pool.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		if err != nil {
			return false, nil // it does not serve yet
		}
		s := res.Msg.Pool
		return int(s.HostsConnected) >= p.spec.Hosts && int(s.BoxesConnected) >= p.spec.Boxes && int(s.Gpus) >= p.spec.Boxes*p.spec.GPUs*max(p.spec.Slices, 1), nil
	})
}

// poll is Poll that also ends when a daemon ends.
func (p *Pool) poll(ctx context.Context, ask func() (bool, error)) error {
	return Poll(ctx, func() (bool, error) {
		select {
		case e := <-p.ended:
			return false, fmt.Errorf("%s ended: %s", e.Name, cmp.Or(lastError(p.daemons.Log(e.Name)), fmt.Sprint(e.Err)))
		default:
			return ask()
		}
	})
}

// lastError returns the last error that a daemon printed, "" for none.
func lastError(log string) string {
	raw, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	last := ""
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, "dxpu: error: "); ok {
			last = strings.TrimSpace(text)
		}
	}
	return last
}

// Run starts daemons again that end, as a service manager would, until ctx ends.
func (p *Pool) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-p.ended:
			how := "exit code 0"
			if e.Err != nil {
				how = e.Err.Error()
			}
			p.spec.Say("%s ended (%s) and starts again in %v", e.Name, how, restartPause)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(restartPause):
			}
			if err := p.daemons.Start(e.Name, p.args[e.Name]...); err != nil {
				return err
			}
		}
	}
}

// Stop ends all daemons and nodes.
func (p *Pool) Stop() error {
	if p.nodes != nil {
		p.nodes.Stop()
	}
	return p.daemons.Stop()
}

// partsPerGPU is the number of slots for parts of each simulated GPU.
const partsPerGPU = 4

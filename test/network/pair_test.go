package network

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/test/namespace"
)

const (
	attached = dxpuv1.BindingState_BINDING_STATE_ATTACHED
	lost     = dxpuv1.BindingState_BINDING_STATE_LOST
	failed   = dxpuv1.BindingState_BINDING_STATE_FAILED
)

// patience is the limit of every wait, for a loaded machine.
const patience = 30 * time.Second

// process is a proxy process, as the test sees it.
type process struct {
	t     *testing.T
	cfg   config
	cmd   *exec.Cmd
	stdin io.WriteCloser
	log   bytes.Buffer // read after ended
	ended chan struct{}

	mu   sync.Mutex // guards the fields below
	last report
	news chan struct{} // closed and replaced with each report
}

// start starts a proxy in a namespace. The test's cleanup kills it.
func start(t *testing.T, ns *namespace.Namespace, cfg config) *process {
	t.Helper()
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cfg: cfg, ended: make(chan struct{}), news: make(chan struct{})}
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Args[0] = cfg.Kind
	p.cmd.Env = append(os.Environ(), configVariable+"="+string(text))
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = p.spawn(ns, out); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("log of the %s:\n%s", cfg.Kind, strings.TrimSpace(p.log.String()))
		}
	})
	return p
}

// spawn starts the process from a thread that lives as long as it: the parent-death signal
// comes when the thread that forked ends (prctl(2), PR_SET_PDEATHSIG).
func (p *process) spawn(ns *namespace.Namespace, out io.Reader) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := ns.Do(p.cmd.Start)
		started <- err
		if err == nil {
			p.read(out)
		}
	}()
	return <-started
}

// read takes reports until the process ends.
func (p *process) read(out io.Reader) {
	defer close(p.ended)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			break // the process died within a line
		}
		p.mu.Lock()
		p.last = r
		close(p.news)
		p.news = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait()
}

// kill sends SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *process) report() (report, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.news
}

// until waits for a report for which ok returns true.
func (p *process) until(what string, ok func(report) bool) report {
	p.t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		r, news := p.report()
		if ok(r) {
			return r
		}
		select {
		case <-news:
		case <-p.ended:
			p.t.Fatalf("%s: the %s has ended", what, p.cfg.Kind)
		case <-limit.C:
			p.t.Fatalf("timed out: %s: the %s reports %+v", what, p.cfg.Kind, r)
		}
	}
}

// proxyPair is a host and a box, each in its own namespace.
type proxyPair struct {
	t        *testing.T
	net      network
	attacker *attacker   // nil: none
	proxies  [2]*process // by end
	revision uint64
	epoch    uint64 // of the desired binding; 0: none
}

type options struct {
	paths    int // default 1
	kind     string
	faults   []string // of both ends
	attacked bool     // by an attacker on the only path
}

func newProxyPair(t *testing.T, o options) *proxyPair {
	t.Helper()
	r := &proxyPair{t: t}
	if o.attacked {
		r.net, r.attacker = newAttacked(t)
	} else {
		r.net = newNetwork(t, max(o.paths, 1))
	}
	dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if o.kind == "" {
		o.kind = vmKind
	}
	for end, kind := range []string{o.kind, boxKind} {
		cfg := config{Kind: kind, SocketDir: dir, Faults: o.faults}
		for path := range max(o.paths, 1) {
			cfg.Listen = append(cfg.Listen, address(end, path)+":7471")
		}
		r.proxies[end] = start(t, r.net.ends[end], cfg)
	}
	return r
}

// restart starts a killed proxy again.
func (r *proxyPair) restart(end int) {
	r.t.Helper()
	r.proxies[end] = start(r.t, r.net.ends[end], r.proxies[end].cfg)
}

func (r *proxyPair) binding() string { return fmt.Sprintf("b%d", r.epoch) }

// apply gives both ends their desired state.
func (r *proxyPair) apply() {
	r.t.Helper()
	r.revision++
	var reports [2]report
	for end, p := range r.proxies {
		reports[end] = p.until("the first report", func(s report) bool { return s.Addresses != nil })
	}
	var bindings []agenttest.Binding
	if r.epoch != 0 {
		end := func(i int) agenttest.End {
			e := agenttest.End{Node: uint32(10 + i)}
			for path, a := range reports[i].Addresses {
				e.Addresses = append(e.Addresses, &dxpuv1.PathAddress{Path: uint32(path), Address: a, Mtu: reports[i].MTUs[path]})
			}
			return e
		}
		bindings = []agenttest.Binding{{ID: r.binding(), Epoch: r.epoch, Domain: "nettest", Host: end(hostEnd), Box: end(boxEnd)}}
	}
	for i, p := range r.proxies {
		d := agenttest.Desired(uint32(10+i), r.revision, bindings...)
		line, err := protojson.Marshal(d)
		if err == nil {
			_, err = p.stdin.Write(append(line, '\n'))
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// attach makes a binding and waits until the host has the GPU.
func (r *proxyPair) attach() {
	r.t.Helper()
	r.epoch = r.revision + 1
	r.apply()
	r.proxies[hostEnd].until("attached", func(s report) bool {
		if s.Binding == r.binding() && s.State == failed {
			r.t.Fatalf("the host reports %v: %s", s.State, s.Detail)
		}
		return s.Binding == r.binding() && s.State == attached
	})
}

// detach ends the binding and waits until both ends report none.
func (r *proxyPair) detach() {
	r.t.Helper()
	r.epoch = 0
	r.apply()
	for _, p := range r.proxies {
		p.until("nothing is bound", func(s report) bool { return s.Binding == "" })
	}
}

// open opens the GPU through the vfio-user socket, as a VMM and its guest do.
func (r *proxyPair) open() (driver.Bus, *driver.Device) {
	r.t.Helper()
	bus, err := vfiouserbus.Open(r.t.Context(), filepath.Join(r.proxies[hostEnd].cfg.SocketDir, "slot0.sock"))
	if err != nil {
		r.t.Fatal(err)
	}
	dev, err := driver.Open(r.t.Context(), bus, driver.Options{})
	if err != nil {
		_ = bus.Close()
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = dev.Close()
		_ = bus.Close()
	})
	return bus, dev
}

// copyBothWays uploads n bytes, downloads them and compares.
func copyBothWays(ctx context.Context, dev *driver.Device, n int) error {
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	in, out := make([]byte, n), make([]byte, n)
	for i := range in {
		in[i] = byte(i*7 + i>>8)
	}
	err = s.Upload(ctx, 4096, in)
	if err == nil {
		err = s.Download(ctx, out, 4096)
	}
	if err == nil && !bytes.Equal(in, out) {
		err = fmt.Errorf("the bytes read differ from those written")
	}
	if closing := s.Close(); err == nil {
		err = closing
	}
	return err
}

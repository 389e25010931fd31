package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/tlp"
)

// configVariable names the environment variable that makes a process of the
// test binary a proxy: its value is a config.
const configVariable = "DXPU_NETTEST_PROXY"

func TestMain(m *testing.M) {
	if text := os.Getenv(configVariable); text != "" {
		if err := runProxy(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Kinds of proxies.
const (
	boxKind      = "box"
	vmKind       = "host"
	embeddedKind = "embedded host" // which works with its GPU by itself
)

// config is what a proxy is told at its start. What it should have comes to its
// standard input, a dxpuv1.DesiredState in each line.
type config struct {
	Kind      string
	Listen    []string
	Faults    []string // of the paths; none for none
	SocketDir string   // of the VM's port
}

// report is what a proxy writes, a line each, when something has changed and now and then.
type report struct {
	Addresses []string
	MTUs      []uint32
	Binding   string // of slot 0
	State     dxpuv1.BindingState
	Detail    string
	Refused   uint64 // datagrams
	Again     uint64 // datagrams that were sent again
	Writes    uint64 // of the box: to the register that numbers are written to
	Wrong     uint64 // of those: not the next number
	Copied    uint64 // of the embedded host: bytes, all compared
	Failure   string // of the embedded host: how the work ended
}

// proxy is such a process, from inside.
type proxy struct {
	cfg     config
	fabric  *netio.Fabric
	part    part
	counter *counter
	worker  worker
	news    chan struct{}
}

// part is a box or a host.
type part interface {
	Run(context.Context) error
	Apply(*dxpuv1.DesiredState)
	Observe() *dxpuv1.ObservedState
	OnChange(func())
}

func runProxy(text string) error {
	p := &proxy{news: make(chan struct{}, 1)}
	if err := json.Unmarshal([]byte(text), &p.cfg); err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return err
	}
	note := func() {
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
	p.part.OnChange(note)
	note()
	run, ctx := errgroup.WithContext(context.Background())
	run.Go(func() error { return p.fabric.Run(ctx) })
	run.Go(func() error { return p.part.Run(ctx) })
	run.Go(func() error { return p.reports(ctx) })
	run.Go(func() error { return p.orders() })
	if p.worker.front != nil {
		run.Go(func() error { p.worker.run(ctx, note); return nil })
	}
	return run.Wait()
}

func (p *proxy) open() error {
	var cfg netio.Config
	cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	for i, listen := range p.cfg.Listen {
		pc := netio.PathConfig{Listen: listen, Seed: uint64(os.Getpid() + i)}
		if i < len(p.cfg.Faults) {
			var err error
			if pc.Fault, err = fault.Parse(p.cfg.Faults[i]); err != nil {
				return err
			}
		}
		cfg.Paths = append(cfg.Paths, pc)
	}
	var err error
	if p.fabric, err = netio.Open(cfg); err != nil {
		return err
	}
	if p.cfg.Kind == boxKind {
		g, err := gpu.New(gpu.Spec{VRAM: 16 << 20, Serial: 1})
		if err != nil {
			return err
		}
		p.counter = &counter{GPU: g}
		p.part, err = boxproxy.New(boxproxy.Config{Slots: []boxproxy.Slot{{Device: p.counter}}, Fabric: p.fabric, Logger: cfg.Logger})
		return err
	}
	host := hostproxy.Config{Slots: 1, Fabric: p.fabric, Domain: "nettest", Logger: cfg.Logger}
	if p.cfg.Kind == embeddedKind {
		p.worker.front = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{})
		host.Front = p.worker.front
	} else {
		host.Front = &hostproxy.VM{SocketDir: p.cfg.SocketDir, Logger: cfg.Logger}
	}
	p.part, err = hostproxy.New(host)
	return err
}

// orders reads what the proxy should have, until nobody is there to say it.
func (p *proxy) orders() error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var d dxpuv1.DesiredState
		if err := protojson.Unmarshal(lines.Bytes(), &d); err != nil {
			return err
		}
		p.part.Apply(&d)
	}
	return errors.Join(lines.Err(), io.EOF)
}

func (p *proxy) reports(ctx context.Context) error {
	again := time.NewTicker(20 * time.Millisecond) // what counts makes no news
	defer again.Stop()
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.news:
		case <-again.C:
		}
		if err := out.Encode(p.report()); err != nil {
			return err
		}
	}
}

func (p *proxy) report() report {
	var r report
	for _, a := range agent.Addresses(p.fabric) {
		r.Addresses, r.MTUs = append(r.Addresses, a.Address), append(r.MTUs, a.Mtu)
	}
	b := p.part.Observe().Slots[0].GetBinding()
	r.Binding, r.State, r.Detail = b.GetBindingId(), b.GetState(), b.GetDetail()
	r.Refused, r.Again = b.GetCounters().GetDatagramsRefused(), b.GetCounters().GetDatagramsRetransmitted()
	if p.counter != nil {
		r.Writes, r.Wrong = p.counter.writes.Load(), p.counter.wrong.Load()
	}
	r.Copied, r.Failure = p.worker.copied.Load(), p.worker.failed()
	return r
}

// counter is a GPU whose scratch register is written the numbers from 0 on.
type counter struct {
	*gpu.GPU
	writes, wrong atomic.Uint64
}

// Receive implements device.Device.
func (c *counter) Receive(now time.Duration, p *tlp.Packet) bool {
	if p.Type == tlp.MWr && len(p.Data) == 4 {
		if bar, off, ok := c.Config().Decode(p.Addr, 4); ok && bar == reg.BARRegisters && off == reg.Scratch {
			if n := c.writes.Add(1) - 1; uint64(binary.LittleEndian.Uint32(p.Data)) != n {
				c.wrong.Add(1)
			}
		}
	}
	return c.GPU.Receive(now, p)
}

// worker is the program on an embedded host.
type worker struct {
	front  *hostproxy.Embedded
	copied atomic.Uint64

	mu  sync.Mutex // guards err
	err error
}

func (w *worker) failed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		return ""
	}
	return w.err.Error()
}

// run works with each GPU that comes, until it goes.
func (w *worker) run(ctx context.Context, note func()) {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for ctx.Err() == nil {
		bus, err := w.front.Open(0)
		if err != nil { // none yet
			<-look.C
			continue
		}
		dev, err := driver.Open(ctx, bus, driver.Options{})
		for err == nil {
			if err = copyBothWays(ctx, dev, 100<<10); err == nil {
				w.copied.Add(2 * 100 << 10)
			}
		}
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
		note()
		if dev != nil {
			_ = dev.Close()
		}
		_ = bus.Close()
	}
}

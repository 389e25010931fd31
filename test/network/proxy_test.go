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

// configVariable names an environment variable. A process of the test binary that
// has it is a proxy; the value is a config.
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
	embeddedKind = "embedded host" // its own worker uses the GPU
)

// config is the configuration of a proxy. Its desired states follow on standard
// input, a dxpuv1.DesiredState in each line.
type config struct {
	Kind      string
	Listen    []string
	Faults    []string // of the paths; none for none
	SocketDir string   // of the VM's port
}

// report is a line of a proxy's output. A proxy writes one at each change and every
// 20 ms.
type report struct {
	Addresses []string
	MTUs      []uint32
	Binding   string // of slot 0
	State     dxpuv1.BindingState
	Detail    string
	// Refused and Retransmitted count datagrams.
	Refused       uint64
	Retransmitted uint64
	// Writes counts the writes to the box's scratch register, Wrong those of them
	// that were not the next number.
	Writes  uint64
	Wrong   uint64
	Copied  uint64 // bytes that the embedded host copied and compared
	Failure string // error that ended the embedded host's last copy; empty: none
}

// proxy is a proxy process, as itself sees it.
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
	run.Go(func() error { return p.readDesired() })
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

// readDesired applies the desired states from standard input until its end.
func (p *proxy) readDesired() error {
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
	refresh := time.NewTicker(20 * time.Millisecond) // counters change without a call of note
	defer refresh.Stop()
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.news:
		case <-refresh.C:
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
	r.Refused, r.Retransmitted = b.GetCounters().GetDatagramsRefused(), b.GetCounters().GetDatagramsRetransmitted()
	if p.counter != nil {
		r.Writes, r.Wrong = p.counter.writes.Load(), p.counter.wrong.Load()
	}
	r.Copied, r.Failure = p.worker.copied.Load(), p.worker.failed()
	return r
}

// counter is a GPU that counts the writes to its scratch register, which should be
// the numbers 0, 1, 2 and so on.
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

// worker uses the GPU of an embedded host.
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

func (w *worker) setError(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// run copies with each attached GPU until it is removed.
func (w *worker) run(ctx context.Context, note func()) {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for ctx.Err() == nil {
		bus, err := w.front.Open(0)
		if err != nil { // no GPU yet
			<-look.C
			continue
		}
		dev, err := driver.Open(ctx, bus, driver.Options{})
		for err == nil {
			if err = copyBothWays(ctx, dev, 100<<10); err == nil {
				w.copied.Add(2 * 100 << 10)
				w.setError(nil)
			}
		}
		w.setError(err)
		note()
		if dev != nil {
			_ = dev.Close()
		}
		_ = bus.Close()
	}
}

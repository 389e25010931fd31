package soak

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Node numbers in the manager's place: each virtual switch of the host is a node.
const (
	boxNumber      = 1
	embeddedNumber = 2
	vmNumber       = 3
)

const (
	paths    = 2
	gpuVRAM  = 16 << 20
	hostSize = 32 << 20 // memory of the embedded host
)

// Sides of the network.
const (
	hostSide = 0
	boxSide  = 1
)

// cluster is a box proxy and a host proxy with two virtual switches, one of an
// embedded host and one of a VM. It acts as their manager: it gives each its
// desired state, also after a restart.
type cluster struct {
	slots int // of the box; slot i of the host is bound to slot i of the box, the embedded host has the first half
	dir   string

	mu       sync.Mutex // guards the fields below
	proxies  [2]*proxy  // by side; after a failed restart, the killed proxy
	box      *boxproxy.Box
	gpus     []*sequence
	switches [2]*hostproxy.Proxy
	inside   *hostproxy.Embedded
	vm       *hostproxy.VM
	addrs    [2][]string
	wanted   map[int]*want // by slot
	revision uint64
	epoch    uint64

	newsMu sync.Mutex
	news   chan struct{} // closed and replaced at each change of a side
}

// want is the desired binding of slot i of the host and slot i of the box.
type want struct {
	id     string
	epoch  uint64
	secret []byte
}

// proxy stands for the process of a host proxy or box proxy.
type proxy struct {
	fabric    *netio.Fabric
	runFabric process.Background
	runParts  process.Background
}

func newCluster(slots int, dir string) (*cluster, error) {
	c := &cluster{slots: slots, dir: dir, wanted: map[int]*want{}, news: make(chan struct{})}
	c.addrs = [2][]string{{"127.0.0.1:0", "127.0.0.1:0"}, {"127.0.0.1:0", "127.0.0.1:0"}}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.startBoxLocked(), c.startHostLocked()); err != nil {
		c.stopLocked()
		return nil, err
	}
	return c, nil
}

// embedded returns the number of slots of the embedded host.
func (c *cluster) embedded() int { return c.slots / 2 }

func (c *cluster) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopLocked()
}

func (c *cluster) stopLocked() {
	for _, p := range c.proxies {
		if p != nil {
			p.end()
		}
	}
}

// openLocked opens the sockets of a side, on the same addresses as before.
func (c *cluster) openLocked(side int) (*proxy, error) {
	cfg := netio.Config{Polling: reader.Polling{Window: reader.DefaultWindow}, Logger: slog.New(slog.DiscardHandler)}
	for _, a := range c.addrs[side] {
		cfg.Paths = append(cfg.Paths, netio.PathConfig{Listen: a})
	}
	reader.ReserveProcessors()
	f, err := netio.Open(cfg)
	if err != nil {
		return nil, err
	}
	for i, a := range f.Addrs() {
		c.addrs[side][i] = a.String()
	}
	p := &proxy{fabric: f}
	p.runFabric.Go(f.Run)
	c.proxies[side] = p
	return p, nil
}

// end stops the parts before the fabric: their last messages reach their peers.
func (p *proxy) end() {
	_ = p.runParts.Close()
	_ = p.runFabric.Close()
}

// kill stops the fabric first: the peers get no last message, as after SIGKILL.
func (p *proxy) kill() {
	_ = p.runFabric.Close()
	_ = p.runParts.Close()
}

func (c *cluster) startBoxLocked() error {
	p, err := c.openLocked(boxSide)
	if err != nil {
		return err
	}
	c.gpus = nil
	var slots []boxproxy.Slot
	for i := range c.slots {
		g, err := gpu.New(gpu.Spec{VRAM: gpuVRAM, Serial: uint64(i + 1)})
		if err != nil {
			return err
		}
		s := &sequence{GPU: g}
		slots, c.gpus = append(slots, boxproxy.Slot{Device: s}), append(c.gpus, s)
	}
	c.box, err = boxproxy.New(boxproxy.Config{Slots: slots, Fabric: p.fabric, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	c.box.OnChange(c.note)
	p.runParts.Go(c.box.Run)
	return nil
}

func (c *cluster) startHostLocked() error {
	p, err := c.openLocked(hostSide)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	c.inside = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: hostSize})
	c.vm = &hostproxy.VM{SocketDir: c.dir, Polling: reader.Polling{Window: reader.DefaultWindow}, Logger: log}
	for i, front := range []hostproxy.Front{c.inside, c.vm} {
		slots := c.embedded()
		if i == 1 {
			slots = c.slots - slots
		}
		c.switches[i], err = hostproxy.New(hostproxy.Config{Slots: slots, Front: front, Fabric: p.fabric, Domain: domain(i), Logger: log})
		if err != nil {
			return err
		}
		c.switches[i].OnChange(c.note)
	}
	p.runParts.Go(c.switches[0].Run, c.switches[1].Run)
	return nil
}

func domain(i int) string { return fmt.Sprintf("switch%d", i) }

// restart kills a side and starts it again, on the same addresses.
func (c *cluster) restart(side int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proxies[side].kill()
	start := c.startBoxLocked
	if side == hostSide {
		start = c.startHostLocked
	}
	err := start()
	c.applyLocked()
	return err
}

// setFault changes the faults of the datagrams that a side sends on a path.
func (c *cluster) setFault(side, path int, plan fault.Plan, seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.proxies[side].fabric.SetFault(path, plan, seed) // the path exists
}

func (c *cluster) jump(side int, by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proxies[side].fabric.Jump(by)
}

// note wakes the callers of until.
func (c *cluster) note() {
	c.newsMu.Lock()
	defer c.newsMu.Unlock()
	close(c.news)
	c.news = make(chan struct{})
}

func (c *cluster) nextNews() <-chan struct{} {
	c.newsMu.Lock()
	defer c.newsMu.Unlock()
	return c.news
}

// until waits until ok returns true, at a change of a side or at one of the checks
// every 50 ms. It returns false after limit.
func (c *cluster) until(limit time.Duration, ok func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		news := c.nextNews()
		if ok() {
			return true
		}
		select {
		case <-news:
		case <-look.C:
		case <-end.C:
			return false
		}
	}
}

// bind adds a desired binding for a slot.
func (c *cluster) bind(slot int) *want {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	w := &want{id: fmt.Sprint("b", c.epoch), epoch: c.epoch, secret: make([]byte, 32)}
	_, _ = crand.Read(w.secret) // never fails
	c.wanted[slot] = w
	c.applyLocked()
	return w
}

func (c *cluster) unbind(slot int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.wanted, slot)
	c.applyLocked()
}

// place returns the switch of a slot of the host, and its number there.
func (c *cluster) place(slot int) (on, at int) {
	if slot < c.embedded() {
		return 0, slot
	}
	return 1, slot - c.embedded()
}

// applyLocked gives each part its desired state.
func (c *cluster) applyLocked() {
	c.revision++
	hostAddrs, boxAddrs := agent.Addresses(c.proxies[hostSide].fabric), agent.Addresses(c.proxies[boxSide].fabric)
	numbers := [...]uint32{embeddedNumber, vmNumber}
	var bindings []agenttest.Binding
	for slot := range c.slots {
		if w := c.wanted[slot]; w != nil {
			on, at := c.place(slot)
			bindings = append(bindings, agenttest.Binding{
				ID: w.id, Epoch: w.epoch, Domain: domain(on), Secret: w.secret,
				Host: agenttest.End{Node: numbers[on], Slot: uint32(at), Addresses: hostAddrs},
				Box:  agenttest.End{Node: boxNumber, Slot: uint32(slot), Addresses: boxAddrs},
			})
		}
	}
	c.box.Apply(agenttest.Desired(boxNumber, c.revision, bindings...))
	for i, h := range c.switches {
		h.Apply(agenttest.Desired(numbers[i], c.revision, bindings...))
	}
}

// observed returns the reports of both ends about a binding; nil: none.
func (c *cluster) observed(slot int, w *want) (host, box *dxpuv1.ObservedBinding) {
	c.mu.Lock()
	on, at := c.place(slot)
	h, x := c.switches[on], c.box
	c.mu.Unlock()
	ours := func(s *dxpuv1.ObservedSlot) *dxpuv1.ObservedBinding {
		if s.GetBinding().GetBindingId() == w.id {
			return s.Binding
		}
		return nil
	}
	return ours(h.Observe().Slots[at]), ours(x.Observe().Slots[slot])
}

// device opens the bus of the device in a slot, and returns the device too.
func (c *cluster) device(ctx context.Context, slot int) (driver.Bus, *sequence, error) {
	c.mu.Lock()
	on, at := c.place(slot)
	inside, vm, g := c.inside, c.vm, c.gpus[slot]
	c.mu.Unlock()
	if on == 0 {
		bus, err := inside.Open(at)
		return bus, g, err
	}
	o := vfiouserbus.Options{BAR32: 0xc000_0000 + uint64(at)<<24, BAR64: 0x80_0000_0000 + uint64(at)<<36}
	bus, err := o.Open(ctx, vm.Socket(at))
	return bus, g, err
}

package soak

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

const (
	paths   = 2
	gpuVRAM = 16 << 20
	// Memory of the embedded host: for the program, and for each of its devices.
	hostBase, hostEach = 8 << 20, 6 << 20
)

// Sides of the network.
const (
	hostSide = iota
	nearBox
	farBox
	sides
)

const boxes = sides - nearBox

// Node numbers in the manager's place: each virtual switch of the host is a node.
var (
	switchNumbers = [...]uint32{1, 2}
	boxNumbers    = [boxes]uint32{3, 4}
)

// cluster is two box proxies and a host proxy with two virtual switches, one of an
// embedded host and one of a VM. It acts as their manager: it gives each its
// desired state, also after a restart.
type cluster struct {
	slots []place // of the host
	dir   string

	mu       sync.Mutex    // guards the fields below
	proxies  [sides]*proxy // by side; after a failed restart, the killed proxy
	boxes    [boxes]*boxproxy.Box
	gpus     []*sequence     // by slot; nil: a device server
	servers  []*deviceServer // by slot; nil: a GPU
	switches [2]*hostproxy.Proxy
	inside   *hostproxy.Embedded
	vm       *hostproxy.VM
	addrs    [sides][]string
	wanted   map[int]*want // by slot
	revision uint64
	epoch    uint64

	newsMu sync.Mutex
	news   chan struct{} // closed and replaced at each change of a side
}

// want is the desired binding of a slot.
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
	c := &cluster{
		slots: places(slots), dir: dir, wanted: map[int]*want{}, news: make(chan struct{}),
		gpus: make([]*sequence, slots), servers: make([]*deviceServer, slots),
	}
	for side := range c.addrs {
		c.addrs[side] = []string{"127.0.0.1:0", "127.0.0.1:0"}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.startServersLocked(), c.startBoxLocked(nearBox), c.startBoxLocked(farBox), c.startHostLocked()); err != nil {
		c.stopLocked()
		return nil, err
	}
	return c, nil
}

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
	for _, s := range c.servers {
		if s != nil {
			s.stop()
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

func (c *cluster) startServersLocked() error {
	for slot, p := range c.slots {
		if !p.server {
			continue
		}
		s, err := newDeviceServer(filepath.Join(c.dir, fmt.Sprintf("server%d", slot)))
		if err != nil {
			return err
		}
		c.servers[slot] = s
		if err := s.start(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) startBoxLocked(side int) error {
	p, err := c.openLocked(side)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	var slots []boxproxy.Slot
	for slot, at := range c.slots {
		switch {
		case at.box != side:
			continue
		case at.server:
			slots = append(slots, boxproxy.Slot{Device: vfioserver.New(context.Background(), vfioserver.Spec{Socket: c.servers[slot].path}, log)})
			continue
		}
		g, err := gpu.New(gpu.Spec{VRAM: gpuVRAM, Serial: uint64(slot + 1)})
		if err != nil {
			return err
		}
		c.gpus[slot] = &sequence{GPU: g}
		slots = append(slots, boxproxy.Slot{Device: c.gpus[slot]})
	}
	box, err := boxproxy.New(boxproxy.Config{Slots: slots, Fabric: p.fabric, Logger: log})
	if err != nil {
		return err
	}
	c.boxes[side-nearBox] = box
	box.OnChange(c.note)
	p.runParts.Go(box.Run)
	return nil
}

func (c *cluster) startHostLocked() error {
	p, err := c.openLocked(hostSide)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	var slots [len(switchNumbers)]int
	for _, at := range c.slots {
		slots[at.on]++
	}
	c.inside = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: hostBase + slots[0]*hostEach})
	c.vm = &hostproxy.VM{SocketDir: c.dir, Polling: reader.Polling{Window: reader.DefaultWindow}, Logger: log}
	for i, front := range []hostproxy.Front{c.inside, c.vm} {
		c.switches[i], err = hostproxy.New(hostproxy.Config{Slots: slots[i], Front: front, Fabric: p.fabric, Domain: domain(i), Logger: log})
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
	var err error
	if side == hostSide {
		err = c.startHostLocked()
	} else {
		err = c.startBoxLocked(side)
	}
	c.applyLocked()
	return err
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

// applyLocked gives each part its desired state.
func (c *cluster) applyLocked() {
	c.revision++
	var addrs [sides][]*dxpuv1.PathAddress
	for side, p := range c.proxies {
		addrs[side] = agent.Addresses(p.fabric)
	}
	var bindings []agenttest.Binding
	for slot, at := range c.slots {
		if w := c.wanted[slot]; w != nil {
			bindings = append(bindings, agenttest.Binding{
				ID: w.id, Epoch: w.epoch, Domain: domain(at.on), Secret: w.secret,
				Host: agenttest.End{Node: switchNumbers[at.on], Slot: uint32(at.at), Addresses: addrs[hostSide]},
				Box:  agenttest.End{Node: boxNumbers[at.box-nearBox], Slot: uint32(at.in), Addresses: addrs[at.box]},
			})
		}
	}
	for i, b := range c.boxes {
		b.Apply(agenttest.Desired(boxNumbers[i], c.revision, bindings...))
	}
	for i, h := range c.switches {
		h.Apply(agenttest.Desired(switchNumbers[i], c.revision, bindings...))
	}
}

// ends returns the reports of the host and the box about a slot.
func (c *cluster) ends(slot int) (host, box *dxpuv1.ObservedSlot) {
	at := c.slots[slot]
	c.mu.Lock()
	h, x := c.switches[at.on], c.boxes[at.box-nearBox]
	c.mu.Unlock()
	return h.Observe().Slots[at.at], x.Observe().Slots[at.in]
}

// observed returns the reports of both ends about a binding; nil: none.
func (c *cluster) observed(slot int, w *want) (host, box *dxpuv1.ObservedBinding) {
	h, x := c.ends(slot)
	ours := func(s *dxpuv1.ObservedSlot) *dxpuv1.ObservedBinding {
		if s.GetBinding().GetBindingId() == w.id {
			return s.Binding
		}
		return nil
	}
	return ours(h), ours(x)
}

// open opens the bus of the device in a slot.
func (c *cluster) open(ctx context.Context, slot int) (driver.Bus, error) {
	at := c.slots[slot]
	c.mu.Lock()
	inside, vm := c.inside, c.vm
	c.mu.Unlock()
	if at.on == 0 {
		return inside.Open(at.at)
	}
	o := vfiouserbus.Options{BAR32: 0xc000_0000 + uint64(at.at)<<24, BAR64: 0x80_0000_0000 + uint64(at.at)<<36}
	return o.Open(ctx, vm.Socket(at.at))
}

// gpu returns the software GPU behind a slot; nil: a device server.
func (c *cluster) gpu(slot int) *sequence {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gpus[slot]
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

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
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Node numbers, as a manager would give them: each virtual switch of the host
// is a node.
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

// cluster is a host proxy with two virtual switches, one of an embedded host and
// one of a VM, and a box proxy. In the manager's place it gives each its desired
// state, also after a restart.
type cluster struct {
	slots int // of the box; those of the host are numbered alike, first the embedded ones
	dir   string

	mu       sync.Mutex // guards what follows
	proxies  [2]*proxy  // by side; one that could not be restarted stays as it was killed
	box      *boxproxy.Box
	gpus     []*sequence
	switches [2]*hostproxy.Host
	inside   *hostproxy.Embedded
	vm       *hostproxy.VM
	addrs    [2][]string
	wanted   map[int]*want // by slot
	revision uint64
	epoch    uint64

	newsMu sync.Mutex
	news   chan struct{} // closed and replaced when a side reports something new
}

// want is a binding of slot i of the host with slot i of the box.
type want struct {
	id     string
	epoch  uint64
	secret []byte
}

// proxy is a running process, as far as one can be inside of another.
type proxy struct {
	fab                      *netio.Fabric
	stopFabric, stop         context.CancelFunc
	fabricRunning, itRunning sync.WaitGroup
}

func newCluster(slots int, dir string) (*cluster, error) {
	r := &cluster{slots: slots, dir: dir, wanted: map[int]*want{}, news: make(chan struct{})}
	r.addrs = [2][]string{{"127.0.0.1:0", "127.0.0.1:0"}, {"127.0.0.1:0", "127.0.0.1:0"}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.startBoxLocked(), r.startHostLocked()); err != nil {
		r.stopLocked()
		return nil, err
	}
	return r, nil
}

// embedded is how many slots the embedded host has.
func (r *cluster) embedded() int { return r.slots / 2 }

func (r *cluster) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopLocked()
}

func (r *cluster) stopLocked() {
	for _, p := range r.proxies {
		if p != nil {
			p.end()
		}
	}
}

// openLocked opens the sockets of a side, on the addresses that it had before.
func (r *cluster) openLocked(side int) (*proxy, error) {
	cfg := netio.Config{Polling: reader.Polling{Window: reader.DefaultWindow}, Logger: slog.New(slog.DiscardHandler)}
	for _, a := range r.addrs[side] {
		cfg.Paths = append(cfg.Paths, netio.PathConfig{Listen: a})
	}
	f, err := netio.Open(cfg)
	if err != nil {
		return nil, err
	}
	for i, a := range f.Addrs() {
		r.addrs[side][i] = a.String()
	}
	p := &proxy{fab: f}
	var ctx context.Context
	ctx, p.stopFabric = context.WithCancel(context.Background())
	p.fabricRunning.Go(func() { _ = f.Run(ctx) })
	r.proxies[side] = p
	return p, nil
}

// run runs the parts of a proxy.
func (p *proxy) run(parts ...func(context.Context) error) {
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	for _, part := range parts {
		p.itRunning.Go(func() { _ = part(ctx) })
	}
}

// end ends a proxy in order: its parts have a last word for their peers.
func (p *proxy) end() {
	if p.stop != nil {
		p.stop()
	}
	p.itRunning.Wait()
	p.stopFabric()
	p.fabricRunning.Wait()
}

// kill ends a proxy as SIGKILL does: nobody is told.
func (p *proxy) kill() {
	p.stopFabric()
	p.fabricRunning.Wait()
	p.end()
}

func (r *cluster) startBoxLocked() error {
	p, err := r.openLocked(boxSide)
	if err != nil {
		return err
	}
	r.gpus = nil
	var slots []boxproxy.Slot
	for i := range r.slots {
		g, err := gpu.New(gpu.Spec{VRAM: gpuVRAM, Serial: uint64(i + 1)})
		if err != nil {
			return err
		}
		s := &sequence{GPU: g}
		slots, r.gpus = append(slots, boxproxy.Slot{Device: s}), append(r.gpus, s)
	}
	r.box, err = boxproxy.New(boxproxy.Config{Slots: slots, Fabric: p.fab, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	r.box.OnChange(r.note)
	p.run(r.box.Run)
	return nil
}

func (r *cluster) startHostLocked() error {
	p, err := r.openLocked(hostSide)
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	r.inside = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: hostSize})
	r.vm = &hostproxy.VM{SocketDir: r.dir, Polling: reader.Polling{Window: reader.DefaultWindow}, Logger: log}
	for i, front := range []hostproxy.Front{r.inside, r.vm} {
		slots := r.embedded()
		if i == 1 {
			slots = r.slots - slots
		}
		r.switches[i], err = hostproxy.New(hostproxy.Config{Slots: slots, Front: front, Fabric: p.fab, Domain: domain(i), Logger: log})
		if err != nil {
			return err
		}
		r.switches[i].OnChange(r.note)
	}
	p.run(r.switches[0].Run, r.switches[1].Run)
	return nil
}

func domain(i int) string { return fmt.Sprintf("switch%d", i) }

// restart kills a side and starts it again, on the same addresses.
func (r *cluster) restart(side int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proxies[side].kill()
	start := r.startBoxLocked
	if side == hostSide {
		start = r.startHostLocked
	}
	err := start()
	r.applyLocked()
	return err
}

// setFault changes what a side does to the datagrams it sends by a path.
func (r *cluster) setFault(side, path int, plan fault.Plan, seed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.proxies[side].fab.SetFault(path, plan, seed) // the path is there
}

func (r *cluster) jump(side int, by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proxies[side].fab.Jump(by)
}

// note wakes those who wait for news.
func (r *cluster) note() {
	r.newsMu.Lock()
	defer r.newsMu.Unlock()
	close(r.news)
	r.news = make(chan struct{})
}

func (r *cluster) nextNews() <-chan struct{} {
	r.newsMu.Lock()
	defer r.newsMu.Unlock()
	return r.news
}

// until waits for something that a side reports, or that a look now and then
// finds. It returns false when that did not happen in time.
func (r *cluster) until(limit time.Duration, ok func() bool) bool {
	end := time.NewTimer(limit)
	defer end.Stop()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		news := r.nextNews()
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

// bind wants a binding for a slot.
func (r *cluster) bind(slot int) *want {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch++
	w := &want{id: fmt.Sprint("b", r.epoch), epoch: r.epoch, secret: make([]byte, 32)}
	_, _ = crand.Read(w.secret) // never fails
	r.wanted[slot] = w
	r.applyLocked()
	return w
}

func (r *cluster) unbind(slot int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.wanted, slot)
	r.applyLocked()
}

// place says where a slot of the host is.
func (r *cluster) place(slot int) (on, at int) {
	if slot < r.embedded() {
		return 0, slot
	}
	return 1, slot - r.embedded()
}

// applyLocked tells each part what it should have.
func (r *cluster) applyLocked() {
	r.revision++
	hostAddrs, boxAddrs := agent.Addresses(r.proxies[hostSide].fab), agent.Addresses(r.proxies[boxSide].fab)
	numbers := [...]uint32{embeddedNumber, vmNumber}
	var bindings []agenttest.Binding
	for slot := range r.slots {
		if w := r.wanted[slot]; w != nil {
			on, at := r.place(slot)
			bindings = append(bindings, agenttest.Binding{
				ID: w.id, Epoch: w.epoch, Domain: domain(on), Secret: w.secret,
				Host: agenttest.End{Node: numbers[on], Slot: uint32(at), Addresses: hostAddrs},
				Box:  agenttest.End{Node: boxNumber, Slot: uint32(slot), Addresses: boxAddrs},
			})
		}
	}
	r.box.Apply(agenttest.Desired(boxNumber, r.revision, bindings...))
	for i, h := range r.switches {
		h.Apply(agenttest.Desired(numbers[i], r.revision, bindings...))
	}
}

// observed is what both ends report of a binding, nil for nothing.
func (r *cluster) observed(slot int, w *want) (host, box *dxpuv1.ObservedBinding) {
	r.mu.Lock()
	on, at := r.place(slot)
	h, x := r.switches[on], r.box
	r.mu.Unlock()
	ours := func(s *dxpuv1.ObservedSlot) *dxpuv1.ObservedBinding {
		if s.GetBinding().GetBindingId() == w.id {
			return s.Binding
		}
		return nil
	}
	return ours(h.Observe().Slots[at]), ours(x.Observe().Slots[slot])
}

// device returns the driver's way to the device in a slot, and the device.
func (r *cluster) device(ctx context.Context, slot int) (driver.Bus, *sequence, error) {
	r.mu.Lock()
	on, at := r.place(slot)
	inside, vm, g := r.inside, r.vm, r.gpus[slot]
	r.mu.Unlock()
	if on == 0 {
		bus, err := inside.Open(at)
		return bus, g, err
	}
	o := vfiouserbus.Options{BAR32: 0xc000_0000 + uint64(at)<<24, BAR64: 0x80_0000_0000 + uint64(at)<<36}
	bus, err := o.Open(ctx, vm.Socket(at))
	return bus, g, err
}

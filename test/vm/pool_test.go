package vm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// pool is a box proxy and a host proxy in this process, joined by a wire that can be
// cut. There is no manager: the test gives each its desired state.
type pool struct {
	box              *boxproxy.Box
	host             *hostproxy.Proxy
	boxFab, hostFab  *netio.Fabric
	wire             *wire
	news             chan struct{} // the host proxy has something to report
	revision, epochs uint64
	bindings         map[int]*agenttest.Binding // by host slot
	log              *os.File
}

const (
	hostNumber = 7
	boxNumber  = 9
	boxGPUs    = 6
)

type poolConfig struct {
	completionTimeout, unplugTimeout time.Duration
	byHand                           bool // the proxy has no QMP socket
}

// newPool starts the proxies beside a guest, for the duration of the test.
func newPool(t *testing.T, g *guest, cfg poolConfig) *pool {
	t.Helper()
	p := &pool{news: make(chan struct{}, 1), bindings: map[int]*agenttest.Binding{}}
	var err error
	if p.log, err = os.Create(filepath.Join(g.dir, "proxies.log")); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	open := func() *netio.Fabric {
		f, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	p.boxFab, p.hostFab = open(), open()
	p.wire = newWire(t, p.boxFab.Addrs()[0], p.hostFab.Addrs()[0])
	var slots []boxproxy.Slot
	aperture := int64(0) // the default
	if g.spec.Switch {
		aperture = 1 << 20
	}
	for i := range boxGPUs {
		g, err := gpu.New(gpu.Spec{Serial: uint64(i + 1), Aperture: aperture})
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, boxproxy.Slot{Device: g})
	}
	if p.box, err = boxproxy.New(boxproxy.Config{Slots: slots, Fabric: p.boxFab, Logger: log.With("node", "box")}); err != nil {
		t.Fatal(err)
	}
	front := &hostproxy.VM{SocketDir: g.dir, QMP: g.qmp, RootPort: "rp%d", Logger: log.With("node", "host")}
	if cfg.byHand {
		front.QMP = ""
	}
	p.host, err = hostproxy.New(hostproxy.Config{
		Slots: g.spec.Slots, Front: front, Fabric: p.hostFab, Domain: "host/0", Logger: log.With("node", "host"),
		CompletionTimeout: cfg.completionTimeout, UnplugTimeout: cfg.unplugTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.host.OnChange(func() {
		select {
		case p.news <- struct{}{}:
		default:
		}
	})
	p.run(t)
	return p
}

// run runs the proxies until the test ends: roles before their networks.
func (p *pool) run(t *testing.T) {
	for _, f := range []func(context.Context) error{p.hostFab.Run, p.boxFab.Run, p.box.Run, p.host.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		var done sync.WaitGroup
		done.Go(func() {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { // the last one first
			cancel()
			done.Wait()
		})
	}
}

// attach binds a slot of the host to one of the box and waits until the device
// has been plugged into the VM.
func (p *pool) attach(t *testing.T, hostSlot, boxSlot int) {
	t.Helper()
	p.bind(hostSlot, boxSlot)
	p.await(t, hostSlot, dxpuv1.BindingState_BINDING_STATE_ATTACHED)
}

func (p *pool) bind(hostSlot, boxSlot int) {
	p.epochs++
	// Each side sees the other at its end of the wire.
	mtu := uint32(p.hostFab.MTUs()[0])
	end := func(node uint32, slot int, addr netip.AddrPort) agenttest.End {
		return agenttest.End{Node: node, Slot: uint32(slot), Addresses: []*dxpuv1.PathAddress{{Address: addr.String(), Mtu: mtu}}}
	}
	p.bindings[hostSlot] = &agenttest.Binding{
		ID: fmt.Sprintf("b%d", p.epochs), Epoch: p.epochs, Domain: "host/0",
		Host: end(hostNumber, hostSlot, p.wire.boxEnd.LocalAddr()),
		Box:  end(boxNumber, boxSlot, p.wire.hostEnd.LocalAddr()),
	}
	box, host := p.desired()
	p.box.Apply(box)
	p.host.Apply(host)
}

// replug plugs the device of a slot in again that the guest has removed.
func (p *pool) replug(t *testing.T, slot int) {
	t.Helper()
	p.bindings[slot].Replugs++
	box, host := p.desired()
	p.box.Apply(box)
	p.host.Apply(host)
	p.awaitThat(t, slot, "plugged in again", func(b *dxpuv1.ObservedBinding) bool { return !b.GetEjected() })
}

// detach unplugs the device of a slot and waits until the slot is free. Like the
// manager it updates the box after the host, so that the guest can finish its use of
// the device.
func (p *pool) detach(t *testing.T, hostSlot int) {
	t.Helper()
	delete(p.bindings, hostSlot)
	box, host := p.desired()
	p.host.Apply(host)
	p.await(t, hostSlot, dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED)
	p.box.Apply(box)
}

// desired returns the state that both sides should have.
func (p *pool) desired() (box, host *dxpuv1.DesiredState) {
	p.revision++
	var bindings []agenttest.Binding
	for _, b := range p.bindings {
		bindings = append(bindings, *b)
	}
	return agenttest.Desired(boxNumber, p.revision, bindings...), agenttest.Desired(hostNumber, p.revision, bindings...)
}

// await waits until the host reports a slot's binding in a state.
func (p *pool) await(t *testing.T, slot int, state dxpuv1.BindingState) {
	t.Helper()
	p.awaitThat(t, slot, state.String(), func(b *dxpuv1.ObservedBinding) bool { return b.GetState() == state })
}

// awaitThat waits until ok returns true for the host's report of a slot's binding.
func (p *pool) awaitThat(t *testing.T, slot int, what string, ok func(*dxpuv1.ObservedBinding) bool) {
	t.Helper()
	deadline := time.After(patience)
	look := time.NewTicker(50 * time.Millisecond) // a change of the use of a device makes no call of OnChange
	defer look.Stop()
	for {
		have := p.host.Observe().Slots[slot].Binding
		if ok(have) {
			return
		}
		if have.GetState() == dxpuv1.BindingState_BINDING_STATE_FAILED {
			t.Fatalf("slot %d: %s", slot, have.GetDetail())
		}
		select {
		case <-p.news:
		case <-look.C:
		case <-deadline:
			t.Fatalf("slot %d: %v (%s), want: %s", slot, have.GetState(), have.GetDetail(), what)
		}
	}
}

// kill makes a GPU of the box fall off its bus.
func (p *pool) kill(t *testing.T, boxSlot int) {
	t.Helper()
	err := p.box.With(t.Context(), boxSlot, func(d device.Device) { d.(*gpu.GPU).Inject(gpu.Kill) })
	if err != nil {
		t.Fatal(err)
	}
}

// wire carries datagrams between the two proxies until it is cut; then it drops them
// silently, as after the death of a machine.
type wire struct {
	boxEnd, hostEnd *udp.Conn // the box, as the host sees it; and the host
	cut             atomic.Bool
}

func newWire(t *testing.T, box, host netip.AddrPort) *wire {
	t.Helper()
	listen := func() *udp.Conn {
		c, err := udp.Listen("127.0.0.1:0", udp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	w := &wire{boxEnd: listen(), hostEnd: listen()}
	var ended sync.WaitGroup
	ended.Go(func() { w.carry(w.hostEnd, w.boxEnd, box) })
	ended.Go(func() { w.carry(w.boxEnd, w.hostEnd, host) })
	t.Cleanup(func() {
		_, _ = w.boxEnd.Close(), w.hostEnd.Close()
		ended.Wait()
	})
	return w
}

func (w *wire) carry(from, via *udp.Conn, to netip.AddrPort) {
	r, out := from.NewReader(), via.NewWriter()
	for {
		batch, segment, _, err := r.Read()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // nothing arrived for a while
			continue
		}
		for max := out.MaxBatch(segment); len(batch) > 0 && !w.cut.Load(); {
			n := min(max, len(batch))
			_ = out.Write(batch[:n], segment, to) // the links retransmit lost datagrams
			batch = batch[n:]
		}
	}
}

// resources counts file descriptors and mappings of a process.
type resources struct{ files, maps int }

func (r resources) exceeds(before resources) bool {
	return r.files > before.files || r.maps > before.maps
}

// resourcesOf counts the resources of a process: "self" or a process ID.
func resourcesOf(t *testing.T, pid any) resources {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%v/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%v/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Only mappings of guest memory; others belong to the run-time system.
	return resources{len(fds), strings.Count(string(maps), "/memfd:")}
}

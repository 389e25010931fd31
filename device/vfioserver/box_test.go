package vfioserver_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/pcie"
)

// pair is a box with one slot and a host with one slot, joined over UDP.
type pair struct {
	t        *testing.T
	box      *boxproxy.Box
	host     *hostproxy.Proxy
	boxFab   *netio.Fabric
	hostFab  *netio.Fabric
	vm       *hostproxy.VM
	news     chan struct{}
	revision uint64
}

func newPair(t *testing.T, dev device.Device) *pair {
	t.Helper()
	dir, err := os.MkdirTemp("", "dxpu")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	log := slog.New(slog.DiscardHandler)
	p := &pair{t: t, news: make(chan struct{}, 1), vm: &hostproxy.VM{SocketDir: dir, Logger: log, Polling: reader.Polling{Window: reader.DefaultWindow}}}
	open := func() *netio.Fabric {
		f, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: log, Polling: reader.Polling{Window: reader.DefaultWindow}})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	p.boxFab, p.hostFab = open(), open()
	if p.box, err = boxproxy.New(boxproxy.Config{Slots: []boxproxy.Slot{{Device: dev}}, Fabric: p.boxFab, Logger: log}); err != nil {
		t.Fatal(err)
	}
	p.host, err = hostproxy.New(hostproxy.Config{Slots: 1, Front: p.vm, Fabric: p.hostFab, Domain: "h/0", Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	note := func() {
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
	p.box.OnChange(note)
	p.host.OnChange(note)
	start := func(run func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
		return func() { cancel(); wg.Wait() }
	}
	for _, run := range []func(context.Context) error{p.boxFab.Run, p.hostFab.Run, p.box.Run, p.host.Run} {
		t.Cleanup(start(run)) // ended in the opposite order
	}
	return p
}

// bind binds the two slots, or ends their binding.
func (p *pair) bind(bound bool) {
	p.t.Helper()
	p.revision++
	const boxNode, hostNode = 9, 7
	var bindings []agenttest.Binding
	if bound {
		bindings = []agenttest.Binding{{
			ID: "b", Epoch: p.revision, Domain: "h/0",
			Host: agenttest.End{Node: hostNode, Addresses: agent.Addresses(p.hostFab)},
			Box:  agenttest.End{Node: boxNode, Addresses: agent.Addresses(p.boxFab)},
		}}
	}
	p.box.Apply(agenttest.Desired(boxNode, p.revision, bindings...))
	p.host.Apply(agenttest.Desired(hostNode, p.revision, bindings...))
	state := dxpuv1.BindingState_BINDING_STATE_ATTACHED
	if !bound {
		state = dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED
	}
	p.await(state)
}

func (p *pair) await(state dxpuv1.BindingState) {
	p.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		have := p.host.Observe().Slots[0].Binding
		if have.GetState() == state {
			return
		}
		select {
		case <-p.news:
		case <-deadline:
			p.t.Fatalf("%v (%s), want %v", have.GetState(), have.GetDetail(), state)
		}
	}
}

// plug makes a slot of a toy and binds it, and opens it as a guest does.
func plug(t *testing.T, d *toy) (*pair, *vfiouserbus.Bus) {
	t.Helper()
	p := newPair(t, newDevice(t, d.path))
	p.bind(true)
	return p, p.open()
}

func newDevice(t *testing.T, path string) device.Device {
	return vfioserver.New(t.Context(), vfioserver.Spec{Socket: path}, slog.New(slog.DiscardHandler))
}

func (p *pair) open() *vfiouserbus.Bus {
	p.t.Helper()
	bus, err := vfiouserbus.Open(p.t.Context(), p.vm.Socket(0))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = bus.Close() })
	return bus
}

func bar0(t *testing.T, bus *vfiouserbus.Bus) driver.Region {
	t.Helper()
	r, err := bus.BAR(0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The device of another process works through box proxy, network, host proxy and
// a vfio-user socket, as for a guest.
func TestDeviceServerEndToEnd(t *testing.T) {
	d := newToy(t, nil)
	p, bus := plug(t, d)
	if id := bus.ConfigRead32(0); id != toyDevice<<16|toyVendor {
		t.Errorf("ID %#x", id)
	}
	r := bar0(t, bus)
	if r.Size() != toyBAR {
		t.Errorf("BAR 0 has %d bytes, want %d", r.Size(), toyBAR)
	}
	r.Write64(toyScratch, 0x1122334455667788)
	if v := r.Read64(toyScratch); v != 0x1122334455667788 {
		t.Errorf("scratch %#x", v)
	}
	if v := r.Read32(toyScratch + 4); v != 0x11223344 {
		t.Errorf("upper half of scratch %#x", v)
	}
	if err := bus.EnableMSIX(toyVectors); err != nil {
		t.Fatal(err)
	}
	copyThroughToy(t, bus, r)

	// A second tenant finds nothing of the first.
	if err := bus.Close(); err != nil {
		t.Error(err)
	}
	p.bind(false)
	p.bind(true)
	bus = p.open()
	r = bar0(t, bus)
	if v := r.Read64(toyScratch); v != 0 {
		t.Errorf("scratch %#x after a new binding", v)
	}
	if err := bus.EnableMSIX(2); err != nil {
		t.Fatal(err)
	}
	copyThroughToy(t, bus, r)
}

// copyThroughToy lets the toy read memory, and write it back plus one and interrupt.
func copyThroughToy(t *testing.T, bus *vfiouserbus.Bus, r driver.Region) {
	t.Helper()
	m, err := bus.AllocDMA(2 * toyBuffer)
	if err != nil {
		t.Fatal(err)
	}
	addr := m.Segments()[0].Addr
	for round, n := range []int{4, 1, 4096, 65537, toyBuffer - 8} {
		in, out := m.Bytes()[3:][:n], m.Bytes()[toyBuffer+5:][:n]
		for i := range in {
			in[i] = byte(i + round)
		}
		done := r.Read32(toyDone)
		r.Write64(toyAddr, addr+3)
		r.Write32(toyLen, uint32(n))
		r.Write32(toyCommand, toyRead)
		for deadline := time.Now().Add(10 * time.Second); r.Read32(toyDone) == done; {
			if time.Now().After(deadline) {
				t.Fatalf("reading %d bytes does not end", n)
			}
		}
		r.Write64(toyAddr, addr+toyBuffer+5)
		r.Write32(toyVector, 1)
		r.Write32(toyCommand, toyWrite)
		if count, err := bus.WaitInterrupt(t.Context(), 1, 10*time.Second); err != nil || count == 0 {
			t.Fatalf("%d interrupts, %v", count, err)
		}
		// The interrupt came behind the data.
		for i := range in {
			if out[i] != in[i]+1 {
				t.Fatalf("%d bytes: byte %d is %d, want %d", n, i, out[i], in[i]+1)
			}
		}
	}
	if n := r.Read32(toyFailed); n != 0 {
		t.Errorf("%d DMA requests failed", n)
	}
}

// DMA outside of what the host mapped fails in the server and nowhere else.
func TestDeviceServerDMARefused(t *testing.T) {
	d := newToy(t, nil)
	_, bus := plug(t, d)
	r := bar0(t, bus)
	r.Write64(toyAddr, 0x7_0000_0000)
	r.Write32(toyLen, 64)
	r.Write32(toyCommand, toyRead)
	for deadline := time.Now().Add(10 * time.Second); r.Read32(toyDone) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the read does not end")
		}
	}
	if r.Read32(toyFailed) != 1 {
		t.Error("a read of memory that is not there worked")
	}
	// Not a bus master: refused in the box.
	bus.ConfigWrite32(cfgspace.OffCommand, cfgspace.CmdMemory)
	r.Write32(toyCommand, toyRead)
	for deadline := time.Now().Add(10 * time.Second); r.Read32(toyDone) == 1; {
		if time.Now().After(deadline) {
			t.Fatal("the read does not end")
		}
	}
	if r.Read32(toyFailed) != 2 {
		t.Error("DMA without Bus Master Enable worked")
	}
}

func TestDeviceServerResetAndDeath(t *testing.T) {
	d := newToy(t, nil)
	p, bus := plug(t, d)
	r := bar0(t, bus)
	before := d.get(toyResets)
	r.Write64(toyScratch, 7)
	if err := bus.Reset(); err != nil {
		t.Fatal(err)
	}
	if got := d.get(toyResets); got != before+1 {
		t.Errorf("%d resets, want one", got-before)
	}
	if err := d.server.Close(); err != nil {
		t.Error(err)
	}
	p.await(dxpuv1.BindingState_BINDING_STATE_LOST)
	p.awaitHealth(dxpuv1.Health_HEALTH_FAILED)
	if why := p.box.Observe().Slots[0].HealthDetail; !strings.Contains(why, "server is gone") {
		t.Errorf("the box says %q", why)
	}
	if err := bus.Close(); err != nil {
		t.Error(err)
	}
	p.bind(false)

	// The server returns, and the slot can be bound again.
	newToyAt(t, d.path, nil)
	p.awaitHealth(dxpuv1.Health_HEALTH_OK)
	p.bind(true)
	r = bar0(t, p.open())
	r.Write64(toyScratch, 8)
	if v := r.Read64(toyScratch); v != 8 {
		t.Errorf("scratch %#x of the server that returned", v)
	}
}

// A box starts without the server of a slot, and the slot works once it is there.
func TestBoxStartsWithoutServer(t *testing.T) {
	path := socketPath(t)
	p := newPair(t, newDevice(t, path))
	p.awaitHealth(dxpuv1.Health_HEALTH_FAILED)
	if why := p.box.Observe().Slots[0].HealthDetail; !strings.Contains(why, path) {
		t.Errorf("the box says %q", why)
	}
	newToyAt(t, path, nil)
	p.awaitHealth(dxpuv1.Health_HEALTH_OK)
	if id := p.box.Observe().Slots[0].Device.DeviceId; id != toyDevice {
		t.Errorf("device ID %#x", id)
	}
	p.bind(true)
	if id := p.open().ConfigRead32(0); id != toyDevice<<16|toyVendor {
		t.Errorf("ID %#x", id)
	}
}

func (p *pair) awaitHealth(want dxpuv1.Health) {
	p.t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		have := p.box.Observe().Slots[0]
		if have.Health == want {
			return
		}
		select {
		case <-p.news:
		case <-deadline:
			p.t.Fatalf("the box says %v (%s), want %v", have.Health, have.HealthDetail, want)
		}
	}
}

// TestForeignDeviceServer uses the device of another project's server across the
// network. Start a server of docs/conformance.md and name its socket.
func TestForeignDeviceServer(t *testing.T) {
	path := os.Getenv("DXPU_VFIOUSER_SERVER")
	if path == "" {
		t.Skip("set DXPU_VFIOUSER_SERVER to the socket of a vfio-user device server to test against it")
	}
	p := newPair(t, newDevice(t, path))
	p.bind(true)
	for range 2 { // plugged, unplugged, plugged
		bus := p.open()
		id := bus.ConfigRead32(0)
		t.Logf("%04x:%04x, class %06x", id&0xffff, id>>16, bus.ConfigRead32(8)>>8)
		if id&0xffff == 0xffff {
			t.Error("no device answers configuration reads")
		}
		for i := range pcie.MaxBARs {
			if r, err := bus.BAR(i); err == nil {
				t.Logf("BAR %d: %d bytes, the first %#x", i, r.Size(), r.Read32(0))
			}
		}
		if err := bus.Reset(); err != nil {
			t.Logf("reset: %v", err) // not every device has one
		}
		if again := bus.ConfigRead32(0); again != id {
			t.Errorf("ID %#x after a reset, was %#x", again, id)
		}
		if err := bus.Close(); err != nil {
			t.Error(err)
		}
		p.bind(false)
		p.bind(true)
	}
}

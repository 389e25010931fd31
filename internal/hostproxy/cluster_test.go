package hostproxy_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/share"
)

// patience is how long a test waits for what must happen on a loaded machine.
const patience = 30 * time.Second

// cluster is boxes and hosts joined over UDP on loopback, without a manager:
// the test gives each its desired state.
type cluster struct {
	t        testing.TB
	opts     options
	log      *slog.Logger
	news     chan struct{} // a side has something new to report
	revision uint64
	epoch    uint64
	bindings []*binding
	boxes    []*boxSide
	hosts    []*hostSide
}

type options struct {
	gpus    int // slots of each box and host; default 1
	boxes   int // default 1
	hosts   int // default 1
	spec    gpu.Spec
	slices  []share.ClientSpec              // of the one GPU of each box, in place of gpus
	policy  string                          // of the slices; default mps
	police  func(share.Policy) share.Policy // wraps it
	parts   int                             // of the one GPU of each box, beside the whole
	paths   []netio.PathConfig              // default: one without faults
	cipher  dxpuv1.Cipher
	inside  bool // embedded hosts instead of vfio-user sockets
	wrap    func(device.Device) device.Device
	timeout time.Duration // Completion Timeout
	unplug  time.Duration // how long a guest may take; default that of the host proxy
	message bool          // serve memory that the VMM does not share
	qmp     string        // control socket of the first host's QEMU
	pid     func() int    // its process ID; default that of the socket's server
}

// side is what boxes and hosts have in common.
type side struct {
	number uint32 // of the node
	fab    *netio.Fabric
	addrs  []string

	stopFabric, stop context.CancelFunc
	fabricDone, done sync.WaitGroup
}

type boxSide struct {
	side
	*boxproxy.Box
}

type hostSide struct {
	side
	*hostproxy.Proxy
	vm     *hostproxy.VM
	inside *hostproxy.Embedded
	domain string
}

// binding joins a slot of a host and a slot of a box.
type binding struct {
	id                  string
	epoch               uint64
	host, slot          int
	box, boxSlot        int
	hostGone, boxGone   bool // one side is no longer told of it
	replugs             uint32
	part                *dxpuv1.Part
	domain              string
	hostAddrs, boxAddrs []*dxpuv1.PathAddress
	migration
}

func newCluster(t testing.TB, o options) *cluster {
	t.Helper()
	o.gpus, o.boxes, o.hosts = max(o.gpus, len(o.slices), o.parts+1), max(o.boxes, 1), max(o.hosts, 1)
	if o.cipher == 0 {
		o.cipher = dxpuv1.Cipher_CIPHER_AES_256_GCM
	}
	if o.paths == nil {
		o.paths = make([]netio.PathConfig, 1)
	}
	if o.spec.VRAM == 0 {
		o.spec.VRAM = 32 << 20
	}
	r := &cluster{t: t, opts: o, log: slog.New(slog.DiscardHandler), news: make(chan struct{}, 1)}
	if os.Getenv("DXPU_TEST_LOG") != "" {
		r.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for i := range o.boxes {
		r.boxes = append(r.boxes, r.newBox(i, nil))
	}
	for i := range o.hosts {
		r.hosts = append(r.hosts, r.newHost(i, nil))
	}
	return r
}

func (r *cluster) note() {
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// open makes the fabric of a side, on the addresses given or on new ones.
func (r *cluster) open(s *side, seed uint64, addrs []string) {
	r.t.Helper()
	paths := slices.Clone(r.opts.paths)
	for i := range paths {
		paths[i].Listen, paths[i].Seed = "127.0.0.1:0", seed+uint64(i)
		if addrs != nil {
			paths[i].Listen = addrs[i]
		}
	}
	var err error
	if s.fab, err = netio.Open(netio.Config{Paths: paths, Logger: r.log}); err != nil {
		r.t.Fatal(err)
	}
	for _, a := range s.fab.Addrs() {
		s.addrs = append(s.addrs, a.String())
	}
}

// run starts a side and ends it, in order, with the test.
func (r *cluster) run(s *side, run func(context.Context) error) {
	var fabricCtx, ctx context.Context
	fabricCtx, s.stopFabric = context.WithCancel(context.Background())
	ctx, s.stop = context.WithCancel(context.Background())
	s.fabricDone.Go(func() { check(r.t, s.fab.Run(fabricCtx)) })
	s.done.Go(func() { check(r.t, run(ctx)) })
	r.t.Cleanup(s.end)
}

func (s *side) end() {
	s.stop()
	s.done.Wait()
	s.stopFabric()
	s.fabricDone.Wait()
}

// kill ends a side as SIGKILL does, without a message to the peers.
func (s *side) kill() {
	s.stopFabric()
	s.fabricDone.Wait()
	s.end()
}

// newBox makes a box, in the place of one that has died if there are addresses.
func (r *cluster) newBox(i int, addrs []string) *boxSide {
	r.t.Helper()
	b := &boxSide{side: side{number: uint32(9 + i)}}
	r.open(&b.side, uint64(100*i+10), addrs)
	slots := r.newSlices()
	for n := len(slots); n < r.opts.gpus; n++ {
		spec := r.opts.spec
		spec.Serial = uint64(100*i + n + 1)
		g, err := gpu.New(spec)
		if err != nil {
			r.t.Fatal(err)
		}
		slot := boxproxy.Slot{Device: g}
		if r.opts.wrap != nil {
			slot.Device = r.opts.wrap(slot.Device)
		}
		slots = append(slots, slot)
	}
	var err error
	if b.Box, err = boxproxy.New(boxproxy.Config{Slots: slots, Fabric: b.fab, Logger: r.log.With("box", i)}); err != nil {
		r.t.Fatal(err)
	}
	b.OnChange(r.note)
	r.run(&b.side, b.Run)
	return b
}

// newHost makes a host, in the place of one that has died if there are addresses.
func (r *cluster) newHost(i int, addrs []string) *hostSide {
	r.t.Helper()
	h := &hostSide{side: side{number: uint32(70 + i)}, domain: "host" + strconv.Itoa(i) + "/0"}
	r.open(&h.side, uint64(100*i+50), addrs)
	dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h.vm = &hostproxy.VM{SocketDir: dir, Logger: r.log, MessageDMA: r.opts.message}
	if i == 0 && r.opts.qmp != "" {
		h.vm.QMP, h.vm.RootPort = r.opts.qmp, "rp%d"
		if r.opts.pid != nil {
			h.vm.SetPID(r.opts.pid)
		}
	}
	var front hostproxy.Front = h.vm
	if r.opts.inside {
		enum := rootcomplex.DefaultEnumSpec()
		if n := r.opts.spec.MaxPayload; n != 0 { // a platform that allows what the GPU can
			enum.MaxPayload, enum.MaxReadRequest = n, r.opts.spec.MaxReadRequest
		}
		h.inside = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Enum: &enum, Host: rootcomplex.Spec{MaxPayload: r.opts.spec.MaxPayload}})
		front = h.inside
	}
	h.Proxy, err = hostproxy.New(hostproxy.Config{
		Slots: r.opts.gpus * r.opts.boxes, Front: front, Fabric: h.fab, Domain: h.domain, Logger: r.log.With("host", i),
		CompletionTimeout: r.opts.timeout, UnplugTimeout: r.opts.unplug,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	h.OnChange(r.note)
	r.run(&h.side, h.Run)
	return h
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// bind wants a binding between a slot of a host and one of a box.
func (r *cluster) bind(host, slot, box, boxSlot int) *binding {
	r.t.Helper()
	b := r.plan(host, slot, box, boxSlot)
	r.apply()
	return b
}

// plan is bind without telling the proxies.
func (r *cluster) plan(host, slot, box, boxSlot int) *binding {
	r.epoch++
	b := &binding{
		id: "b" + strconv.FormatUint(r.epoch, 10), epoch: r.epoch, host: host, slot: slot, box: box, boxSlot: boxSlot,
		domain:    r.hosts[host].domain,
		hostAddrs: agent.Addresses(r.hosts[host].fab), boxAddrs: agent.Addresses(r.boxes[box].fab),
	}
	r.bindings = append(r.bindings, b)
	return b
}

// attach binds and waits until the host has the device.
func (r *cluster) attach(host, slot, box, boxSlot int) *binding {
	r.t.Helper()
	b := r.bind(host, slot, box, boxSlot)
	r.await(b, dxpuv1.BindingState_BINDING_STATE_ATTACHED)
	return b
}

// attachSlowly attaches where Completion Timeouts are so short that a machine
// with other things to do lets one pass now and then.
func (r *cluster) attachSlowly(host, slot, box, boxSlot int) (b *binding) {
	r.t.Helper()
	const failed = dxpuv1.BindingState_BINDING_STATE_FAILED
	r.until("attached", func() bool {
		if b == nil {
			b = r.bind(host, slot, box, boxSlot)
		}
		have := r.atHost(b)
		if have.GetState() == failed {
			r.detach(b)
			b = nil
		}
		return have.GetState() == dxpuv1.BindingState_BINDING_STATE_ATTACHED
	})
	return b
}

// detach wants the binding no longer and waits until nothing is left of it.
func (r *cluster) detach(b *binding) {
	r.t.Helper()
	r.drop(b)
	r.until("nothing is left of the binding", func() bool {
		return r.atHost(b) == nil && r.atBox(b) == nil
	})
}

func (r *cluster) drop(b *binding) {
	r.bindings = slices.DeleteFunc(r.bindings, func(other *binding) bool { return other == b })
	r.apply()
}

// apply gives every side what it should have.
func (r *cluster) apply() {
	r.revision++
	give := func(s *side, apply func(*dxpuv1.DesiredState), told func(*binding) bool) {
		var ends []agenttest.Binding
		for _, b := range r.bindings {
			if told(b) {
				ends = append(ends, r.desired(b))
			}
		}
		apply(agenttest.Desired(s.number, r.revision, ends...))
	}
	for _, h := range r.hosts {
		give(&h.side, h.Apply, func(b *binding) bool { return !b.hostGone })
	}
	for _, x := range r.boxes {
		give(&x.side, x.Apply, func(b *binding) bool { return !b.boxGone })
	}
}

func (r *cluster) desired(b *binding) agenttest.Binding {
	return agenttest.Binding{
		Next: r.successor(b), Switch: b.switching,
		ID: b.id, Epoch: b.epoch, Domain: b.domain, Cipher: r.opts.cipher, Replugs: b.replugs, Part: b.part,
		Host: agenttest.End{Node: r.hosts[b.host].number, Slot: uint32(b.slot), Addresses: b.hostAddrs},
		Box:  agenttest.End{Node: r.boxes[b.box].number, Slot: uint32(b.boxSlot), Addresses: b.boxAddrs},
	}
}

// atHost returns what the host reports of a binding, nil for nothing.
func (r *cluster) atHost(b *binding) *dxpuv1.ObservedBinding {
	return ours(b, r.hosts[b.host].Observe().Slots[b.slot])
}

// atBox returns what the box reports of it.
func (r *cluster) atBox(b *binding) *dxpuv1.ObservedBinding {
	return ours(b, r.boxes[b.box].Observe().Slots[b.boxSlot])
}

func ours(b *binding, slot *dxpuv1.ObservedSlot) *dxpuv1.ObservedBinding {
	if o := slot.Binding; o.GetBindingId() == b.id {
		return o
	}
	return nil
}

// await waits until the host reports a binding in a state.
func (r *cluster) await(b *binding, state dxpuv1.BindingState) {
	r.t.Helper()
	r.until(state.String(), func() bool {
		have := r.atHost(b)
		if have.GetState() == dxpuv1.BindingState_BINDING_STATE_FAILED && state != have.State {
			r.t.Fatalf("binding %s: %s", b.id, have.Detail)
		}
		return have.GetState() == state
	})
}

// until waits for something that a side reports, or that a look now and then finds.
func (r *cluster) until(what string, ok func() bool) {
	r.t.Helper()
	limit := time.After(patience)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-r.news:
		case <-look.C:
		case <-limit:
			r.t.Fatalf("timed out: %s", what)
		}
	}
}

// bus gives a driver the device of a slot, as a guest or the embedded host has it.
func (r *cluster) bus(host, slot int, o vfiouserbus.Options) driver.Bus {
	r.t.Helper()
	h := r.hosts[host]
	var bus driver.Bus
	var err error
	if h.inside != nil {
		bus, err = h.inside.Open(slot)
	} else {
		o.BAR32, o.BAR64 = 0xc000_0000+uint64(slot)<<24, 0x80_0000_0000+uint64(slot)<<36
		bus, err = o.Open(r.t.Context(), h.vm.Socket(slot))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return bus
}

// open1 drives the GPU of a slot.
func (r *cluster) open1(host, slot int) (driver.Bus, *driver.Device) {
	r.t.Helper()
	return r.openWith(host, slot, vfiouserbus.Options{})
}

func (r *cluster) openWith(host, slot int, o vfiouserbus.Options) (driver.Bus, *driver.Device) {
	r.t.Helper()
	bus := r.bus(host, slot, o)
	dev, err := driver.Open(r.t.Context(), bus, driver.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	return bus, dev
}

// metric returns the sum of a counter of a proxy over those of its samples
// that have the labels; 0 while there are none.
func metric(t testing.TB, c prometheus.Collector, name string, labels ...string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != "dxpu_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			matches := true
			for i := 0; i+1 < len(labels); i += 2 {
				matches = matches && have[labels[i]] == labels[i+1]
			}
			if matches {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// copyBothWays uploads n bytes, downloads them and compares.
func copyBothWays(t testing.TB, dev *driver.Device, n int) {
	t.Helper()
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ptr, err := dev.Malloc(uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	in, out := pattern(n, n), make([]byte, n)
	if err := s.Upload(t.Context(), ptr, in); err != nil {
		t.Fatal(err)
	}
	if err := s.Download(t.Context(), out, ptr); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in, out) {
		t.Fatal("other bytes came back")
	}
	check(t, dev.Free(ptr))
}

// selfTest runs the driver's own test of everything that the device does.
func selfTest(t testing.TB, dev *driver.Device, o driver.SelfTestOptions) {
	t.Helper()
	var log bytes.Buffer
	report, err := dev.SelfTest(t.Context(), &log, o)
	if err != nil || !report.OK {
		t.Fatalf("self-test: %v\n%s", err, log.String())
	}
	if testing.Verbose() {
		t.Log("\n" + log.String())
	}
}

func closeBoth(t testing.TB, bus driver.Bus, dev *driver.Device) {
	t.Helper()
	check(t, dev.Close())
	check(t, bus.Close())
}

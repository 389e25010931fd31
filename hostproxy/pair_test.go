package hostproxy_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/boxproxy"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fabric"
	"github.com/dxpu-project/dxpu/gpudrv"
	"github.com/dxpu-project/dxpu/gpudrv/vfiouserbus"
	"github.com/dxpu-project/dxpu/hostproxy"
	"github.com/dxpu-project/dxpu/node"
)

// pair is a box and a host joined over UDP on loopback, without a manager: the
// test says what each should have.
type pair struct {
	t         testing.TB
	box       *boxproxy.Box
	host      *hostproxy.Host
	boxFab    *fabric.Fabric
	hostFab   *fabric.Fabric
	vm        *hostproxy.VM
	news      chan struct{}
	revision  uint64
	epoch     uint64
	cipher    dxpuv1.Cipher
	bindings  map[int]*dxpuv1.DesiredBinding // by slot of both sides
	stopBox   context.CancelFunc
	boxStops  sync.WaitGroup
	hostStops sync.WaitGroup
}

const (
	hostNumber = 7
	boxNumber  = 9
)

type pairOptions struct {
	gpus   int
	spec   gpu.Spec
	fabric fabric.PathConfig
	cipher dxpuv1.Cipher
	onHost *hostproxy.Embedded // nil: vfio-user sockets
}

func newPair(t testing.TB, o pairOptions) *pair {
	t.Helper()
	dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p := &pair{t: t, news: make(chan struct{}, 1), bindings: map[int]*dxpuv1.DesiredBinding{}}
	o.fabric.Listen = "127.0.0.1:0"
	open := func() *fabric.Fabric {
		f, err := fabric.Open(fabric.Config{Paths: []fabric.PathConfig{o.fabric}, Logger: log})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	p.boxFab, p.hostFab = open(), open()
	var slots []boxproxy.Slot
	for i := range max(o.gpus, 1) {
		spec := o.spec
		spec.Serial = uint64(i + 1)
		slot, err := boxproxy.NewGPUSlot(spec)
		if err != nil {
			t.Fatal(err)
		}
		slots = append(slots, slot)
	}
	if p.box, err = boxproxy.New(boxproxy.Config{Slots: slots, Fabric: p.boxFab, Logger: log.With("node", "box")}); err != nil {
		t.Fatal(err)
	}
	p.vm = &hostproxy.VM{SocketDir: dir, Logger: log}
	var front hostproxy.Front = p.vm
	if o.onHost != nil {
		front = o.onHost
	}
	p.host, err = hostproxy.New(hostproxy.Config{
		Slots: len(slots), Front: front, Fabric: p.hostFab, Domain: "host/0", Logger: log.With("node", "host"),
	})
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

	var boxCtx, hostCtx context.Context
	boxCtx, p.stopBox = context.WithCancel(context.Background())
	hostCtx, stopHost := context.WithCancel(context.Background())
	p.boxStops.Go(func() { check(t, p.box.Run(boxCtx)) })
	p.hostStops.Go(func() { check(t, p.host.Run(hostCtx)) })
	fabCtx, stopFab := context.WithCancel(context.Background())
	var fabs sync.WaitGroup
	fabs.Go(func() { check(t, p.boxFab.Run(fabCtx)) })
	fabs.Go(func() { check(t, p.hostFab.Run(fabCtx)) })
	t.Cleanup(func() {
		stopHost()
		p.hostStops.Wait()
		p.stopBox()
		p.boxStops.Wait()
		stopFab()
		fabs.Wait()
	})
	if o.cipher == 0 {
		o.cipher = dxpuv1.Cipher_CIPHER_AES_256_GCM
	}
	p.cipher = o.cipher
	return p
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// attach binds slot i of the host to slot i of the box and waits until the
// host has it.
func (p *pair) attach(i int) {
	p.t.Helper()
	p.epoch++
	p.bindings[i] = &dxpuv1.DesiredBinding{
		BindingId: "b", Epoch: p.epoch, Slot: uint32(i), Cipher: p.cipher, Secret: bytes.Repeat([]byte{byte(i + 1)}, 32),
		Mtu: uint32(p.hostFab.MTUs()[0]), Domain: "host/0",
	}
	p.apply()
	p.await(i, dxpuv1.BindingState_BINDING_STATE_ATTACHED)
}

func (p *pair) detach(i int) {
	p.t.Helper()
	delete(p.bindings, i)
	p.apply()
	p.await(i, dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED)
}

// apply gives both sides what they should have.
func (p *pair) apply() {
	p.revision++
	side := func(self uint32, peerFab *fabric.Fabric, peer uint32) *dxpuv1.DesiredState {
		d := &dxpuv1.DesiredState{NodeNumber: self, Revision: p.revision}
		for _, b := range p.bindings {
			c := &dxpuv1.DesiredBinding{
				BindingId: b.BindingId, Epoch: b.Epoch, Slot: b.Slot, Cipher: b.Cipher, Secret: b.Secret, Mtu: b.Mtu, Domain: b.Domain,
				Peer: &dxpuv1.Peer{NodeNumber: peer, Slot: b.Slot, Addresses: node.Addresses(peerFab)},
			}
			d.Bindings = append(d.Bindings, c)
		}
		return d
	}
	p.box.Apply(side(boxNumber, p.hostFab, hostNumber))
	p.host.Apply(side(hostNumber, p.boxFab, boxNumber))
}

// await waits until the host reports a slot's binding in a state.
func (p *pair) await(i int, state dxpuv1.BindingState) {
	p.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		have := p.host.Observe().Slots[i].Binding
		if have.GetState() == state {
			return
		}
		select {
		case <-p.news:
		case <-deadline:
			p.t.Fatalf("slot %d: %v (%s), want %v", i, have.GetState(), have.GetDetail(), state)
		}
	}
}

// open drives the GPU of a slot as a guest does.
func (p *pair) open(i int) (*vfiouserbus.Bus, *gpudrv.Device) {
	p.t.Helper()
	ctx := p.t.Context()
	bus, err := vfiouserbus.Open(ctx, filepath.Join(p.vm.SocketDir, filepath.Base(p.vm.Socket(i))))
	if err != nil {
		p.t.Fatal(err)
	}
	dev, err := gpudrv.Open(ctx, bus, gpudrv.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	return bus, dev
}

func TestAttachDriveDetach(t *testing.T) {
	p := newPair(t, pairOptions{})
	for range 3 {
		p.attach(0)
		bus, dev := p.open(0)
		copyBothWays(t, dev, 3<<20+17)
		check(t, dev.Close())
		check(t, bus.Close())
		p.detach(0)
	}
}

func TestEmbeddedHost(t *testing.T) {
	front := hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{})
	p := newPair(t, pairOptions{gpus: 2, onHost: front})
	for range 2 {
		p.attach(0)
		p.attach(1)
		for slot := range 2 {
			bus, err := front.Open(slot)
			if err != nil {
				t.Fatal(err)
			}
			dev, err := gpudrv.Open(t.Context(), bus, gpudrv.Options{})
			if err != nil {
				t.Fatal(err)
			}
			copyBothWays(t, dev, 3<<20+17)
			check(t, dev.Close())
			check(t, bus.Close())
		}
		p.detach(0)
		p.detach(1)
	}
}

// copyBothWays uploads n bytes, downloads them and compares.
func copyBothWays(t testing.TB, dev *gpudrv.Device, n int) {
	t.Helper()
	ctx := t.Context()
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ptr, err := dev.Malloc(uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	in := make([]byte, n)
	for i := range in {
		in[i] = byte(i*7 + i>>8)
	}
	if err := s.Upload(ctx, ptr, in); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, n)
	if err := s.Download(ctx, out, ptr); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in, out) {
		t.Fatal("other bytes came back")
	}
	check(t, dev.Free(ptr))
}

package hostproxy_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// sliceMemory is that of each slice of twoSlices.
const sliceMemory = 16 << 20

// twoSlices divides a GPU into halves.
func twoSlices() options {
	half := share.ClientSpec{Request: share.Percent(50), Limit: share.Percent(50), Memory: sliceMemory}
	return options{spec: gpu.Spec{VRAM: 2 * sliceMemory}, slices: []share.ClientSpec{half, half}}
}

// newSlices divides a GPU, if the options say so.
func (r *cluster) newSlices() []boxproxy.Slot {
	r.t.Helper()
	if r.opts.parts > 0 {
		return r.newParts()
	}
	if len(r.opts.slices) == 0 {
		return nil
	}
	var memory []int64
	for _, s := range r.opts.slices {
		memory = append(memory, s.Memory)
	}
	physical, err := gpu.NewPhysical(r.opts.spec, memory)
	if err != nil {
		r.t.Fatal(err)
	}
	info, err := share.Find(cmp.Or(r.opts.policy, "mps"))
	if err != nil {
		r.t.Fatal(err)
	}
	policy, err := info.New(physical.Device(), share.Settings{})
	if err != nil {
		r.t.Fatal(err)
	}
	if r.opts.police != nil {
		policy = r.opts.police(policy)
	}
	return boxproxy.SliceSlots(physical.Slices(), dispatch.New(physical.Device(), policy), r.opts.slices)
}

// A host finds in a slice an ordinary GPU, and everything of it works beside another
// slice that is busy.
func TestSliceIsAGPU(t *testing.T) {
	n := newNeighbours(t, twoSlices())
	if m := n.good.Info().Model; !strings.HasSuffix(m, " 1/2") {
		t.Errorf("model %q", m)
	}
	if v := n.good.Info().VRAMSize; v != sliceMemory {
		t.Errorf("%d bytes of memory, want %d", v, sliceMemory)
	}
	if n.good.Info().Serial == n.evil.Info().Serial {
		t.Error("two slices have one serial number")
	}
	s, err := n.evil.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Submit(t.Context(), long(), long()))
	selfTest(t, n.good, driver.SelfTestOptions{Quick: true})
}

// long is a kernel that computes for many seconds, in a slice of twoSlices.
func long() reg.Command {
	return reg.Kernel(0, reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP16, B: 4 << 20, C: 8 << 20, M: 2048, N: 2048, K: 2048, Alpha: 1})
}

// No command, register or aperture of a slice reaches beyond its memory.
func TestSliceMemoryEnds(t *testing.T) {
	n := newNeighbours(t, twoSlices())
	secret := pattern(5, sliceMemory)
	theirs, err := n.good.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, theirs.Upload(t.Context(), 0, secret))
	check(t, theirs.Sync(t.Context()))
	m, err := n.evil.AllocDMA(4096)
	if err != nil {
		t.Fatal(err)
	}
	bus := m.Segments()[0].Addr
	launch := func(l reg.Launch) reg.Command {
		l.Type, l.M, l.Alpha = reg.FP32, 1, 1
		return reg.Kernel(1, l)
	}
	for _, beyond := range []uint64{sliceMemory, sliceMemory - 2, 2*sliceMemory - 4, 2 * sliceMemory, 1 << 39, math.MaxUint64 - 4095} {
		if beyond%4 == 2 { // the last bytes of the slice, and two of the next one
			check(t, refused(t, n.evil, reg.CopyToVRAM(1, beyond, bus, 4)))
			check(t, refused(t, n.evil, reg.CopyFromVRAM(1, bus, beyond, 4)))
			check(t, refused(t, n.evil, reg.CopyVRAM(1, 0, beyond, 4)))
			continue
		}
		for _, cmd := range []reg.Command{
			reg.CopyToVRAM(1, beyond, bus, 4), reg.CopyFromVRAM(1, bus, beyond, 4), reg.CopyVRAM(1, 0, beyond, 4), reg.CopyVRAM(1, beyond, 0, 4),
			reg.Fill(1, beyond, 7, 4),
			launch(reg.Launch{Kernel: reg.KernelCopy, A: beyond}), launch(reg.Launch{Kernel: reg.KernelCopy, C: beyond}),
			launch(reg.Launch{Kernel: reg.KernelAdd, B: beyond}), launch(reg.Launch{Kernel: reg.KernelWrite, C: beyond}),
		} {
			check(t, refused(t, n.evil, cmd))
		}
		// Behind its memory the aperture reads zero and takes no write.
		r := n.evil.Registers()
		r.Write64(reg.ApertureBase, beyond&^(reg.ApertureAlign-1))
		if beyond >= sliceMemory {
			check(t, n.evil.Flush())
			var word [8]byte
			window, err := n.evilBus.BAR(reg.BARVRAM)
			if err != nil {
				t.Fatal(err)
			}
			window.Write64(0, 0x5ec2e75ec2e7)
			if _, err := window.ReadAt(word[:], 0); err != nil || binary.LittleEndian.Uint64(word[:]) != 0 {
				t.Errorf("the aperture at %#x reads %x, %v", beyond, word, err)
			}
		}
	}
	if !bytes.Equal(m.Bytes()[:8], make([]byte, 8)) {
		t.Errorf("host memory got % x", m.Bytes()[:8])
	}
	got := make([]byte, sliceMemory)
	check(t, theirs.Download(t.Context(), got, 0))
	if !bytes.Equal(got, secret) {
		t.Error("the memory of the neighbour has changed")
	}
}

// refused submits a command and wants that the GPU refuses its address.
func refused(t *testing.T, dev *driver.Device, cmd reg.Command) error {
	t.Helper()
	s, err := dev.NewStream()
	if err != nil {
		return err
	}
	defer func() { check(t, s.Close()) }()
	if err := s.Submit(t.Context(), cmd); err != nil {
		return err
	}
	var q *driver.QueueError
	if err := s.Sync(t.Context()); !errors.As(err, &q) || q.Code != reg.ErrRange {
		return fmt.Errorf("%+v: %w, want that the address is refused", cmd, err)
	}
	return s.Reset()
}

// Resets and doorbells of one slice, as fast as its host can make them, do not stop the
// kernels of the other one.
func TestSliceResetsAndDoorbells(t *testing.T) {
	n := newNeighbours(t, twoSlices())
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		hostile(n.evilBus, stop)
	}()
	s, err := n.good.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		check(t, s.Launch(t.Context(), reg.Launch{Kernel: reg.KernelWrite, Type: reg.FP32, C: 0, M: 1 << 18, Alpha: float64(i)}))
		got := make([]byte, 1<<20)
		check(t, s.Download(t.Context(), got, 0))
		if want := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(i))); !bytes.Equal(got[:4], want) || !bytes.Equal(got[len(got)-4:], want) {
			t.Fatalf("kernel %d: % x", i, got[:4])
		}
	}
	check(t, s.Close())
	close(stop)
	<-ended
	if b := n.atHost(n.theirs); b.GetState() != attached {
		t.Errorf("the neighbour's binding is %v: %s", b.GetState(), b.GetDetail())
	}
}

// hostile resets a function, in both ways, and writes to its doorbells until stop.
func hostile(bus driver.Bus, stop chan struct{}) {
	regs, err := bus.BAR(reg.BARRegisters)
	if err != nil {
		return
	}
	at := 0
	for off := 0x40; off < 0x100; off += 4 { // the PCI Express capability
		if bus.ConfigRead32(off)&0xff == cfgspace.CapExpress {
			at = off + cfgspace.OffDevCtl
			break
		}
	}
	for i := 0; !done(stop); i++ {
		for q := range uint64(reg.DefaultQueues) {
			regs.Write32(reg.Queue+q*reg.QueueStride+reg.QControl, reg.QControlEnable)
			regs.Write32(reg.Queue+q*reg.QueueStride+reg.QDoorbell, uint32(i))
		}
		switch {
		case i%64 == 63 && at != 0:
			bus.ConfigWrite32(at, bus.ConfigRead32(at)&0xffff|cfgspace.DevCtlFLR)
		case i%8 == 7:
			regs.Write32(reg.Control, reg.ControlReset)
		}
	}
}

// A fault of a slice ends its binding only; the slice works again for the next tenant. A
// fault of the GPU ends the bindings of all slices.
func TestSliceFaults(t *testing.T) {
	n := newNeighbours(t, twoSlices())
	for _, fails := range []func(*gpu.GPU){
		func(g *gpu.GPU) { g.InjectXID(reg.XIDDoubleBit) },
		func(g *gpu.GPU) { g.Inject(gpu.Hang) }, // ends nothing
	} {
		n.withGPU(0, 0, fails)
	}
	n.await(n.evilOnes, lost)
	copyBothWays(t, n.good, 1<<20)
	selfTest(t, n.good, driver.SelfTestOptions{Quick: true})
	if b := n.atHost(n.theirs); b.GetState() != attached {
		t.Errorf("the neighbour's binding is %v: %s", b.GetState(), b.GetDetail())
	}
	n.detach(n.evilOnes)
	again := n.attach(0, 0, 0, 0)
	bus, dev := n.open1(0, 0)
	copyBothWays(t, dev, 1<<20)
	closeBoth(t, bus, dev)

	for _, slot := range n.boxes[0].Siblings(0) {
		n.withGPU(0, slot, func(g *gpu.GPU) { g.Inject(gpu.Kill) })
	}
	n.await(again, lost)
	n.await(n.theirs, lost)
}

// sliceRounds is the number of bindings of TestSlicesComeAndGo: DXPU_SLICE_ROUNDS, or few.
func sliceRounds(t *testing.T) int {
	t.Helper()
	if text := os.Getenv("DXPU_SLICE_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if raceEnabled || testing.Short() {
		return 8
	}
	return 30
}

// Bindings that come and go, in order or with the death of a host at any point, leave no
// memory, launch or slice behind. DXPU_SLICE_ROUNDS sets their number; a third of them end
// with their host.
func TestSlicesComeAndGo(t *testing.T) {
	o := twoSlices()
	o.slices = append(o.slices, o.slices[0], o.slices[0])
	for i := range o.slices {
		o.slices[i] = share.ClientSpec{Request: share.Percent(25), Limit: share.Percent(25), Memory: sliceMemory / 2}
	}
	o.hosts = 2
	r := newCluster(t, o)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range sliceRounds(t) {
		slot := rng.IntN(len(o.slices))
		b := r.bind(0, slot, 0, slot)
		switch i % 3 {
		case 0: // before it is attached
		case 1: // while a kernel runs
			r.await(b, attached)
			bus, dev := r.open1(0, slot)
			s, err := dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			check(t, s.Submit(t.Context(), long4(), long4()))
			defer closeQuietly(bus, dev)
		case 2: // the host dies
			if rng.IntN(2) == 0 {
				r.await(b, attached)
			}
			r.hosts[0].kill()
			r.drop(b)
			r.until("the box is free of the binding", func() bool { return r.atBox(b) == nil })
			r.hosts[0] = r.newHost(0, nil)
			continue
		}
		r.detach(b)
	}
	for slot := range o.slices {
		r.attach(1, slot, 0, slot)
		bus, dev := r.open1(1, slot)
		all := make([]byte, sliceMemory/2)
		s, err := dev.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		check(t, s.Download(t.Context(), all, 0))
		if !bytes.Equal(all, make([]byte, len(all))) {
			t.Errorf("slice %d: the memory is not empty", slot)
		}
		check(t, s.Launch(t.Context(), reg.Launch{Kernel: reg.KernelWrite, Type: reg.FP32, M: 1024, Alpha: 1}))
		check(t, s.Sync(t.Context()))
		closeBoth(t, bus, dev)
	}
}

// long4 is long for a slice of a quarter.
func long4() reg.Command {
	return reg.Kernel(0, reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP16, B: 2 << 20, C: 4 << 20, M: 1024, N: 1024, K: 1024, Alpha: 1})
}

// The policy may end a client's use of the GPU: its binding is lost, and the next one
// gets a slice that works.
func TestPolicyEvictsSlice(t *testing.T) {
	o := twoSlices()
	o.police = func(p share.Policy) share.Policy { return &evicting{Policy: p} }
	n := newNeighbours(t, o)
	s, err := n.evil.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Submit(t.Context(), long()))
	n.await(n.evilOnes, lost)
	if d := n.boxes[0].Observe().Slots[0].HealthDetail; !strings.Contains(d, "policy") {
		t.Errorf("the box says %q", d)
	}
	copyBothWays(t, n.good, 1<<20)
	n.detach(n.evilOnes)
	n.until("the slice is healthy", func() bool { return n.boxes[0].Observe().Slots[0].Health == dxpuv1.Health_HEALTH_OK })
	n.attach(0, 0, 0, 0)
}

// evicting is a policy that ends a client at its first launch, once.
type evicting struct {
	share.Policy
	client share.ClientID
	over   bool
}

func (p *evicting) Receive(now time.Duration, e share.Event) {
	if e.Kind == share.Launch && !p.over {
		p.client = e.Client
	}
	p.Policy.Receive(now, e)
}

func (p *evicting) Transmit(now time.Duration, out []share.Decision) []share.Decision {
	if p.client != 0 && !p.over {
		p.over = true
		out = append(out, share.Decision{Kind: share.Evict, Client: p.client, Reason: share.ReasonStuck})
	}
	return p.Policy.Transmit(now, out)
}

package sim_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/sim"
)

// tenantMemory is the device memory of a tenant's GPU, in bytes.
const tenantMemory = 64 << 10

var errForeign = errors.New("device memory holds data of another tenant")

// tenant uses a device until it is lost or stop is set: it expects empty device
// memory, fills it with data of its own, and checks them every pause.
func tenant(pause time.Duration, stop *bool) func(sim.Tenant) error {
	return func(t sim.Tenant) error {
		err := use(context.Background(), t, pause, stop)
		if errors.Is(err, errForeign) {
			return err
		}
		return nil // the device was lost
	}
}

func use(ctx context.Context, t sim.Tenant, pause time.Duration, stop *bool) error {
	bus, err := t.Host.Open(t.Slot)
	if err != nil {
		return err
	}
	defer bus.Close() //nolint:errcheck // it frees host memory, also of a lost device
	dev, err := driver.Open(ctx, bus, driver.Options{})
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	memory, err := dev.AllocDMA(tenantMemory)
	if err != nil {
		return err
	}
	read := func(at driver.Ptr, n int) ([]byte, error) {
		if err := stream.CopyToHost(ctx, memory, 0, at, n); err != nil {
			return nil, err
		}
		return memory.Bytes()[:n], stream.Sync(ctx)
	}
	found, err := read(0, tenantMemory)
	if err != nil {
		return err
	}
	if !bytes.Equal(found, make([]byte, tenantMemory)) {
		return errForeign
	}
	own := []byte(fmt.Sprintf("%-64s", t.Binding))
	own = bytes.Repeat(own, tenantMemory/len(own))
	copy(memory.Bytes(), own)
	if err := stream.CopyToDevice(ctx, 0, memory, 0, tenantMemory); err != nil {
		return err
	}
	if err := stream.Sync(ctx); err != nil {
		return err
	}
	for !*stop {
		at, n := t.Rand.IntN(tenantMemory/2), 1+t.Rand.IntN(4096)
		found, err := read(driver.Ptr(at), n)
		if err != nil {
			return err
		}
		if !bytes.Equal(found, own[at:at+n]) {
			return fmt.Errorf("%d bytes at %#x: %w", n, at, errForeign)
		}
		if err := bus.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// trace hashes every datagram with its time and its addresses.
func trace(w *sim.World) (sum func() uint64, datagrams *int) {
	h := fnv.New64a()
	n := 0
	w.OnDatagram = func(at time.Duration, from, to netip.AddrPort, datagram []byte) {
		n++
		head := binary.LittleEndian.AppendUint64(nil, uint64(at))
		for _, a := range []netip.AddrPort{from, to} {
			head, _ = a.AppendBinary(head)
		}
		_, _ = h.Write(head)
		_, _ = h.Write(datagram)
	}
	return h.Sum64, &n
}

func TestPoolAttaches(t *testing.T) {
	p, err := sim.NewPool(sim.PoolSpec{
		Hosts: 2, Boxes: 2, HostSlots: 2, BoxSlots: 2, Paths: 2, GPU: gpu.Spec{VRAM: tenantMemory}, Memory: 4 << 20,
		Plan: fault.Plan{Delay: 5 * us, Loss: 0.001}, ControlDelay: time.Millisecond, Program: tenant(time.Millisecond, new(bool)), Seed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sum, n := trace(p.World)
	p.Run(10 * time.Millisecond)
	for _, h := range p.Hosts {
		for range 2 {
			if _, ok := p.Attach(h); !ok {
				t.Fatal("no GPU")
			}
		}
	}
	if _, ok := p.Attach(p.Hosts[0]); ok {
		t.Fatal("a fifth GPU of four")
	}
	if !p.RunUntil(p.Now()+time.Second, p.Settled) {
		t.Fatal(p.Bindings)
	}
	p.Run(p.Now() + time.Second)
	t.Logf("%d datagrams, hash %x, now %v, lost %d, %v", *n, sum(), p.Now(), p.Lost, p.Bindings)
	for _, err := range p.Failures {
		t.Error(err)
	}
}

// chaos makes trouble in a pool until the given time: bindings come and go,
// proxies restart, GPUs die, networks are bad or cut.
func chaos(p *sim.Pool, rng *rand.Rand, until, every time.Duration) {
	normal := fault.Plan{Delay: 5 * us, Jitter: 2 * us}
	for p.Now() < until {
		p.Run(p.Now() + time.Duration(rng.Int64N(int64(2*every))))
		host, box := p.Hosts[rng.IntN(len(p.Hosts))], p.Boxes[rng.IntN(len(p.Boxes))]
		member := &host.Member
		if rng.IntN(2) == 0 {
			member = &box.Member
		}
		switch rng.IntN(16) {
		case 0:
			member.Restart(time.Duration(rng.Int64N(int64(2 * time.Second))))
		case 1:
			if box.Running() {
				box.Fail(rng.IntN(box.Slots()))
			}
		case 2, 3:
			bad := normal
			bad.Loss, bad.Dup, bad.Reorder, bad.Corrupt = 0.02, 0.01, 0.02, 0.01
			member.Disturb(bad)
		case 4:
			cut := normal
			cut.Partitions = []fault.Window{{From: p.Now(), To: p.Now() + time.Duration(rng.Int64N(int64(2*time.Second)))}}
			member.Disturb(cut)
		case 5, 6, 7:
			member.Disturb(normal)
		case 8, 9, 10:
			if len(p.Bindings) > 0 {
				p.Detach(p.Bindings[rng.IntN(len(p.Bindings))])
			}
		default:
			p.Attach(host)
		}
	}
	for _, h := range p.Hosts {
		h.Disturb(normal)
	}
	for _, b := range p.Boxes {
		b.Disturb(normal)
	}
}

// Hosts and boxes with a thousand links run for ten seconds of virtual time. The
// same seed gives the same datagrams at the same times.
func TestLargePoolIsRepeatable(t *testing.T) {
	if raceEnabled {
		t.Skip("takes minutes with the race detector")
	}
	run := func() uint64 {
		began := time.Now()
		p, err := sim.NewPool(sim.PoolSpec{
			Hosts: 64, Boxes: 64, HostSlots: 16, BoxSlots: 16, Paths: 2, GPU: gpu.Spec{VRAM: tenantMemory}, Memory: 2 << 20,
			Plan: fault.Plan{Delay: 5 * us, Jitter: 2 * us}, ControlDelay: time.Millisecond, ControlLoss: 0.01,
			Program: tenant(500*time.Millisecond, new(bool)), Seed: 7,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		sum, n := trace(p.World)
		p.Run(10 * time.Millisecond)
		for range 12 {
			for _, h := range p.Hosts {
				p.Attach(h)
			}
		}
		chaos(p, rand.New(rand.NewPCG(7, 1)), 10*time.Second, 20*time.Millisecond)
		for _, err := range p.Failures {
			t.Error(err)
		}
		t.Logf("%d bindings, %d lost, %d datagrams in %v", len(p.Bindings), p.Lost, *n, time.Since(began))
		return sum()
	}
	if a, b := run(), run(); a != b {
		t.Error("two runs with one seed differ")
	}
}

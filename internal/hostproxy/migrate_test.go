package hostproxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
)

const (
	migrationCopying = dxpuv1.MigrationState_MIGRATION_STATE_COPYING
	migrationReady   = dxpuv1.MigrationState_MIGRATION_STATE_READY
	migrationDone    = dxpuv1.MigrationState_MIGRATION_STATE_DONE
	migrationFailed  = dxpuv1.MigrationState_MIGRATION_STATE_FAILED
)

// migration is that of a binding.
type migration struct {
	next      *binding // the successor; nil: none
	switching bool     // the host may switch to it
}

// successor returns the desired successor of a binding, nil for none.
func (r *cluster) successor(b *binding) *agenttest.Binding {
	if b.next == nil {
		return nil
	}
	next := r.desired(b.next)
	return &next
}

// prepare wants a migration of a binding and waits until the host may switch.
func (r *cluster) prepare(b *binding, box, boxSlot int) *binding {
	r.t.Helper()
	b.next = r.plan(b.host, b.slot, box, boxSlot)
	r.bindings = r.bindings[:len(r.bindings)-1] // the host gets it as a successor
	r.apply()
	r.until("ready to switch", func() bool {
		host, box := r.atHost(b).GetMigration(), r.atBox(b).GetMigration()
		if host.GetBindingId() != b.next.id || box.GetBindingId() != b.next.id {
			return false // they speak of an earlier migration
		}
		for _, m := range []*dxpuv1.Migration{host, box} {
			if m.GetState() == migrationFailed {
				r.t.Fatal(m.Detail)
			}
		}
		return host.GetState() == migrationCopying && box.GetState() == migrationReady
	})
	return b.next
}

// migrate moves a binding and returns its successor.
func (r *cluster) migrate(b *binding, box, boxSlot int) *binding {
	r.t.Helper()
	next := r.prepare(b, box, boxSlot)
	if state, why := r.switchOver(b); state != migrationDone {
		r.t.Fatalf("the migration failed: %s; source: %v; target: %v", why, r.atBox(b).GetMigration(), r.atBox(next).GetMigration())
	}
	return next
}

// switchOver lets the host switch, and waits for its answer.
func (r *cluster) switchOver(b *binding) (state dxpuv1.MigrationState, why string) {
	r.t.Helper()
	b.switching = true
	r.apply()
	r.until("the host has an answer", func() bool {
		m := r.hosts[b.host].Observe().Slots[b.slot].Binding.GetMigration()
		state, why = m.GetState(), m.GetDetail()
		return m.GetBindingId() == b.next.id && (state == migrationDone || state == migrationFailed)
	})
	if state == migrationDone {
		r.bindings[slices.Index(r.bindings, b)] = b.next
	} else {
		b.next, b.switching = nil, false
	}
	r.apply()
	return state, why
}

// program computes until ctx ends, and checks each result.
func program(ctx context.Context, dev *driver.Device, seed uint64) (rounds int, err error) {
	const n = 256 << 10
	s, err := dev.NewStream()
	if err != nil {
		return 0, err
	}
	defer s.Close()
	rnd := rand.New(rand.NewPCG(seed, 0))
	a, err := dev.Malloc(n)
	if err != nil {
		return 0, err
	}
	b, err := dev.Malloc(n)
	if err != nil {
		return 0, err
	}
	for ; ctx.Err() == nil; rounds++ {
		in, out := make([]byte, n), make([]byte, n)
		for i := range in {
			in[i] = byte(rnd.Uint32())
		}
		work := context.WithoutCancel(ctx)
		if err := errors.Join(s.Upload(work, a, in), s.CopyInside(work, b, a, n), s.Download(work, out, b)); err != nil {
			return rounds, fmt.Errorf("round %d: %w", rounds, err)
		}
		if !bytes.Equal(in, out) {
			return rounds, fmt.Errorf("round %d: other bytes came back", rounds)
		}
	}
	return rounds, errors.Join(dev.Free(a), dev.Free(b))
}

// during runs the program while f runs.
func (r *cluster) during(dev *driver.Device, f func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		rounds, err := program(ctx, dev, 1)
		if err != nil {
			r.t.Error(err)
		}
		r.t.Logf("%d rounds", rounds)
	})
	defer wg.Wait()
	defer cancel()
	f()
}

// TestMigrate moves a GPU between two boxes while a program uses it.
func TestMigrate(t *testing.T) {
	for name, inside := range map[string]bool{"embedded": true, "VM": false} {
		t.Run(name, func(t *testing.T) {
			r := newCluster(t, options{boxes: 2, inside: inside, timeout: time.Minute}) // a busy machine is slow
			b := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			defer closeBoth(t, bus, dev)
			r.during(dev, func() {
				for i := range 6 {
					old := b
					b = r.migrate(b, 1-i%2, 0)
					t.Log("pause", r.atHost(b).GetMigration().GetPause().AsDuration())
					r.until("the old box is free", func() bool { return r.boxes[old.box].Observe().Slots[0].Binding == nil })
				}
			})
			copyBothWays(t, dev, 1<<20)
			if !inside {
				selfTest(t, dev, driver.SelfTestOptions{})
			}
			if n := metric(t, r.hosts[0].Proxy, "slot_completion_timeouts_total"); n != 0 {
				t.Errorf("%v Completion Timeouts", n)
			}
		})
	}
}

// moment lets others run for a moment that grows with n. The tests hold for each moment.
func moment(n int) {
	for range 200 * n {
		runtime.Gosched()
	}
}

// TestMigrationFails makes the target fail in several ways: the source goes on.
func TestMigrationFails(t *testing.T) {
	r := newCluster(t, options{boxes: 2, inside: true, timeout: time.Minute, wrap: func(d device.Device) device.Device { return &odd{GPU: d.(*gpu.GPU)} }})
	b := r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	defer closeBoth(t, bus, dev)
	copyBothWays(t, dev, 1<<20) // the device has memory to send
	faults := []struct {
		name  string
		cause func(o *odd)
		host  dxpuv1.MigrationState // before the switch
	}{
		{"refuses the state", func(o *odd) { o.restore = errors.New("no") }, migrationCopying},
		{"refuses the memory", func(o *odd) { o.store = errors.New("no") }, migrationFailed},
	}
	r.during(dev, func() {
		for _, fault := range faults {
			with := func(f func(o *odd)) {
				check(t, r.boxes[1].With(t.Context(), 0, func(d device.Device) { f(d.(*odd)) }))
			}
			with(fault.cause)
			b.next = r.plan(0, 0, 1, 0)
			r.bindings = r.bindings[:len(r.bindings)-1]
			next := b.next
			r.apply()
			r.until("copied", func() bool {
				host, box := r.atHost(b).GetMigration(), r.atBox(b).GetMigration()
				// A target that has refused does not tell the source that it has settled.
				return host.GetBindingId() == next.id && host.GetState() == fault.host &&
					(fault.host == migrationFailed || box.GetBindingId() == next.id && box.GetState() >= migrationReady)
			})
			if state, why := r.switchOver(b); state != migrationFailed || why != "the box of the target: no" {
				t.Fatalf("%s: the migration is %v: %q; target: %v", fault.name, state, why, r.atBox(next))
			}
			r.until("the target is free", func() bool { return r.atBox(next) == nil })
			with(func(o *odd) { o.restore, o.store = nil, nil })
		}
		// A migration that is not wanted any more, at some time before the switch.
		for i := range 20 {
			b.next = r.plan(0, 0, 1, 0)
			r.bindings = r.bindings[:len(r.bindings)-1]
			next := b.next
			r.apply()
			moment(i)
			b.next = nil
			r.apply()
			r.until("the target is free", func() bool { return r.atBox(next) == nil && r.atHost(b).GetMigration() == nil })
		}
		b = r.migrate(b, 1, 0) // the same target takes a state that is right
	})
}

// A source that finds during the copy that it cannot be saved ends the migration, says why, and
// goes on. A later migration works.
func TestSourceCannotBeSaved(t *testing.T) {
	r := newCluster(t, options{boxes: 2, inside: true, timeout: time.Minute, wrap: func(d device.Device) device.Device { return &odd{GPU: d.(*gpu.GPU)} }})
	b := r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	defer closeBoth(t, bus, dev)
	copyBothWays(t, dev, 1<<20) // the device has memory to send
	why := errors.New("an object has no name")
	with := func(err error) {
		check(t, r.boxes[0].With(t.Context(), 0, func(d device.Device) { d.(*odd).save = err }))
	}
	r.during(dev, func() {
		with(why)
		b.next = r.plan(0, 0, 1, 0)
		r.bindings = r.bindings[:len(r.bindings)-1]
		next := b.next
		r.apply()
		r.until("failed at both", func() bool {
			host, box := r.atHost(b).GetMigration(), r.atBox(b).GetMigration()
			return host.GetState() == migrationFailed && box.GetState() == migrationFailed && box.GetDetail() == why.Error()
		})
		b.next = nil
		r.apply()
		r.until("the target is free", func() bool { return r.atBox(next) == nil && r.atHost(b).GetMigration() == nil })
		with(nil)
		b = r.migrate(b, 1, 0)
	})
}

// odd is a GPU that refuses what another one sends, or cannot be saved once it is asked for
// memory.
type odd struct {
	*gpu.GPU
	restore, store, save error
	asked                bool
}

func (o *odd) Movable() error {
	if o.asked && o.save != nil {
		return o.save
	}
	return o.GPU.Movable()
}

func (o *odd) Track(on bool) {
	o.asked = false
	o.GPU.Track(on)
}

func (o *odd) ChangedMemory(from uint64, buf []byte) (addr uint64, n int, later bool) {
	o.asked = true
	return o.GPU.ChangedMemory(from, buf)
}

func (o *odd) Restore(now time.Duration, state []byte) (ok bool, err error) {
	err = cmpErr(o.restore, func() (err error) { ok, err = o.GPU.Restore(now, state); return err })
	return ok, err
}

func (o *odd) StoreMemory(addr uint64, p []byte) error {
	return cmpErr(o.store, func() error { return o.GPU.StoreMemory(addr, p) })
}

func cmpErr(err error, f func() error) error {
	if err != nil {
		return err
	}
	return f()
}

// TestTargetDies kills the box of the target at some time around the switch: the program
// goes on, at the source or not at all.
func TestTargetDies(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for silent links")
	}
	for i := range 4 {
		r := newCluster(t, options{boxes: 2, inside: true})
		b := r.attach(0, 0, 0, 0)
		bus, dev := r.openWith(0, 0, vfiouserbus.Options{})
		next := r.prepare(b, 1, 0)
		b.switching = true
		r.apply()
		moment(3 * i)
		r.boxes[1].kill()
		var have *dxpuv1.ObservedBinding
		r.until("the host has an answer", func() bool {
			have = r.hosts[0].Observe().Slots[0].Binding
			return have.GetBindingId() == next.id || have.GetMigration().GetState() == migrationFailed
		})
		if have.BindingId == b.id {
			copyBothWays(t, dev, 1<<20)
			check(t, dev.Close())
		}
		_ = bus.Close()
	}
}

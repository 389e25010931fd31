package hostproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/hostproxy/controller"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// useInterval is the time between two looks at a device that the host was asked
// to release.
const useInterval = 250 * time.Millisecond

// unplug asks the host to release the device, and takes note if it does not.
func (s *slot) unplug(ctx context.Context, timeout time.Duration) {
	if s.plugged == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	use, err := s.plugged.unplug(ctx)
	removal := &dxpuv1.Removal{BindingId: s.Status.Get().ID}
	if err != nil {
		removal.Forced, removal.Detail = true, cmp.Or(use, err.Error())
		s.counters.forced.Add(1)
		s.host.log.Warn("the host has not released the device: it is taken away", "slot", s.index, "err", err)
	}
	s.guest.removal.Store(removal)
}

// unplug asks QEMU to remove the device. While the guest holds it, the status
// reports the signs of its use.
func (p *pluggedVM) unplug(ctx context.Context) (use string, err error) {
	watched, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { use = p.watchUse(watched) })
	err = p.remove(ctx)
	stop()
	watch.Wait()
	return use, err
}

// watchUse reports the use of a device until ctx ends, and returns its last
// report. It keeps the present detail of the status.
func (v *vm) watchUse(ctx context.Context) (use string) {
	s := v.slot
	why := s.Status.Get().Detail
	tick := time.NewTicker(useInterval)
	defer tick.Stop()
	seen := s.Traffic.TLPs()
	for {
		select {
		case <-ctx.Done():
			return use
		case <-tick.C:
		}
		e := s.host.group.Enter()
		use = v.inUse(e)
		s.host.group.Leave(e)
		passed := s.Traffic.TLPs()
		switch {
		case use != "" && passed != seen:
			use = "the guest still holds the device and uses it: " + use
		case use != "":
			use = "the guest still holds the device: " + use
		}
		seen = passed
		detail := cmp.Or(use, why)
		if use != "" && why != "" {
			detail = why + "; " + use
		}
		if s.Status.Note(detail, false) {
			s.host.Changed()
		}
	}
}

// inUse returns the signs of a driver in the guest, "" for none. A driver that
// has released a device has switched off memory decoding, bus mastering and, as a
// rule, power (PCI Express Base 6.0, sections 7.5.1.1.3 and 5.3.1.4).
func (v *vm) inUse(engine.Entry) string {
	entry, _ := v.slot.host.table.Entry(v.slot.index)
	var signs []string
	if entry.MemoryEnabled() {
		var bars []string
		for i, bar := range entry.BARs {
			if bar.Size > 0 {
				bars = append(bars, fmt.Sprintf("BAR %d at %#x", i, entry.BARAddress(i)))
			}
		}
		signs = append(signs, "decodes memory ("+strings.Join(bars, ", ")+")")
	}
	if entry.BusMaster() {
		signs = append(signs, "is bus master")
	}
	if n := v.open.Load(); n > 0 {
		signs = append(signs, fmt.Sprintf("%d accesses are not answered yet", n))
	}
	if v.refused.Load() {
		signs = append(signs, "the guest refused to eject it")
	}
	if v.conn == nil || len(signs) == 0 {
		return ""
	}
	return "it " + strings.Join(signs, ", ")
}

// held reports whether a driver of the guest has the device: drivers make it bus
// master when they take it and clear that when they release it; firmware and
// kernels do neither.
func (v *vm) held(engine.Entry) bool {
	entry, _ := v.slot.host.table.Entry(v.slot.index)
	return v.conn != nil && entry.BusMaster()
}

// askAgain is the time after a guest's refusal to eject a device and the next
// request: a busy driver may have finished.
const askAgain = time.Second

// remove asks QEMU to remove the device, again and again, until it has.
func (p *pluggedVM) remove(ctx context.Context) error {
	if !p.added && (p.front.QMP == "" || !p.connected()) { // it may have been plugged in by hand just now
		return nil
	}
	client, done, err := p.front.control.use(ctx, p.front.QMP)
	if err != nil {
		if !p.connected() {
			return nil // the VM is gone
		}
		return fmt.Errorf("hot-unplug: %w", err)
	}
	defer done()
	for {
		err = client.Unplug(ctx, deviceID(p.vm.slot.index))
		if !errors.Is(err, qmp.ErrUnplugRefused) {
			break
		}
		p.refused.Store(true)
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return fmt.Errorf("hot-unplug: %w", err)
		}
	}
	if err != nil {
		return fmt.Errorf("hot-unplug: %w", err)
	}
	p.added = false
	p.allowMigration(ctx, client)
	return nil
}

// guestView is a slot's report on its guest: whether it uses the device, and
// whether it has removed it. The slot's run loop writes it, reports read it.
type guestView struct {
	use     atomic.Int32 // a dxpuv1.Use
	ejected atomic.Bool
	replugs atomic.Uint32
	removal atomic.Pointer[dxpuv1.Removal] // of the last device that left the slot

	// Used by the run loop only:
	traffic uint64 // TLPs at the last sample
	busy    int    // samples for which the device still counts as busy
}

// busySamples is two seconds of samples.
const busySamples = int(2 * time.Second / sampleInterval)

func (v *guestView) begin(traffic uint64) {
	v.ejected.Store(false)
	v.use.Store(int32(dxpuv1.Use_USE_IDLE))
	v.traffic, v.busy = traffic, 0
}

func (v *guestView) end() {
	v.ejected.Store(false)
	v.replugs.Store(0)
	v.use.Store(0)
}

// sample derives the use from the traffic since the last sample.
func (v *guestView) sample(held bool, traffic uint64) {
	v.busy = max(v.busy-1, 0)
	if traffic != v.traffic {
		v.traffic, v.busy = traffic, busySamples
	}
	use := dxpuv1.Use_USE_IDLE
	switch {
	case v.busy > 0:
		use = dxpuv1.Use_USE_BUSY
	case held:
		use = dxpuv1.Use_USE_HELD
	}
	v.use.Store(int32(use))
}

func (v *guestView) observe(out *dxpuv1.ObservedBinding) {
	out.Use, out.Ejected, out.Replugs = dxpuv1.Use(v.use.Load()), v.ejected.Load(), v.replugs.Load()
}

// eject reports that the guest has removed the device.
func (s *slot) eject() {
	s.plugged.(*pluggedVM).added = false
	s.guest.ejected.Store(true)
	s.counters.ejected.Add(1)
	s.host.log.Warn("the guest has removed the device", "slot", s.index)
	s.Status.Step("ejected")
	s.Status.Note("the guest has removed the device itself", false)
	s.host.Changed()
}

// replug shows the device to the VM again.
func (s *slot) replug(ctx context.Context) error {
	err := s.plugged.(*pluggedVM).deviceAdd(ctx)
	s.guest.replugs.Store(s.control.Replugs())
	if err != nil {
		return err
	}
	s.returned("the device is plugged in again")
	return nil
}

// returned reports that the VM has the device again that its guest had removed.
func (s *slot) returned(how string) {
	s.guest.ejected.Store(false)
	s.Status.Note(s.trouble(), false)
	s.host.log.Info(how, "slot", s.index)
	s.Status.Step("replugged")
	s.host.Changed()
}

// connected reports whether QEMU is connected to the device.
func (v *vm) connected() bool {
	e := v.slot.host.group.Enter()
	defer v.slot.host.group.Leave(e)
	return v.conn != nil
}

// lookTimeout bounds a question that QEMU answers at once.
const lookTimeout = 2 * time.Second

// look asks QEMU what has become of a device that it is not connected to.
func (p *pluggedVM) look(ctx context.Context) (guest controller.Guest, detail string) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	client, done, err := p.front.control.use(ctx, p.front.QMP)
	if err != nil {
		return controller.Silent, err.Error()
	}
	defer done()
	here, err := client.HasDevice(ctx, deviceID(p.vm.slot.index))
	switch {
	case err != nil:
		return controller.Silent, err.Error()
	case here:
		if !p.added && p.connected() {
			p.added, p.qemu = true, p.front.pid(client)
			p.blockMigration(ctx, client)
		}
		return controller.Present, ""
	case p.front.pid(client) != p.qemu:
		return controller.Restarted, ""
	}
	p.allowMigration(ctx, client)
	if time.Since(p.replaced) < lateEjection {
		return controller.EjectedLate, ""
	}
	return controller.Removed, ""
}

// sweep asks QEMU to remove the device that a killed proxy left in a slot, and
// that no longer answers. It waits for a guest that removes it at once, and allows
// migration then.
func (f *VM) sweep(ctx context.Context, slot int) {
	if f.QMP == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	client, done, err := f.control.use(ctx, f.QMP)
	if err != nil {
		return // there is no VM yet
	}
	defer done()
	here, err := client.HasDevice(ctx, deviceID(slot))
	if err != nil {
		return
	}
	if here {
		if err := client.Unplug(ctx, deviceID(slot)); err != nil {
			f.Logger.Warn("a device of an earlier proxy is left: QEMU was asked to remove it", "slot", slot, "err", err)
			return
		}
		f.Logger.Info("QEMU has removed a device of an earlier proxy", "slot", slot)
	}
	f.allowMigration(ctx, client, slot, nil)
}

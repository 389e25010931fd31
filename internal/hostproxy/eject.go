package hostproxy

import (
	"context"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/hostproxy/controller"
)

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

// traffic returns the number of TLPs in both directions.
func (c *counters) traffic() uint64 { return c.toDevice.Load() + c.fromDevice.Load() }

// eject reports that the guest has removed the device.
func (s *slot) eject() {
	s.plugged.(*pluggedVM).added = false
	s.guest.ejected.Store(true)
	s.counters.ejected.Add(1)
	s.host.log.Warn("the guest has removed the device", "slot", s.index)
	s.status.Step("ejected")
	s.status.Note("the guest has removed the device itself")
	s.host.Changed()
}

// replug shows the device to the VM again.
func (s *slot) replug(ctx context.Context) error {
	err := s.plugged.(*pluggedVM).deviceAdd(ctx)
	s.guest.replugs.Store(s.control.Replugs())
	if err != nil {
		return err
	}
	s.guest.ejected.Store(false)
	s.status.Note("")
	s.host.log.Info("the device is plugged in again", "slot", s.index)
	s.status.Step("replugged")
	s.host.Changed()
	return nil
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
		return controller.Present, ""
	case p.front.pid(client) != p.qemu:
		return controller.Restarted, ""
	}
	return controller.Removed, ""
}

// sweep asks QEMU to remove the device that a killed proxy left in a slot, and
// that no longer answers. It does not wait for the guest.
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
	if here, err := client.HasDevice(ctx, deviceID(slot)); err != nil || !here {
		return
	}
	if err := client.DeviceDel(ctx, deviceID(slot)); err != nil {
		f.Logger.Warn("a device of an earlier proxy is left", "slot", slot, "err", err)
		return
	}
	f.Logger.Info("QEMU was asked to remove a device of an earlier proxy", "slot", slot)
}

package hostproxy_test

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

const (
	detaching    = dxpuv1.BindingState_BINDING_STATE_DETACHING
	ready        = dxpuv1.BindingState_BINDING_STATE_READY
	failed       = dxpuv1.BindingState_BINDING_STATE_FAILED
	firstDevice  = "dxpu0"
	secondDevice = "dxpu1"
)

// A guest that takes its time is waited for; meanwhile the host says that the
// device is in use, and by what that can be seen. The other slots go on.
func TestGuestHoldsOn(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{gpus: 2, qmp: q.path, unplug: patience})
	b := r.attach(0, 0, 0, 0)
	q.answers(holdOn)
	b.hostGone = true
	r.apply()
	r.until("the host reports the guest's use", func() bool {
		o := r.atHost(b)
		return o.GetState() == detaching && strings.Contains(o.GetDetail(), "the guest still holds the device") &&
			strings.Contains(o.GetDetail(), "bus master")
	})
	r.attach(0, 1, 0, 1)
	if o := r.atHost(b); o.GetState() != detaching {
		t.Fatalf("the first is %v", o.GetState())
	}
	q.eject(firstDevice)
	r.until("the device is gone", func() bool { return r.atHost(b) == nil })
	if gone := r.hosts[0].Observe().Slots[0].Removal; gone.GetBindingId() != b.id || gone.GetForced() {
		t.Errorf("removed like %v, want without force", gone)
	}
	r.drop(b)
	q.answers(letGo) // the other device, at the end of the proxy
}

// A guest that does not let go loses its device when its time is over.
func TestGuestNeverLetsGo(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path, unplug: time.Second})
	b := r.attach(0, 0, 0, 0)
	q.answers(holdOn)
	r.detach(b)
	gone := r.hosts[0].Observe().Slots[0].Removal
	if gone.GetBindingId() != b.id || !gone.GetForced() || !strings.Contains(gone.GetDetail(), "the guest still holds the device") {
		t.Errorf("removed like %v, want by force", gone)
	}
	if n := metric(t, r.hosts[0], "slot_forced_removals_total"); n != 1 {
		t.Errorf("%v removals by force are counted, want 1", n)
	}
	// QEMU still has it when the next one comes; the guest lets go then.
	q.answers(letGo)
	r.detach(r.attach(0, 0, 0, 0))
}

// A device that is taken away from a guest by force keeps its connection: memory
// reads as ones, writes vanish, configuration space has its values after a reset, so
// that the guest's own reset ends at once. Then the slot works as before.
func TestForcedRemovalKeepsTheConnection(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{gpus: 2, qmp: q.path, unplug: 100 * time.Millisecond})
	b := r.attach(0, 0, 0, 0)
	q.answers(holdOn)
	q.mu.Lock()
	bus := q.devices[firstDevice]
	q.mu.Unlock()
	regs, err := bus.BAR(reg.BARRegisters)
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	stop := make(chan struct{})
	reading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				regs.Read32(reg.ID)
			}
		}
	})
	r.detach(b)
	close(stop)
	reading.Wait()
	usesParted := func() {
		t.Helper()
		if v := regs.Read32(reg.ID); v != 0xffffffff {
			t.Errorf("a register reads %#x", v)
		}
		regs.Write32(reg.Control, 1)
		bus.ConfigWrite32(4, 6)
		if v := bus.ConfigRead32(0); v != reg.DeviceID<<16|reg.VendorID {
			t.Errorf("the identity reads %#x", v)
		}
		if v := bus.ConfigRead32(4); v&6 != 0 {
			t.Errorf("the command register reads %#x, want its value after a reset", v)
		}
		check(t, bus.Reset())
	}
	usesParted()
	r.attach(0, 1, 0, 0) // the same GPU in another slot, which the old device does not reach
	usesParted()
	q.answers(letGo)
	r.detach(r.attach(0, 0, 0, 1)) // waits until the guest has released the old device
}

// A proxy that ends disconnects a guest that has not released its device.
func TestEndWhileADeviceIsParting(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path, unplug: 100 * time.Millisecond})
	b := r.attach(0, 0, 0, 0)
	q.answers(holdOn)
	r.detach(b)
	q.mu.Lock()
	bus := q.devices[firstDevice]
	q.mu.Unlock()
	<-bus.Lost() // the guest is asked for its device
	if v := bus.ConfigRead32(0); v != reg.DeviceID<<16|reg.VendorID {
		t.Errorf("the identity reads %#x", v)
	}
	r.hosts[0].end()
	if v := bus.ConfigRead32(0); v != 0xffffffff {
		t.Errorf("the identity reads %#x without a proxy", v)
	}
}

// A guest that would not eject a device is asked again.
func TestGuestRefuses(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path, unplug: patience})
	b := r.attach(0, 0, 0, 0)
	var asked atomic.Int32
	q.set(func() {
		q.onDelete = func(string) guestAnswer {
			if asked.Add(1) == 1 {
				return decline
			}
			return letGo
		}
	})
	b.hostGone = true
	r.apply()
	r.until("the host says that the guest refused", func() bool {
		o := r.atHost(b)
		return o == nil || strings.Contains(o.Detail, "refused to eject it")
	})
	r.until("the device is gone", func() bool { return r.atHost(b) == nil })
	if n := asked.Load(); n != 2 {
		t.Errorf("the guest was asked %d times", n)
	}
	r.drop(b)
}

// A guest may remove its device itself. The binding stays, and the device comes
// back when it is asked for.
func TestGuestEjects(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path})
	b := r.attach(0, 0, 0, 0)
	for i := range uint32(2) {
		q.eject(firstDevice)
		r.until("the host says that the device was removed", func() bool {
			o := r.atHost(b)
			return o.GetState() == attached && o.GetEjected() && o.GetReplugs() == i
		})
		if o := r.atBox(b); o.GetState() != attached {
			t.Errorf("the box says %v", o.GetState())
		}
		b.replugs++
		r.apply()
		r.until("the device is there again", func() bool { return !r.atHost(b).GetEjected() })
		if o := r.atHost(b); o.GetReplugs() != b.replugs || o.GetDetail() != "" {
			t.Errorf("the host says %v", o)
		}
		if _, alive := q.has(firstDevice); !alive {
			t.Error("QEMU has no device")
		}
	}
	q.eject(firstDevice)
	r.until("it was removed", func() bool { return r.atHost(b).GetEjected() })
	r.detach(b) // there is nothing to wait for
	if n := metric(t, r.hosts[0], "slot_ejections_total"); n != 3 {
		t.Errorf("%v removals by the guest are counted, want 3", n)
	}
}

// A guest that serves late the second request to eject a device takes the next one of the slot
// away: that is not its wish, and the device comes back by itself.
func TestGuestEjectsLate(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path, unplug: 50 * time.Millisecond})
	b := r.attach(0, 0, 0, 0)
	q.answers(holdOn)
	r.detach(b)
	q.answers(letGo)
	b = r.attach(0, 0, 0, 0)
	for range 2 {
		q.eject(firstDevice)
		r.until("the device is there again", func() bool { _, alive := q.has(firstDevice); return alive })
	}
	if o := r.atHost(b); o.GetState() != attached || o.GetEjected() {
		t.Errorf("the host says %v", o)
	}
	r.detach(b)
}

// A device that cannot be shown again says why.
func TestReplugFails(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path})
	b := r.attach(0, 0, 0, 0)
	q.eject(firstDevice)
	r.until("it was removed", func() bool { return r.atHost(b).GetEjected() })
	q.set(func() { q.refuse = "the root port is on fire" })
	b.replugs++
	r.apply()
	r.until("the host says why not", func() bool {
		o := r.atHost(b)
		return o.GetEjected() && o.GetReplugs() == 1 && strings.Contains(o.GetDetail(), "on fire")
	})
	q.set(func() { q.refuse = "" })
	b.replugs++
	r.apply()
	r.until("the device is there again", func() bool { return !r.atHost(b).GetEjected() })
	r.detach(b)
}

// A VM that is stopped and started again gets its device back automatically, since
// the guest has not removed it.
func TestVMStartsAgain(t *testing.T) {
	q := newFakeQEMU(t)
	var pid atomic.Int32
	r := newCluster(t, options{qmp: q.path, pid: func() int { return int(pid.Load()) }})
	b := r.attach(0, 0, 0, 0)
	q.without(func() {
		q.set(func() {
			check(t, q.devices[firstDevice].Close())
			clear(q.devices)
		})
		r.until("the host says that there is no VM", func() bool {
			return strings.Contains(r.atHost(b).GetDetail(), "the VM does not answer")
		})
		if o := r.atHost(b); o.GetState() != attached || o.GetEjected() {
			t.Errorf("the host says %v", o)
		}
		pid.Store(2)
	})
	r.until("the other VM has the device", func() bool { _, alive := q.has(firstDevice); return alive })
	r.until("all is well", func() bool { return r.atHost(b).GetDetail() == "" })
	if o := r.atHost(b); o.GetState() != attached || o.GetEjected() {
		t.Errorf("the host says %v", o)
	}
	r.detach(b)
}

// It gets back a device, too, that the guest has removed before.
func TestVMStartsAgainAfterEject(t *testing.T) {
	q := newFakeQEMU(t)
	var pid atomic.Int32
	r := newCluster(t, options{qmp: q.path, pid: func() int { return int(pid.Load()) }})
	b := r.attach(0, 0, 0, 0)
	q.eject(firstDevice)
	r.until("the guest has removed it", func() bool { return r.atHost(b).GetEjected() })
	q.without(func() { pid.Store(2) })
	r.until("the other VM has the device", func() bool { _, alive := q.has(firstDevice); return alive })
	r.until("the host says so", func() bool { o := r.atHost(b); return !o.GetEjected() && o.GetDetail() == "" })
	r.detach(b)
}

// An operator plugs a device in by hand that the guest had removed: it is one like any other,
// and at its end the guest is asked for it.
func TestPluggedInByHand(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path})
	b := r.attach(0, 0, 0, 0)
	q.eject(firstDevice)
	r.until("the guest has removed it", func() bool { return r.atHost(b).GetEjected() })
	if problem := q.add(firstDevice, r.hosts[0].vm.Socket(0)); problem != "" {
		t.Fatal(problem)
	}
	r.until("the host says so", func() bool { o := r.atHost(b); return !o.GetEjected() && o.GetDetail() == "" })
	if !q.blocks() {
		t.Error("QEMU would migrate the VM")
	}
	r.detach(b)
	if there, _ := q.has(firstDevice); there {
		t.Error("the guest has not been asked for the device")
	}
}

// A device whose connection broke is plugged in again.
func TestConnectionBreaks(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path})
	b := r.attach(0, 0, 0, 0)
	q.hangUp(firstDevice)
	r.until("QEMU has a device that answers", func() bool { _, alive := q.has(firstDevice); return alive })
	if o := r.atHost(b); o.GetState() != attached || o.GetEjected() {
		t.Errorf("the host says %v", o)
	}
	r.detach(b)
}

// A proxy that starts removes what one that was killed has left in QEMU.
func TestLeftoversAreSwept(t *testing.T) {
	q := newFakeQEMU(t)
	q.devices[firstDevice], q.devices[secondDevice], q.devices["disk0"] = nil, nil, nil
	q.blocked["gpu-in-slot-0"], q.blocked["gpu-in-slot-1"] = true, true
	r := newCluster(t, options{gpus: 2, qmp: q.path})
	r.until("the devices of the proxy before are gone", func() bool {
		first, _ := q.has(firstDevice)
		second, _ := q.has(secondDevice)
		return !first && !second
	})
	r.until("migration is allowed", func() bool { return !q.blocks() })
	if other, _ := q.has("disk0"); !other {
		t.Error("a device that is none of ours is gone")
	}
}

// An attach that fails leaves nothing behind, whatever the step: the next one in
// the same slots works.
func TestAttachRollsBack(t *testing.T) {
	for _, c := range []struct {
		name string
		spoil,
		mend func(*cluster, *fakeQEMU)
		says string
	}{
		{
			"no socket can be made",
			func(r *cluster, _ *fakeQEMU) {
				check(r.t, os.Rename(r.hosts[0].vm.SocketDir, r.hosts[0].vm.SocketDir+"x"))
			},
			func(r *cluster, _ *fakeQEMU) {
				check(r.t, os.Rename(r.hosts[0].vm.SocketDir+"x", r.hosts[0].vm.SocketDir))
			},
			"no such file",
		},
		{
			"QEMU refuses",
			func(_ *cluster, q *fakeQEMU) { q.refuse = "Bus 'rp0' not found" },
			func(_ *cluster, q *fakeQEMU) { q.refuse = "" },
			"Bus 'rp0' not found",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newFakeQEMU(t)
			r := newCluster(t, options{qmp: q.path})
			r.detach(r.attach(0, 0, 0, 0)) // the slots are in use and free again
			q.set(func() { c.spoil(r, q) })
			b := r.bind(0, 0, 0, 0)
			r.await(b, failed)
			if o := r.atHost(b); !strings.Contains(o.Detail, c.says) || o.Reason != dxpuv1.Reason_REASON_HOST_FAILED {
				t.Errorf("the host says %v: %q", o.Reason, o.Detail)
			}
			if there, _ := q.has(firstDevice); there {
				t.Error("QEMU has the device")
			}
			if _, err := os.Stat(r.hosts[0].vm.Socket(0)); err == nil {
				t.Error("the socket is there")
			}
			r.until("the box has noticed", func() bool { return r.atBox(b).GetState() == lost })
			r.detach(b)
			q.set(func() { c.mend(r, q) })
			r.detach(r.attach(0, 0, 0, 0))
		})
	}
}

// The host reports whether a driver of the guest holds the device and uses it.
func TestUse(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path})
	b := r.attach(0, 0, 0, 0)
	use := func(want dxpuv1.Use) {
		t.Helper()
		r.until(want.String(), func() bool { return r.atHost(b).GetUse() == want })
	}
	use(dxpuv1.Use_USE_HELD) // the fake guest has made it bus master
	q.mu.Lock()
	bus := q.devices[firstDevice]
	q.mu.Unlock()
	bus.ConfigWrite32(4, 0)
	use(dxpuv1.Use_USE_BUSY)
	use(dxpuv1.Use_USE_IDLE)
	r.detach(b)
}

// A device that is taken away from a program in the middle of its copies is as
// clean as any for the next tenant: nothing that was under way writes to it later.
func TestTakenInMidTransferIsScrubbed(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path, unplug: 500 * time.Millisecond})
	b := r.attach(0, 0, 0, 0)
	q.mu.Lock()
	bus := q.devices[firstDevice]
	q.mu.Unlock()
	dev, err := driver.Open(t.Context(), bus, driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	const n = 4 << 20
	dirt := bytes.Repeat([]byte{0xa5}, n)
	check(t, s.Upload(t.Context(), 0, dirt))
	var copying sync.WaitGroup
	copying.Go(func() {
		for s.Upload(t.Context(), 0, dirt) == nil {
		}
	})
	q.answers(holdOn)
	r.detach(b)
	copying.Wait()
	if gone := r.hosts[0].Observe().Slots[0].Removal; !gone.GetForced() {
		t.Errorf("removed like %v, want by force", gone)
	}
	q.answers(letGo)

	r.attach(0, 0, 0, 0)
	q.mu.Lock()
	bus = q.devices[firstDevice]
	q.mu.Unlock()
	if dev, err = driver.Open(t.Context(), bus, driver.Options{}); err != nil {
		t.Fatal(err)
	}
	if s, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, n)
	check(t, s.Download(t.Context(), out, 0))
	if !bytes.Equal(out, make([]byte, n)) {
		t.Error("the next tenant reads what the one before wrote")
	}
	check(t, dev.Close())
}

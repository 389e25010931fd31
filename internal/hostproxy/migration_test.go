package hostproxy_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// A VM cannot be migrated while it has a device: also one that was taken away
// and that the guest has not released, and one that comes back.
func TestMigrationIsBlocked(t *testing.T) {
	q := newFakeQEMU(t)
	q.blocked["gpu-in-slot-0"] = true // left by a killed proxy
	r := newCluster(t, options{qmp: q.path, unplug: 100 * time.Millisecond})
	wants := func(want bool, when string) {
		t.Helper()
		r.until(when, func() bool { return q.blocks() == want })
	}
	wants(false, "migration is allowed before the first device")
	b := r.attach(0, 0, 0, 0)
	wants(true, "migration is blocked with a device")
	r.detach(b)
	wants(false, "migration is allowed after a removal")

	b = r.attach(0, 0, 0, 0)
	q.eject(firstDevice)
	wants(false, "migration is allowed after the guest has removed the device")
	b.replugs++
	r.apply()
	wants(true, "migration is blocked with a device that came back")
	r.until("the device is there", func() bool { return !r.atHost(b).GetEjected() })

	q.answers(holdOn)
	r.detach(b)
	if !q.blocks() {
		t.Error("migration is allowed while the guest has the device")
	}
	q.answers(decline)
	b = r.bind(0, 0, 0, 0) // fails: the guest does not release the old device
	r.await(b, failed)
	if !q.blocks() {
		t.Error("migration is allowed after a failure, while the guest has the old device")
	}
	r.detach(b)
	q.eject(firstDevice)
	wants(false, "migration is allowed when the guest has released the device")

	q.set(func() { q.refuse = "the root port is on fire" })
	b = r.bind(0, 0, 0, 0)
	r.await(b, failed)
	wants(false, "migration is allowed after a failure")
}

// Of two devices that an earlier proxy had in a slot, one after the other, the end of the
// first does not allow migration while QEMU has the second.
func TestMigrationIsBlockedForTheLastDevice(t *testing.T) {
	q := newFakeQEMU(t)
	q.blocked["gpu-in-slot-0"] = true
	q.devices[firstDevice] = nil
	f := &hostproxy.VM{QMP: q.path, Logger: slog.New(slog.DiscardHandler)}
	if f.PartEarlier(t.Context(), 0); !q.blocks() {
		t.Error("migration is allowed while QEMU has a device")
	}
	q.set(func() { delete(q.devices, firstDevice) })
	if f.PartEarlier(t.Context(), 0); q.blocks() {
		t.Error("migration is blocked without a device")
	}
}

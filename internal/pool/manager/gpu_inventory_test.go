package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Of three slots that report one device the first keeps it; the others are not leased
// until they are the only ones.
func TestOneDeviceInThreeSlots(t *testing.T) {
	b1, b2 := boxNode("b1", 3), boxNode("b2", 2)
	b1.serials = map[uint32]string{0: "S1", 1: "S1", 2: "S2"}
	b2.serials = map[uint32]string{0: "S1", 1: "000"}
	w := newWorld(t, Config{}, hostNode("h1", 8), b1, b2)
	if g := w.gpu("b1/0"); g.State != dxpuv1.GPUState_GPU_STATE_FREE {
		t.Errorf("the first slot that reported the device: %v", g)
	}
	for _, id := range []string{"b1/1", "b2/0"} {
		g := w.gpu(id)
		if g.State != dxpuv1.GPUState_GPU_STATE_UNAVAILABLE || !strings.Contains(g.HealthDetail, "serial number S1 is also that of b1/0, which reported it first") {
			t.Errorf("GPU %s: %v", id, g)
		}
		if !strings.Contains(w.events(), "GPU "+id+" gets no new bindings: its serial number S1 is also that of b1/0") {
			t.Errorf("no alarm for %s:\n%s", id, w.events())
		}
	}
	w.checkIndex(t)
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 4}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("four GPUs, although the pool has three: %v", err)
	}
	three := w.create(&dxpuv1.LeaseSpec{Count: 3})
	w.settle()
	w.wantLease(three, leaseActive)
	before := strings.Count(w.events(), "gets no new bindings")
	w.delete(three, true)
	w.settle()

	b1.models = map[uint32]string{0: "", 1: ""} // the device was moved to b2
	w.settle()
	if g := w.gpu("b2/0"); g.State != dxpuv1.GPUState_GPU_STATE_FREE {
		t.Errorf("only one slot reports the device: %v", g)
	}
	w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 3}), leaseBinding)
	w.checkIndex(t)
	if got := strings.Count(w.events(), "gets no new bindings"); got != before {
		t.Errorf("the alarm was repeated %d times", got-before)
	}
}

// A lease that has a GPU keeps it when another slot begins to report the same device.
func TestDuplicateOfALeasedDevice(t *testing.T) {
	b1, b2 := boxNode("b1", 1), boxNode("b2", 1)
	b1.serials = map[uint32]string{0: "S1"}
	w := newWorld(t, Config{}, hostNode("h1", 8), b1, b2)
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	if got := picksOf(w.lease(id)); got != "b1/0" {
		t.Fatalf("the lease has %s", got)
	}
	b2.serials = map[uint32]string{0: "S1"}
	b1.down = true
	w.settle()
	w.pass(3 * time.Second)
	w.settle()
	w.wantLease(id, leaseActive)
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("the device of a lease is given to another one: %v", err)
	}
}

// A box that is there has the alarm with the report of a device of another box, and its end with
// the report of the other one.
func TestDuplicateThatComesLater(t *testing.T) {
	b1, b2 := boxNode("b1", 1), boxNode("b2", 1)
	b1.serials = map[uint32]string{0: "S1"}
	w := newWorld(t, Config{}, hostNode("h1", 2), b1, b2)
	b2.serials[0] = "S1"
	w.report("b2")
	if !strings.Contains(w.events(), "GPU b2/0 gets no new bindings: its serial number S1 is also that of b1/0") {
		t.Errorf("no alarm:\n%s", w.events())
	}
	b1.serials[0] = "S2"
	w.report("b1")
	if !strings.Contains(w.events(), "no other slot has the device of GPU b2/0 any more") {
		t.Errorf("the alarm does not end:\n%s", w.events())
	}
}

// A box that was deleted blocks no GPU of another box with the serial numbers that it
// reported, although its record stays for a binding and its last report is new.
func TestDeletedBoxBlocksNoDevice(t *testing.T) {
	b1, b2 := boxNode("b1", 2), boxNode("b2", 3)
	w := newWorld(t, Config{}, hostNode("h1", 8), b1, b2)
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	b1.serials = map[uint32]string{1: "S1"}
	b2.serials = map[uint32]string{0: "S1"}
	w.settle()
	if g := w.gpu("b2/0"); g.Health != dxpuv1.Health_HEALTH_DEGRADED {
		t.Fatalf("the serial number of b1/1 does not count: %v", g)
	}
	w.nodes["h1"].deaf = true // the binding and the record of b1 stay
	if _, err := w.api().DeleteNode(context.Background(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "b1", Force: true})); err != nil {
		t.Fatal(err)
	}
	if _, home := w.known("b1"); home {
		t.Fatal("b1 was not deleted")
	}
	if g := w.gpu("b2/0"); g.Health != dxpuv1.Health_HEALTH_OK || g.LeaseId == "" { // the lease has it instead
		t.Errorf("a deleted box blocks it: %v\n%s", g, w.events())
	}
	w.checkIndex(t)
	w.pass(3 * time.Second) // b1 is silent
	w.checkIndex(t)
}

// The slots that report a device change nothing for a box that is away: it is not told.
func TestDuplicatesOfABoxThatIsAway(t *testing.T) {
	b1, b2 := boxNode("b1", 1), boxNode("b2", 2)
	b1.serials = map[uint32]string{0: "S1"}
	w := newWorld(t, Config{}, hostNode("h1", 8), b1, b2)
	b1.down = true
	w.pass(3 * time.Second)
	w.settle()
	b2.serials = map[uint32]string{0: "S1", 1: "S1"}
	w.settle()
	w.checkIndex(t)
	b1.down = false
	w.settle()
	w.checkIndex(t)
	if g := w.gpu("b1/0"); g.Health != dxpuv1.Health_HEALTH_OK {
		t.Errorf("it had the device first: %v", g)
	}
	if g := w.gpu("b2/0"); g.Health != dxpuv1.Health_HEALTH_DEGRADED {
		t.Errorf("b1/0 had the device first: %v", g)
	}
}

// A box that begins to report the serial number of another box's GPU blocks only itself,
// also after both boxes were restarted.
func TestFirstOwnerKeepsItsDevice(t *testing.T) {
	b1, b2 := boxNode("b1", 1), boxNode("b2", 1)
	b2.serials = map[uint32]string{0: "S1"}
	w := newWorld(t, Config{}, hostNode("h1", 8), b2, b1)
	b1.serials = map[uint32]string{0: "S1"}
	w.settle()
	check := func() {
		t.Helper()
		if g := w.gpu("b2/0"); g.State != dxpuv1.GPUState_GPU_STATE_FREE {
			t.Errorf("the first owner: %v", g)
		}
		if g := w.gpu("b1/0"); g.State != dxpuv1.GPUState_GPU_STATE_UNAVAILABLE {
			t.Errorf("the neighbour: %v", g)
		}
	}
	check()
	b1.restart()
	b2.restart()
	w.settle()
	check()
	b2.down = true
	w.pass(3 * time.Second)
	b2.down = false
	w.settle()
	check()
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	if got := picksOf(w.wantLease(id, leaseActive)); got != "b2/0" {
		t.Errorf("the lease has %s", got)
	}
}

// A slot that is missing from one report keeps its cordon and its quarantine.
func TestUnlistedSlotKeepsItsState(t *testing.T) {
	b1 := boxNode("b1", 3)
	b1.serials = map[uint32]string{0: "S0", 1: "S1", 2: "S2"}
	w := newWorld(t, Config{}, hostNode("h1", 8), b1)
	b1.addError(1, 79) // has fallen off the bus: quarantine
	w.settle()
	if _, err := w.api().Cordon(context.Background(), connect.NewRequest(&dxpuv1.CordonRequest{Target: atGPU("b1/0"), Reason: "loose cable"})); err != nil {
		t.Fatal(err)
	}
	until := w.gpu("b1/1").QuarantinedUntil
	if until == nil {
		t.Fatalf("no quarantine: %v", w.gpu("b1/1"))
	}
	b1.unlisted = map[uint32]bool{0: true, 1: true, 2: true}
	w.settle()
	if s := w.events(); strings.Count(s, "was removed") != 3 {
		t.Errorf("three GPUs are gone:\n%s", s)
	}
	if g := w.gpu("b1/0"); !g.Cordoned || g.HealthDetail != "the slot is empty" {
		t.Errorf("the cordoned GPU while it is gone: %v", g)
	}
	clear(b1.unlisted)
	w.settle()
	if g := w.gpu("b1/0"); !g.Cordoned || g.CordonReason != "loose cable" {
		t.Errorf("the cordon is forgotten: %v", g)
	}
	if g := w.gpu("b1/1"); !g.QuarantinedUntil.AsTime().Equal(until.AsTime()) || g.State != dxpuv1.GPUState_GPU_STATE_UNAVAILABLE {
		t.Errorf("the quarantine is forgotten: %v", g)
	}
	if g := w.gpu("b1/2"); g.State != dxpuv1.GPUState_GPU_STATE_FREE {
		t.Errorf("a GPU without cordon: %v", g)
	}
}

// A lease that asked for any model keeps the model of its GPUs when one of them is
// replaced, also if the broken GPU has been pulled out.
func TestReplacementKeepsTheModel(t *testing.T) {
	b1, b2, b3 := boxNode("b1", 1), boxNode("b2", 1), boxNode("b3", 6)
	b3.model = "T4"
	w := newWorld(t, Config{}, hostNode("h1", 8), b1, b2, b3)
	filler := w.create(&dxpuv1.LeaseSpec{Count: 5, Model: "T4"}) // so that DX100 has more to spare
	w.settle()
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	if got := picksOf(w.lease(id)); got != "b1/0" {
		t.Fatalf("the lease has %s", got)
	}
	w.delete(filler, true)
	w.settle()
	b1.models = map[uint32]string{0: ""} // pulled out
	w.settle()
	l := w.wantLease(id, leaseActive)
	if b := l.Bindings[len(l.Bindings)-1]; b.GpuId != "b2/0" {
		t.Errorf("a GPU of model DX100 was replaced by %s, want b2/0\n%s", b.GpuId, w.events())
	}
}

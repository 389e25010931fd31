package offer

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// wholeOf returns the box side of a binding of the lease l-1 that has a whole GPU, and the
// host side.
func wholeOf(id string, slot uint32) (box, host *dxpuv1.DesiredBinding) {
	box = &dxpuv1.DesiredBinding{BindingId: id, Epoch: 1, LeaseId: "l-1", Slot: slot, Peer: &dxpuv1.Peer{Slot: slot}, State: preparing}
	return box, &dxpuv1.DesiredBinding{BindingId: id, Epoch: 1, LeaseId: "l-1", Slot: slot, UnplugTimeout: durationpb.New(time.Minute)}
}

// Programs come to a lease of two GPUs when both are there, and one may leave later.
func TestTwoGPUs(t *testing.T) {
	w := newWorld(t)
	box1, host1 := wholeOf("b-1", 0)
	box2, host2 := wholeOf("b-2", 3)
	w.o.WantHost(wants(1))
	w.o.WantBox(wants(1, box1, box2))
	if got := kinds(w.settle()); got != "open open" {
		t.Errorf("actions %s", got)
	}
	w.o.WantHost(wants(2, host1))
	if got := w.settle(); len(got) != 0 {
		t.Errorf("a program may start with one of two GPUs: %+v", got)
	}
	w.o.WantHost(wants(3, host1, host2))
	if got := kinds(w.settle()); got != "attach attach" {
		t.Errorf("actions %s", got)
	}
	for i := range w.seen.Shares {
		w.seen.Shares[i].Processes = 1
	}
	w.o.WantHost(wants(4, host1))
	if got := w.settle(); kinds(got) != "end" || got[0].ID != "b-2" || got[0].Grace != time.Minute {
		t.Errorf("actions %+v", got)
	}
	if s := slotOf(w.o.Host(0), 0).Binding; s.State != attached {
		t.Errorf("the GPU that is left: %v", s)
	}
	if s := slotOf(w.o.Host(0), 3).Binding; s.State != detaching {
		t.Errorf("the other one: %v", s)
	}
	// Another binding of the lease has the same GPU: it waits until the programs have ended.
	box3, _ := wholeOf("b-3", 3)
	w.o.WantBox(wants(5, box1, box3))
	if got := kinds(w.settle()); got != "end" {
		t.Errorf("actions %s", got)
	}
	w.seen.Shares = slices.DeleteFunc(w.seen.Shares, func(s Share) bool { return s.Leaving })
	if got := kinds(w.settle()); got != "open" {
		t.Errorf("actions %s", got)
	}
}

// A GPU that the agent refuses, or that is lost, is not waited for.
func TestTwoGPUsWithOneRefused(t *testing.T) {
	w := newWorld(t)
	box1, host1 := wholeOf("b-1", 0)
	box2, host2 := wholeOf("b-2", 7) // no such GPU
	w.o.WantBox(wants(1, box1, box2))
	w.o.WantHost(wants(1, host1, host2))
	if got := kinds(w.settle()); got != "open attach" {
		t.Errorf("actions %s", got)
	}
	box2.Slot, box2.State = 3, ready
	w = newWorld(t)
	w.o.WantBox(wants(1, box1, box2))
	w.o.WantHost(wants(1, host1, host2))
	if got := kinds(w.settle()); got != "open attach" {
		t.Errorf("actions %s", got)
	}
}

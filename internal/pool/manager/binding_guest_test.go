package manager

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func (w *world) replug(id string) error {
	_, err := w.api().ReplugGPU(operatorContext(), connect.NewRequest(&dxpuv1.ReplugGPURequest{GpuId: id}))
	return err
}

func (w *world) wantEvents(texts ...string) {
	w.t.Helper()
	for _, want := range texts {
		if !strings.Contains(w.events(), want) {
			w.t.Fatalf("no event says %q:\n%s", want, w.events())
		}
	}
}

// A GPU that its guest has ejected stays with its lease until it is plugged in again or
// the lease ends.
func TestGuestRemovesItsGPU(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	gpu := w.has(id)
	wantRefusal(t, w.replug(gpu), connect.CodeFailedPrecondition, "has not ejected GPU "+gpu)
	if g := w.gpu(gpu); g.Use != dxpuv1.Use_USE_BUSY || g.Ejected {
		t.Errorf("the GPU is %v, ejected %v", g.Use, g.Ejected)
	}

	w.nodes["h1"].ejects = true
	w.settle()
	l := w.wantLease(id, leaseActive)
	if b := l.Bindings[0]; !b.Ejected || b.State != attached || l.StateReason != "the guest has ejected GPU "+gpu {
		t.Errorf("binding %v; %s", b, l.StateReason)
	}
	if g := w.gpu(gpu); !g.Ejected || g.State != dxpuv1.GPUState_GPU_STATE_BOUND {
		t.Errorf("the GPU is %v, ejected %v", g.State, g.Ejected)
	}
	w.wantEvents("the guest of h1 slot 0 has ejected GPU " + gpu + "; lease " + id + " keeps it")

	if err := w.replug(gpu); err != nil {
		t.Fatal(err)
	}
	w.settle()
	l = w.wantLease(id, leaseActive)
	if l.Bindings[0].Ejected || l.StateReason != "every GPU is attached" {
		t.Errorf("binding %v; %s", l.Bindings[0], l.StateReason)
	}
	w.wantEvents("GPU " + gpu + " is plugged into h1 slot 0 again")
	wantRefusal(t, w.replug(gpu), connect.CodeFailedPrecondition, "has not ejected")
	wantRefusal(t, w.replug("b1/1"), connect.CodeFailedPrecondition, "is not leased")
	wantRefusal(t, w.replug("b9/1"), connect.CodeNotFound, "does not exist")

	w.nodes["h1"].ejects = true
	w.settle()
	w.delete(id, true)
	w.settle()
	w.wantLease(id, leaseReleased)
}

// An event says once that a GPU is in use, and another whether it was removed by force.
func TestGuestHoldsOn(t *testing.T) {
	for _, c := range []struct {
		name         string
		holds        time.Duration
		forces       string
		force        bool // the lease is deleted without grace
		says, silent string
	}{
		{"lets go at once", 0, "", false, "is released", "in use"},
		{"takes its time", time.Second, "", false, "GPU b1/0 is in use on h1 slot 0: a driver", "by force"},
		{"is forced", time.Second, "a driver is asleep", false, "GPU b1/0 was removed from the guest of h1 slot 0 by force: a driver is asleep", "fences"},
		{"the host hangs, too", time.Hour, "", false, "did not release GPU b1/0 in time: the box fences it off", "by force"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
			id := w.create(&dxpuv1.LeaseSpec{Count: 1})
			w.settle()
			w.wantLease(id, leaseActive)
			host := w.nodes["h1"]
			if c.holds > 0 {
				host.holds = "a driver has it"
			}
			host.forces = c.forces
			w.delete(id, !c.force)
			w.settle()
			if c.holds > 0 {
				b := w.lease(id).Bindings[0]
				if b.State != detaching || b.Detail != "a driver has it" {
					t.Errorf("the binding is %v: %s", b.State, b.Detail)
				}
			}
			for passed := time.Duration(0); passed < min(c.holds, time.Minute); passed += 500 * time.Millisecond {
				w.pass(500 * time.Millisecond)
				w.rounds(1)
			}
			if c.holds < time.Minute {
				host.holds = ""
				w.settle()
				w.wantLease(id, leaseReleased)
			} else if b := w.lease(id).Bindings[0]; !b.BoxClear || b.HostClear {
				t.Errorf("the box is clear: %v, the host: %v", b.BoxClear, b.HostClear)
			}
			w.wantEvents(c.says)
			if strings.Contains(w.events(), c.silent) {
				t.Errorf("an event says %q:\n%s", c.silent, w.events())
			}
			if n := strings.Count(w.events(), "is in use on"); n > 1 {
				t.Errorf("%d events say that the GPU is in use", n)
			}
		})
	}
}

// A tenant or a host may plug in only its own GPUs again.
func TestReplugIsForOwners(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), hostNode("h2", 1), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", HostId: "h1"})
	w.settle()
	gpu := w.has(id)
	for _, c := range []struct {
		who auth.Identity
		may bool
	}{
		{auth.Identity{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "a"}, true},
		{auth.Identity{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "b"}, false},
		{auth.Identity{Role: dxpuv1.Role_ROLE_HOST, Node: "h1"}, true},
		{auth.Identity{Role: dxpuv1.Role_ROLE_HOST, Node: "h2"}, false},
		{auth.Identity{Role: dxpuv1.Role_ROLE_BOX, Node: "b1"}, false},
	} {
		err := w.m.view(func(t *tx) error { return t.checkOwn(c.who, &dxpuv1.ReplugGPURequest{GpuId: gpu}) })
		if (err == nil) != c.may {
			t.Errorf("%v: %v", c.who, err)
		}
		if !c.may && connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%v: %v, want not found", c.who, err)
		}
	}
}

func wantRefusal(t *testing.T, err error, code connect.Code, text string) {
	t.Helper()
	if connect.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %v: %s", err, code, text)
	}
}

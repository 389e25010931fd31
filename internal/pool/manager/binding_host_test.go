package manager

import (
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// closedByHost makes the box of a binding report that its peer has closed the link, which
// often arrives before the host's report.
func (w *world) closedByHost(box string, slot uint32) {
	b := w.nodes[box].has[slot]
	b.State, b.Detail = lost, "closed by the peer: detached"
	w.report(box)
}

// A host that closes a link has a reason. The box's report of the closed link may arrive
// first, and is not the reason of the lease.
func TestHostsReasonWins(t *testing.T) {
	const why = "QEMU refuses the device: Bus 'rp0' not found"
	w := newWorld(t, Config{}, boxNode("b1", 2), hostNode("h1", 1))
	w.nodes["h1"].refusal = why
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.deliver("b1")
	w.report("b1")
	w.deliver("h1")
	w.closedByHost("b1", 0)
	if b := w.lease(id).Bindings[0]; b.State != ready {
		t.Errorf("the binding is %v after the box's report alone (%s)", b.State, b.Detail)
	}
	w.pass(500 * time.Millisecond)
	w.settle()
	l := w.wantLease(id, leaseFailed)
	if want := "host h1 could not attach GPU b1/0: " + why; l.StateReason != want {
		t.Errorf("state reason %q, want %q", l.StateReason, want)
	}
	if b := l.Bindings[0]; len(l.Bindings) != 1 || b.Reason != dxpuv1.Reason_REASON_HOST_FAILED || b.Detail != why {
		t.Errorf("bindings %v", l.Bindings)
	}
	if strings.Contains(w.events(), "closed by the peer") {
		t.Errorf("an event has the box's view of it:\n%s", w.events())
	}
}

// A host that does not say why it closed a link is not waited for without limit.
func TestHostSaysNothing(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 2), hostNode("h1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.wantLease(id, leaseActive)
	w.closedByHost("b1", 0)
	for range 5 {
		w.settle()
	}
	if b := w.lease(id).Bindings[0]; b.Reason != dxpuv1.Reason_REASON_LINK_LOST || b.Detail != "closed by the peer: detached" {
		t.Errorf("binding %v", b)
	}
	w.wantLease(id, leaseActive)
}

// The link of a dead host is down because of the host. The lease says so and waits; its
// GPUs go to no dead host, and are not blamed.
func TestHostDies(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 2), hostNode("h1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.wantLease(id, leaseActive)
	w.nodes["h1"].down = true
	w.closedByHost("b1", 0)
	for range 10 {
		w.settle()
	}
	l := w.wantLease(id, leaseDegraded)
	if b := l.Bindings[0]; len(l.Bindings) != 1 || b.Reason != dxpuv1.Reason_REASON_HOST_LOST {
		t.Errorf("bindings %v", l.Bindings)
	}
	if want := "waiting for host h1, which does not report"; !strings.Contains(l.StateReason, want) {
		t.Errorf("state reason %q, want one with %q", l.StateReason, want)
	}

	w.nodes["h1"].down = false
	w.nodes["h1"].forget()
	w.settle()
	l = w.wantLease(id, leaseActive)
	if b := l.Bindings[len(l.Bindings)-1]; len(l.Bindings) != 2 || b.State != attached {
		t.Errorf("bindings %v", l.Bindings)
	}
}

// A host that dies while it attaches a device has as much time as any other when it
// returns.
func TestHostDiesWhileAttaching(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 2), hostNode("h1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.nodes["h1"].deaf = true // it reports, and has not learned of the binding
	w.settle()
	w.nodes["h1"].down = true
	for range 100 {
		w.settle()
	}
	l := w.wantLease(id, leaseBinding)
	if want := "GPUs are being attached; waiting for host h1, which does not report; it ends at 22:23:21 UTC if the host stays away"; l.StateReason != want {
		t.Errorf("state reason %q, want %q", l.StateReason, want)
	}
	if b := l.Bindings[0]; !b.Waiting || b.State != ready {
		t.Errorf("binding %v", b)
	}
	w.nodes["h1"].down, w.nodes["h1"].deaf = false, false
	w.settle()
	l = w.wantLease(id, leaseActive)
	if b := l.Bindings[0]; len(l.Bindings) != 1 || b.Waiting || b.Detail != "" {
		t.Errorf("bindings %v", l.Bindings)
	}
}

// A proxy that begins a binding again which it had before was restarted. Its link is gone,
// and the manager need not wait until the other side has noticed.
func TestProxyBeginsAgain(t *testing.T) {
	for _, node := range []string{"h1", "b1"} {
		t.Run(node, func(t *testing.T) {
			w := newWorld(t, Config{}, boxNode("b1", 2), hostNode("h1", 1))
			id := w.create(&dxpuv1.LeaseSpec{Count: 1})
			w.settle()
			w.wantLease(id, leaseActive)
			w.nodes[node].restart()
			w.nodes[node].has[0].State = preparing
			w.report(node)
			l := w.lease(id)
			if b := l.Bindings[0]; b.State != lost || b.Reason != dxpuv1.Reason_REASON_BINDING_FORGOTTEN {
				t.Errorf("binding %v", b)
			}
			w.settle()
			w.wantLease(id, leaseActive)
		})
	}
}

// Attempts to attach that fail count, whatever the reason.
func TestAttachAttemptsAreBounded(t *testing.T) {
	for _, wait := range []bool{false, true} {
		w := newWorld(t, Config{}, boxNode("b1", 8), hostNode("h1", 1))
		w.nodes["h1"].linkDown = true
		id := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: wait})
		for range 100 {
			w.settle()
		}
		l := w.wantLease(id, leaseFailed)
		if n := strings.Count(w.events(), " is preparing"); n != maxAttempts {
			t.Errorf("wait %v: %d bindings were made, want %d (%s)", wait, n, maxAttempts, l.StateReason)
		}
	}
}

// The pauses between attempts to give a lease in use another GPU grow, up to a bound.
func TestAttachPausesGrow(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 4), hostNode("h1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.wantLease(id, leaseActive)
	w.nodes["h1"].linkDown = true // for every binding from now on
	attempts := func() int { return strings.Count(w.events(), " is preparing") }
	w.settle()
	before := attempts()
	for range 3600 { // an hour
		w.rounds(2)
		w.pass(900 * time.Millisecond)
	}
	// 5, 10, ... 300 s: seven in the first ten minutes, then one every five minutes.
	if n := attempts() - before; n < 12 || n > 20 {
		t.Errorf("%d attempts in an hour, want about 17", n)
	}
	l := w.wantLease(id, leaseDegraded)
	if !strings.Contains(l.StateReason, "could not be attached") {
		t.Errorf("state reason %q", l.StateReason)
	}
}

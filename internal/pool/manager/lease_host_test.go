package manager

import (
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// hostGoes silences a host, for the manager and, if it is dead, for its boxes, which then
// report its links as lost.
func (w *world) hostGoes(host string, dead bool) {
	w.nodes[host].down = true
	for _, id := range w.order {
		if n := w.nodes[id]; n.box() {
			n.linkDown = dead
			for _, b := range n.has {
				b.State = attached
			}
		}
	}
}

// After Config.HostTimeout a lease on a dead host returns to the queue if it may go to
// another host, and ends otherwise. Its GPUs and its quota are free again.
func TestLeaseOnADeadHost(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec *dxpuv1.LeaseSpec
		then string // part of the state reason while the lease waits
		want dxpuv1.LeaseState
		why  string
	}{
		{"may wait", &dxpuv1.LeaseSpec{Count: 2, Wait: true}, "it returns to the queue at ", leaseActive, ""},
		{"may not wait", &dxpuv1.LeaseSpec{Count: 2}, "it ends at ", leaseReleased, "host h1 has not reported for 10m"},
		{"must use this host", &dxpuv1.LeaseSpec{Count: 2, Wait: true, HostId: "h1"}, "it ends at ", leaseReleased, "host h1 has not reported for 10m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 3), boxNode("b1", 2))
			w.putTenant("a", &dxpuv1.Quota{MaxGpus: 2})
			tt.spec.Tenant = "a"
			id := w.create(tt.spec)
			w.settle()
			if l := w.wantLease(id, leaseActive); l.HostId != "h1" {
				t.Fatalf("it is on %s", l.HostId)
			}
			w.hostGoes("h1", true)
			w.passReporting(9 * time.Minute)
			if l := w.wantLease(id, leaseDegraded); !strings.Contains(l.StateReason, "waiting for host h1, which does not report; "+tt.then) {
				t.Errorf("while it waits: %s", l.StateReason)
			}
			w.nodes["b1"].linkDown = false
			w.passReporting(2 * time.Minute)
			l := w.wantLease(id, tt.want)
			if !strings.Contains(l.StateReason, tt.why) || l.HostId == "h1" && tt.want == leaseActive {
				t.Errorf("on %s: %s", l.HostId, l.StateReason)
			}
			if !strings.Contains(w.events(), "host h1 has not reported for 10m") {
				t.Errorf("no event:\n%s", w.events())
			}
			if tt.want == leaseActive {
				return
			}
			w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"}), leaseBinding)
			w.settle()
		})
	}
}

// A host that is only cut off from the manager keeps its leases, because its guests work;
// so does every host where the operator says so. An active lease tells that its state is old.
func TestHostThatMayWorkKeepsItsLeases(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		dead    bool
		box     bool // the box does not report either
		want    dxpuv1.LeaseState
		says    string
	}{
		{"its box says that the link is up", 0, false, false, leaseActive, "every GPU is attached, by the last report: host h1 does not report"},
		{"its box does not report", 0, true, true, leaseActive, "every GPU is attached, by the last report: host h1 and a box do not report"},
		{"no limit", -1, true, false, leaseDegraded, "0 of 2 GPUs are attached, 0 are being attached; waiting for host h1, which does not report"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{HostTimeout: tt.timeout}, hostNode("h1", 4), boxNode("b1", 2))
			id := w.create(&dxpuv1.LeaseSpec{Count: 2})
			w.settle()
			w.nodes["b1"].down = tt.box
			w.hostGoes("h1", tt.dead)
			w.passReporting(30 * time.Minute)
			w.wantLease(id, tt.want)
			if says := w.lease(id).StateReason; says != tt.says {
				t.Errorf("the lease says %q, want %q", says, tt.says)
			}
		})
	}
}

// The time counts from when the GPUs stopped working, if the host was silent before: a
// box that restarts while the host is cut off from the manager costs no lease.
func TestHostTimeoutCountsFromTheLossOfTheLink(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 2))
	id := w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.settle()
	w.hostGoes("h1", false)
	w.passReporting(30 * time.Minute)
	w.wantLease(id, leaseActive)
	w.nodes["b1"].linkDown = true
	w.passReporting(9 * time.Minute)
	w.wantLease(id, leaseDegraded)
	w.passReporting(2 * time.Minute)
	w.wantLease(id, leaseReleased)
}

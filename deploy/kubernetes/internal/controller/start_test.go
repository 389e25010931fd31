package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// TestSlicesOfStart: a controller that starts while the manager has not heard the nodes leaves the
// slices as they are until they have had the time to report. A claim waits for its host meanwhile.
func TestSlicesOfStart(t *testing.T) {
	for name, test := range map[string]struct {
		reports      bool
		want         string
		writes       int
		leases, lost int // lost is the number of events that the host is not there
	}{
		"nodes report":      {reports: true, want: allOffered, writes: 1, leases: 1},
		"nodes stay silent": {want: "not w1" + unreached, writes: 1, lost: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inOutage(t, again, func(o *outage) {
				o.allocate("train")
				o.after(6 * time.Second)
				o.wantOffered("at first", allOffered, 0)
				o.wantLeases(1, "before the host reports")
				if test.reports {
					o.manager.set(report)
				}
				o.after(20 * time.Second)
				o.wantOffered("later", test.want, test.writes)
				o.wantLeases(test.leases, "later")
				if got := o.events("GPUHostUnavailable"); len(got) != test.lost {
					o.Errorf("events %q", got)
				}
			})
		})
	}
}

// TestSlicesOfStartLost: a host that has reported to the manager, and does no more, is left out at once,
// and a claim for it fails at once.
func TestSlicesOfStartLost(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.lost = true }, func(o *outage) {
		o.wantOffered("at first", "not w1", 1)
		o.allocate("train")
		o.after(3 * time.Second)
		o.wantLeases(0, "for a host that is lost")
		if got := o.events("GPUHostUnavailable"); len(got) != 1 {
			o.Errorf("events %q", got)
		}
	})
}

// TestHealthOfStart: the health of a device that is attached stays as it is while the manager has not
// heard its box.
func TestHealthOfStart(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.active = true }, func(o *outage) {
		o.allocate("train")
		o.after(time.Second)
		o.stop()
		o.manager.set(again)
		o.next()
		o.after(8 * time.Second)
		o.manager.set(report)
		o.after(time.Minute)
		d := deviceStatus(o.claim("train"), "b1-0", "")
		if d == nil || !isTrue(*d, inventory.Attached) || meta.FindStatusCondition(d.Conditions, inventory.Healthy) != nil {
			o.Errorf("the status is %+v", d)
		}
	})
}

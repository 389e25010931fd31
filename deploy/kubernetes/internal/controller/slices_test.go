package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// again is a manager that has just been started again: no node has reported to it.
func again(m *awayManager) { m.away, m.silent, m.noBox = false, true, true }

// report lets all nodes report to the manager.
func report(m *awayManager) { m.silent, m.noBox = false, false }

// sliceWrites returns the number of resource slices written since it was called before.
func (o *outage) sliceWrites() (n int) {
	for _, a := range o.kube.Actions() {
		if a.GetResource().Resource == "resourceslices" && slices.Contains([]string{"create", "update", "patch", "delete"}, a.GetVerb()) {
			n++
		}
	}
	o.kube.ClearActions()
	return n
}

// lists returns how often the hosts have been listed.
func (o *outage) lists() (n int) {
	o.manager.set(func(m *awayManager) { n = m.lists })
	return n
}

// offered says what the scheduler sees: for which nodes the slices are, and the taints of devices.
func (o *outage) offered() (out string) {
	o.Helper()
	all, err := o.kube.ResourceV1().ResourceSlices().List(o.Context(), metav1.ListOptions{})
	if err != nil {
		o.Fatal(err)
	}
	for _, s := range all.Items {
		out += offeredBy(&s.Spec)
	}
	return out
}

func offeredBy(s *resourceapi.ResourceSliceSpec) string {
	out := "all nodes"
	if s.NodeSelector != nil {
		out = "not"
		for _, f := range s.NodeSelector.NodeSelectorTerms[0].MatchFields {
			if f.Operator == corev1.NodeSelectorOpNotIn {
				out += " " + f.Values[0]
			}
		}
	}
	for _, d := range s.Devices {
		for _, t := range d.Taints {
			out += fmt.Sprintf(", %s %s=%s", d.Name, t.Key, t.Value)
		}
	}
	return out
}

// wantOffered fails unless the scheduler sees something, after a number of writes.
func (o *outage) wantOffered(when, want string, writes int) {
	o.Helper()
	if got, n := o.offered(), o.sliceWrites(); got != want || n != writes {
		o.Errorf("%s: %q after %d writes; want %q after %d", when, got, n, want, writes)
	}
}

const (
	allOffered = "all nodes"
	unreached  = ", b1-0 dxpu.dev/health=unreachable"
)

// TestSlicesOfReturn: the slices stay as they are after a restart of the manager, until the nodes
// have had the time to report to it.
func TestSlicesOfReturn(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.wantOffered("at first", allOffered, 1)
		o.manager.set(away)
		o.after(time.Minute)
		o.manager.set(again)
		o.after(8 * time.Second)
		o.manager.set(report)
		o.after(time.Minute)
		o.wantOffered("after a restart", allOffered, 0)

		o.manager.set(again) // another one leads, and the streams have not seen it
		for before := o.lists(); o.lists() == before; {
			o.after(time.Second)
		}
		o.after(8 * time.Second)
		o.manager.set(report)
		o.after(time.Minute)
		o.wantOffered("after a change of the leader", allOffered, 0)
	})
}

// TestSlicesOfSilent: a node that stays silent after a restart of the manager is left out after ten
// seconds, and a host that the manager has lost at once.
func TestSlicesOfSilent(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.wantOffered("at first", allOffered, 1)
		o.manager.set(away)
		o.after(time.Minute)
		o.manager.set(again)
		o.after(9 * time.Second)
		o.wantOffered("soon after a restart", allOffered, 0)
		o.after(4 * time.Second)
		o.wantOffered("after a restart", "not w1"+unreached, 1)
		o.manager.set(report)
		o.after(20 * time.Second)
		o.wantOffered("when they report", allOffered, 1)
	})
}

// TestSlicesOfLost: a host that the manager had lost before its restart stays out.
func TestSlicesOfLost(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.wantOffered("at first", allOffered, 1)
		o.manager.set(func(m *awayManager) { m.lost = true })
		o.after(16 * time.Second)
		o.wantOffered("lost", "not w1", 1)
		o.manager.set(away)
		o.after(time.Minute)
		o.manager.set(again)
		o.after(5 * time.Second)
		o.wantOffered("soon after a restart", "not w1", 0)
		o.after(time.Minute)
		o.wantOffered("after a restart", "not w1"+unreached, 1)
	})
}

// TestSlicesDeleted: a slice that a user deletes soon after the controller wrote it is made again.
func TestSlicesDeleted(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.wantOffered("at first", allOffered, 1)
		if err := o.kube.ResourceV1().ResourceSlices().Delete(o.Context(), sliceBefore().Name, metav1.DeleteOptions{}); err != nil {
			o.Fatal(err)
		}
		o.wantOffered("deleted", "", 1)
		o.after(slicesAgain + resourceslice.DefaultMutationCacheTTL + time.Second)
		o.wantOffered("later", allOffered, 1)
		o.after(2 * resourceslice.DefaultMutationCacheTTL)
		o.wantOffered("at last", allOffered, 0)
	})
}

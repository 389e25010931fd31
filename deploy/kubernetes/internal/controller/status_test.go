package controller

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/pool"
)

// attachedClaim returns a claim whose status says that lease l-1 serves its device.
func attachedClaim(t *testing.T, conditions ...string) *resourceapi.ResourceClaim {
	t.Helper()
	raw, err := json.Marshal(devicedata.Data{Lease: "l-1", GPU: "b1/0", Host: "h1"})
	if err != nil {
		t.Fatal(err)
	}
	d := resourceapi.AllocatedDeviceStatus{Driver: inventory.Driver, Device: "b1-0", Data: &runtime.RawExtension{Raw: raw}}
	for _, c := range conditions {
		d.Conditions = append(d.Conditions, metav1.Condition{Type: c, Status: metav1.ConditionTrue})
	}
	claim := &resourceapi.ResourceClaim{}
	claim.UID, claim.Status.Devices = "u", []resourceapi.AllocatedDeviceStatus{d}
	return claim
}

// A lease that the claim names and the watch does not know is asked for: only the manager's
// word that it is forgotten makes the device a lost one.
func TestLeasesOf(t *testing.T) {
	for _, test := range []struct {
		name       string
		err        error
		conditions []string
		want, gets int
		again      bool
	}{
		{name: "known to the manager", conditions: []string{inventory.Attached}, want: 1, gets: 1},
		{name: "forgotten", err: connect.NewError(connect.CodeNotFound, errors.New("no such lease")), conditions: []string{inventory.Attached}, gets: 1},
		{name: "no answer", err: connect.NewError(connect.CodeUnavailable, errors.New("no leader")), conditions: []string{inventory.Attached}, gets: 1, again: true},
		{name: "not attached yet"},
		{name: "failed before", conditions: []string{inventory.Attached, inventory.Failed}},
	} {
		t.Run(test.name, func(t *testing.T) {
			gets := 0
			c := controllerWith(oneAnswer{err: test.err, gets: &gets})
			leases, err := c.leasesOf(t.Context(), "u", attachedClaim(t, test.conditions...))
			if (err != nil) != test.again || len(leases) != test.want || gets != test.gets {
				t.Errorf("%d leases after %d calls, error %v; want %d after %d, an error: %v", len(leases), gets, err, test.want, test.gets, test.again)
			}
			if len(leases) == 0 {
				return
			}
			if _, err := c.leasesOf(t.Context(), "u", attachedClaim(t, test.conditions...)); err != nil || gets != test.gets {
				t.Errorf("asked again: %d calls, %v", gets, err)
			}
		})
	}
}

func (m oneAnswer) GetLease(context.Context, *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	*m.gets++
	if m.err != nil {
		return nil, m.err
	}
	return connect.NewResponse(&dxpuv1.GetLeaseResponse{Lease: lease()}), nil
}

// Two nodes that name one host get no GPU: one of them would wait for a device that the other
// one has.
func TestHostOfTwoNodes(t *testing.T) {
	c := controllerWith(oneAnswer{})
	c.nodes = cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Node{}, 0, byHost)
	c.watch.SetSnapshot(&pool.Snapshot{Hosts: map[string]*dxpuv1.Host{"host-1": {}}})
	node := func(name string, labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	label := map[string]string{inventory.HostLabel: "host-1"}
	store := c.nodes.GetStore()
	if err := errors.Join(store.Add(node("w1", label)), store.Add(node("w2", nil))); err != nil {
		t.Fatal(err)
	}
	if host, why := c.hostOf("w1"); host != "host-1" {
		t.Errorf("host %q: %s", host, why)
	}
	if err := store.Update(node("w2", label)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"w1", "w2"} {
		if host, why := c.hostOf(name); host != "" || !strings.Contains(why, "nodes w1, w2 have the label dxpu.dev.node-restriction.kubernetes.io/host=host-1") {
			t.Errorf("%s: host %q: %s", name, host, why)
		}
	}
	if err := store.Delete(node("w1", label)); err != nil {
		t.Fatal(err)
	}
	if host, why := c.hostOf("w2"); host != "host-1" {
		t.Errorf("host %q: %s", host, why)
	}
}

package test

import (
	"context"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slicesDeleted: a user deletes all resource slices. The controller publishes the same devices again, also
// that of a pod, which does not notice, and the next pod gets its GPU.
func (e *env) slicesDeleted() {
	e.createPod(podSpec{name: "keeps"})
	pod := e.waitRunning("keeps")
	lease := e.onlyLease().Id
	before := e.published()
	e.must(e.Kube.ResourceV1().ResourceSlices().DeleteCollection(e.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	e.waitDevices(len(before))
	if diff := cmp.Diff(before, e.published()); diff != "" {
		e.t.Errorf("the devices differ (-before +after):\n%s", diff)
	}
	e.createPod(podSpec{name: "next"})
	e.waitRunning("next")
	e.deletePod("next")
	e.wait("one lease", func(ctx context.Context) (bool, error) {
		all, err := e.leases(ctx)
		return len(all) == 1 && all[0].Id == lease, err
	})
	if now, err := e.pod(e.t.Context(), "keeps"); err != nil || now.UID != pod.UID || now.DeletionTimestamp != nil {
		e.t.Errorf("the pod that ran before: %v, %v", now, err)
	}
	e.deletePod("keeps")
	e.waitNoLease()
}

// published returns the devices by name.
func (e *env) published() map[string]resourceapi.Device {
	e.t.Helper()
	all, err := e.slices(e.t.Context())
	e.must(err)
	out := map[string]resourceapi.Device{}
	for _, s := range all {
		for _, d := range s.Spec.Devices {
			out[d.Name] = d
		}
	}
	return out
}

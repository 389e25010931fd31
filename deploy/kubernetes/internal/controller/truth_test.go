package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// quiet waits for some steps until everything has settled, and checks it.
func (w *torture) quiet(steps int) {
	w.Helper()
	for len(w.replicas) > 1 {
		w.replicas[0].stop()
		w.replicas = w.replicas[1:]
	}
	for range steps {
		w.step()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkLocked()
	if len(w.wrong) > 0 {
		for _, l := range w.manager.list() {
			w.Logf("%v", l)
		}
		w.Fatalf("%s", strings.Join(w.wrong, "\n"))
	}
}

func (w *torture) findLocked(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// checkLocked records which invariants do not hold after a time without faults.
func (w *torture) checkLocked() {
	used := map[string]bool{}
	for _, c := range w.claimsLocked() {
		if c.Status.Allocation == nil {
			continue
		}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			d := statusOf(c, r)
			if d == nil || !isTrue(*d, inventory.Attached) || isTrue(*d, inventory.Failed) {
				w.findLocked("claim %s/%s, device %s is not served: %+v", c.Namespace, c.Name, r.Device, d)
				continue
			}
			if h := meta.FindStatusCondition(d.Conditions, inventory.Healthy); h != nil && h.Status != metav1.ConditionTrue {
				w.findLocked("claim %s/%s, device %s is not healthy: %s, %s", c.Namespace, c.Name, r.Device, h.Reason, h.Message)
			}
			used[attachedBy(*d).Lease] = true
		}
	}
	for _, l := range w.manager.list() {
		switch {
		case ended(l):
		case !used[l.Id]:
			w.findLocked("lease %s is left: %s, %v", l.Id, l.State, l.Spec.Labels)
		case l.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE:
			w.findLocked("lease %s is in use and %s", l.Id, l.State)
		}
		delete(used, l.Id)
	}
	for id := range used {
		w.findLocked("a claim has lease %s, which is not there", id)
	}
	w.checkOfferedLocked()
}

// checkOfferedLocked records what is wrong with the devices that the scheduler sees.
func (w *torture) checkOfferedLocked() {
	slices, err := w.kube.ResourceV1().ResourceSlices().List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	devices, perPool, wanted := 0, map[string]int64{}, map[string]int64{}
	for _, s := range slices.Items {
		perPool[s.Spec.Pool.Name]++
		wanted[s.Spec.Pool.Name] = s.Spec.Pool.ResourceSliceCount
		for _, d := range s.Spec.Devices {
			devices++
			if len(d.Taints) > 0 {
				w.findLocked("device %s has taints %v", d.Name, d.Taints)
			}
		}
	}
	if !maps.Equal(perPool, wanted) {
		w.findLocked("the resource pools have %v slices, want %v", perPool, wanted)
	}
	if want := len(modelGPUs()); devices != want {
		w.findLocked("%d devices are offered, want %d", devices, want)
	}
}

// checkReadyLocked records what is wrong with the devices that a new status of a claim calls attached:
// each needs a lease of its own claim, GPU and node that has its GPU.
func (w *torture) checkReadyLocked(was, is *resourceapi.ResourceClaim) {
	for i := range is.Status.Devices {
		d := is.Status.Devices[i]
		by := attachedBy(d)
		if old := deviceStatus(was, d.Device, shareOf(d)); by.Lease == "" || old != nil && attachedBy(*old).Lease == by.Lease {
			continue
		}
		w.manager.mu.Lock()
		served := w.manager.served[by.Lease+" "+string(is.UID)]
		w.manager.mu.Unlock()
		if !served || inventory.DeviceName(by.GPU) != d.Device || by.Local != shapeOf(is).local {
			w.findLocked("claim %s/%s (%s), device %s is ready by %+v, served: %v", is.Namespace, is.Name, is.UID, d.Device, by, served)
		}
		if node := w.nodeOfLocked(was); node != "" && by.Host != "h"+node[1:] {
			w.findLocked("claim %s/%s for node %s is ready by %+v", is.Namespace, is.Name, node, by)
		}
		w.checkAloneLocked(is, by)
	}
}

// nodeOfLocked returns the node for which a claim is allocated, "" if its pod is gone.
func (w *torture) nodeOfLocked(c *resourceapi.ResourceClaim) string {
	if n := allocatedNode(c.Status.Allocation.NodeSelector); n != "" {
		return n
	}
	for _, pod := range w.podsLocked(c) {
		return pod.Spec.NodeName
	}
	return ""
}

// checkAloneLocked records that a lease which begins to serve a claim serves another one, too.
func (w *torture) checkAloneLocked(is *resourceapi.ResourceClaim, by devicedata.Data) {
	for _, c := range w.claimsLocked() {
		for _, d := range c.Status.Devices {
			if c.UID != is.UID && attachedBy(d).Lease == by.Lease {
				w.findLocked("lease %s serves the claims %s/%s and %s/%s", by.Lease, is.Namespace, is.Name, c.Namespace, c.Name)
			}
		}
	}
}

// failures are the events and reasons that say of a claim that its lease has ended, by the pool's will.
var failures = []string{"LeaseEnded", "LeaseLost", "DeviceLost", "Preempted"}

// checkFailedLocked records a failure for which there is no cause in the pool: none of the claim's
// leases has lost its GPU, waited in vain, or been restored.
func (w *torture) checkFailedLocked(namespace, name, reason, message string) {
	if reason == "Refused" && !strings.Contains(message, noTenant) {
		w.findLocked("claim %s/%s is refused: %s", namespace, name, message)
	}
	if !slices.Contains(failures, reason) {
		return
	}
	w.manager.mu.Lock()
	defer w.manager.mu.Unlock()
	for uid, at := range w.named {
		if at == namespace+"/"+name && (w.manager.vain[uid] || slices.ContainsFunc(lostBy(w.manager.lost), func(claim string) bool { return claim == uid })) {
			return
		}
	}
	w.findLocked("claim %s/%s fails without a cause: %s: %s", namespace, name, reason, message)
}

func lostBy(lost map[string]bool) (claims []string) {
	for at := range lost {
		_, claim, _ := strings.Cut(at, " ")
		claims = append(claims, claim)
	}
	return claims
}

// mayDelete notes a lease that is deleted although a pod uses it.
func (w *torture) mayDelete(l *dxpuv1.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.claimsLocked() {
		if w.manager.hasLost(l) || string(c.UID) != l.Spec.Labels[claims.LabelClaim] || c.Status.Allocation == nil || l.State != dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
			continue
		}
		running := slices.ContainsFunc(w.podsLocked(c), func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
		for _, d := range c.Status.Devices {
			if attachedBy(d).Lease == l.Id && running {
				w.findLocked("lease %s of claim %s/%s (%s), whose pod runs, is deleted", l.Id, c.Namespace, c.Name, c.UID)
			}
		}
	}
}

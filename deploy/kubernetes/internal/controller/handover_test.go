package controller

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// TestHandover: another controller goes on where one has stopped in the middle of an attach. No lease
// is made twice or left, and the claim is bound, or its lease given back if it ends between the two.
func TestHandover(t *testing.T) {
	onStatus := func(o *outage, written bool) {
		stopped := false
		o.kube.PrependReactor("update", "resourceclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if stopped || a.GetSubresource() != "status" || len(a.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceClaim).Status.Devices) == 0 {
				return false, nil, nil
			}
			stopped = true
			o.stop()
			return !written, nil, context.Canceled
		})
	}
	for name, stopAt := range map[string]func(o *outage){
		"before the answer":    func(o *outage) { o.manager.set(func(m *awayManager) { m.created = o.stop }) },
		"before the status":    func(o *outage) { onStatus(o, false) },
		"before the condition": func(o *outage) { onStatus(o, true) },
	} {
		for _, ends := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inOutage(t, always, func(o *outage) {
					stopAt(o)
					o.allocate("train")
					o.manager.set(away)
					o.manager.set(back) // its leases are listed, and the claim is looked at again
					o.after(3 * time.Second)
					o.wantLeases(1, "when the first stops")
					if o.running.Err() == nil {
						o.Fatal("the first has not stopped")
					}
					o.manager.set(func(m *awayManager) { m.active, m.created = true, nil })
					if ends {
						o.deallocate("train")
					}
					o.next()
					o.after(time.Minute)
					if n := len(o.manager.specs); n != 1 {
						o.Errorf("%d leases have been made, want 1", n)
					}
					if ends {
						o.wantLeases(0, "after the claim has ended")
						return
					}
					o.wantLeases(1, "with another controller")
					if d := deviceStatus(o.claim("train"), "b1-0", ""); d == nil || attachedBy(*d).Lease == "" {
						o.Errorf("the claim is not bound: %v", d)
					}
				})
			})
		}
	}
}

// TestFailsFirst: a claim whose host is lost fails before its lease is deleted. The call to delete it
// may come late, and another controller would take the claim for one that is served.
func TestFailsFirst(t *testing.T) {
	inOutage(t, always, func(o *outage) {
		o.allocate("train")
		o.manager.set(func(m *awayManager) { m.keeps, m.lost = true, true })
		o.after(time.Minute)
		o.wantLeases(1, "which the manager does not delete")
		if d := deviceStatus(o.claim("train"), "b1-0", ""); d == nil || !isTrue(*d, inventory.Failed) {
			o.Errorf("the claim has not failed: %+v", d)
		}
		o.manager.set(func(m *awayManager) { m.keeps, m.lost = false, false })
		o.after(time.Minute)
		o.wantLeases(0, "which the manager deletes")
	})
}

// TestHostLostInAttach: a claim fails whose host is lost while it attaches the GPU: the manager would wait for
// many minutes. It does not while the manager has just returned, which knows no host yet.
func TestHostLostInAttach(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.binding = true }, func(o *outage) {
		o.allocate("train")
		o.after(20 * time.Second)
		failed := func() bool {
			d := deviceStatus(o.claim("train"), "b1-0", "")
			return d != nil && isTrue(*d, inventory.Failed)
		}
		o.manager.set(func(m *awayManager) { m.away, m.silent = true, true })
		o.manager.set(back)
		o.after(5 * time.Second)
		if failed() {
			o.Fatal("the claim fails before the host has had the time to report")
		}
		o.manager.set(func(m *awayManager) { m.silent = false })
		o.after(20 * time.Second)
		o.wantLeases(1, "which is attached")
		o.manager.set(func(m *awayManager) { m.lost = true })
		o.after(20 * time.Second)
		o.wantLeases(0, "after the host was lost")
		if !failed() {
			o.Errorf("the claim has not failed: %+v", o.claim("train").Status.Devices)
		}
	})
}

// TestHostLostOnNode: a claim without binding conditions does not fail while its host is away: its pod is
// on the node, also if the allocation names it, as that of a GPU of the node's own machine does.
func TestHostLostOnNode(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.binding = true }, func(o *outage) {
		o.allocateUntil("train")
		o.after(20 * time.Second)
		o.manager.set(func(m *awayManager) { m.lost = true })
		o.after(time.Minute)
		o.wantLeases(1, "while the host is away")
		o.manager.set(func(m *awayManager) { m.lost, m.active = false, true })
		o.manager.set(away)
		o.manager.set(back) // its leases are listed, and the claim is looked at again
		o.after(20 * time.Second)
		if d := deviceStatus(o.claim("train"), "b1-0", ""); d == nil || !isTrue(*d, inventory.Attached) || isTrue(*d, inventory.Failed) {
			o.Errorf("the claim is not attached: %+v", d)
		}
	})
}

// TestHostShutOnNode: a claim without binding conditions waits in the queue while its host takes no GPU.
func TestHostShutOnNode(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.lost = true }, func(o *outage) {
		o.allocateUntil("train")
		o.after(time.Minute)
		o.wantLeases(1, "while the host takes no GPU")
		o.manager.set(func(m *awayManager) { m.lost, m.active = false, true })
		o.manager.set(away)
		o.manager.set(back) // its leases are listed, and the claim is looked at again
		o.after(20 * time.Second)
		if d := deviceStatus(o.claim("train"), "b1-0", ""); d == nil || !isTrue(*d, inventory.Attached) || isTrue(*d, inventory.Failed) {
			o.Errorf("the claim is not attached: %+v", d)
		}
	})
}

// TestGivesUp: a pod whose claim has no binding conditions is on its node for ever if its GPU fails before
// it is attached: the pod is evicted after a pause. With conditions the scheduler gives the claim back.
func TestGivesUp(t *testing.T) {
	for _, conditions := range [][]string{nil, {inventory.Attached}} {
		inOutage(t, func(m *awayManager) { m.invalid = true }, func(o *outage) {
			var evictions atomic.Int32
			o.kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				if a.GetSubresource() != "eviction" {
					return false, nil, nil
				}
				evictions.Add(1)
				return true, nil, nil
			})
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p1"}, Spec: corev1.PodSpec{NodeName: "w1"}}
			if _, err := o.kube.CoreV1().Pods("lab").Create(o.Context(), pod, metav1.CreateOptions{}); err != nil {
				o.Fatal(err)
			}
			o.allocateUntil("train", conditions...)
			o.after(giveUpPause - 2*time.Second)
			if d := deviceStatus(o.claim("train"), "b1-0", ""); d == nil || !isTrue(*d, inventory.Failed) || evictions.Load() > 0 {
				o.Fatalf("conditions %q, before the pause: %+v, %d evictions", conditions, d, evictions.Load())
			}
			o.after(4 * time.Second)
			if evicted := evictions.Load() > 0; evicted != (conditions == nil) {
				o.Errorf("conditions %q: evicted %v after the pause", conditions, evicted)
			}
		})
	}
}

// TestEvictsFirst: a pod that has lost its GPU is evicted, also while the manager cannot delete the
// lease. It may have a part, or tolerate the taint of the device.
func TestEvictsFirst(t *testing.T) {
	inOutage(t, func(m *awayManager) { m.active = true }, func(o *outage) {
		var evicted atomic.Bool
		o.kube.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.GetSubresource() != "eviction" {
				return false, nil, nil
			}
			evicted.Store(true)
			return true, nil, nil
		})
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p1"}, Spec: corev1.PodSpec{NodeName: "w1"}}
		if _, err := o.kube.CoreV1().Pods("lab").Create(o.Context(), pod, metav1.CreateOptions{}); err != nil {
			o.Fatal(err)
		}
		o.allocate("train")
		o.manager.set(away)
		o.manager.set(back) // its leases are listed, and the claim is looked at again
		o.after(3 * time.Second)
		if d := deviceStatus(o.claim("train"), "b1-0", ""); d == nil || !isTrue(*d, inventory.Attached) || evicted.Load() {
			o.Fatalf("at first: %+v, evicted: %v", d, evicted.Load())
		}
		o.manager.set(func(m *awayManager) { m.active, m.keeps, m.away = false, true, true }) // it is in the queue again
		o.manager.set(back)
		o.after(time.Minute)
		o.wantLeases(1, "which the manager does not delete")
		if !evicted.Load() {
			o.Error("the pod has not been evicted")
		}
	})
}

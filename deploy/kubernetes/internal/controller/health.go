package controller

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// setHealth says in the status of an attached device how its GPU is, once it has not been
// healthy: the plugin on the node tells the kubelet, which shows it in the status of the pod.
func setHealth(claim *resourceapi.ResourceClaim, s claims.Status, g *dxpuv1.GPU) {
	d := deviceStatus(claim, s.Device, s.Share)
	reason := healthReasons[g.GetHealth()]
	if d == nil || reason == "" {
		return // the pool does not say
	}
	c := metav1.Condition{
		Type: inventory.Healthy, Status: metav1.ConditionFalse, Reason: reason,
		Message: truncate(g.HealthDetail), ObservedGeneration: claim.Generation,
	}
	switch g.Health {
	case dxpuv1.Health_HEALTH_OK:
		if meta.FindStatusCondition(d.Conditions, inventory.Healthy) == nil {
			return // most claims are written once
		}
		c.Status, c.Message = metav1.ConditionTrue, ""
	case dxpuv1.Health_HEALTH_UNREACHABLE:
		c.Status = metav1.ConditionUnknown
	}
	if is := meta.FindStatusCondition(d.Conditions, inventory.Healthy); is != nil && is.Reason == reason {
		return // the detail may have a number that grows
	}
	meta.SetStatusCondition(&d.Conditions, c)
}

// healthReasons are the reasons of the condition Healthy.
var healthReasons = map[dxpuv1.Health]string{
	dxpuv1.Health_HEALTH_OK: "OK", dxpuv1.Health_HEALTH_DEGRADED: "Degraded",
	dxpuv1.Health_HEALTH_FAILED: "Failed", dxpuv1.Health_HEALTH_UNREACHABLE: "Unreachable",
}

package claims

import (
	"cmp"
	"fmt"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// lostReasons say why a GPU is lost where the manager has no words of its own.
var lostReasons = map[dxpuv1.Reason]string{
	dxpuv1.Reason_REASON_GPU_FAILED:        "it has failed",
	dxpuv1.Reason_REASON_BOX_LOST:          "its box does not report",
	dxpuv1.Reason_REASON_LINK_LOST:         "the host has lost the link to its box",
	dxpuv1.Reason_REASON_REPLACED:          "an operator has replaced it",
	dxpuv1.Reason_REASON_DRAINED:           "an operator drains its box or its host",
	dxpuv1.Reason_REASON_BINDING_FORGOTTEN: "its box has restarted",
	dxpuv1.Reason_REASON_HOST_FAILED:       "the host could not show it to its VM",
	dxpuv1.Reason_REASON_HOST_LOST:         "the host does not report",
	dxpuv1.Reason_REASON_TAINTED:           "it, its box or the host has a taint that the claim does not tolerate",
}

// lost returns why a device is lost, by the binding that served it. The lease itself tells how many
// GPUs it lacks, and of a replacement, which no claim gets.
func (s *Status) lost(l *dxpuv1.Lease, d Device) string {
	for i := len(l.Bindings) - 1; i >= 0; i-- {
		b := l.Bindings[i]
		gpu := cmp.Or(b.PartOfGpuId, b.GpuId)
		if len(l.GetSpec().GetGpuIds()) > 1 && gpu != d.GPU {
			continue
		}
		if why := cmp.Or(b.Detail, lostReasons[b.Reason]); b.Reason != 0 && why != "" {
			return fmt.Sprintf("GPU %s is lost: %s", gpu, why)
		}
	}
	return s.Message
}

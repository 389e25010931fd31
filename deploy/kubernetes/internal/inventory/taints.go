package inventory

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

var taintEffects = map[dxpuv1.TaintEffect]resourceapi.DeviceTaintEffect{
	dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE: resourceapi.DeviceTaintEffectNoSchedule,
	dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE:  resourceapi.DeviceTaintEffectNoExecute,
}

// operatorTaints returns the taints that operators gave a GPU and its box. A device has
// one taint for each key, value and effect.
func operatorTaints(lists ...[]*dxpuv1.Taint) (out []resourceapi.DeviceTaint) {
	for _, list := range lists {
		for _, t := range list {
			effect, ok := taintEffects[t.Effect]
			if !ok {
				continue // of a newer manager
			}
			d := resourceapi.DeviceTaint{Key: t.Key, Value: t.Value, Effect: effect}
			if len(validation.IsQualifiedName(t.Key)) > 0 || len(validation.IsValidLabelValue(t.Value)) > 0 {
				d.Key, d.Value = TaintOperator, ""
			}
			if !slices.Contains(out, d) {
				out = append(out, d)
			}
		}
	}
	return out
}

// Tolerations returns the tolerations of a request in the form of the pool. The taints of
// the driver's own are not among them: they are states of which the manager decides.
func Tolerations(list []resourceapi.DeviceToleration) (out []*dxpuv1.Toleration) {
	for _, t := range list {
		o := &dxpuv1.Toleration{Key: t.Key, Value: t.Value, AnyValue: t.Operator == resourceapi.DeviceTolerationOpExists}
		for pool, effect := range taintEffects {
			if effect == t.Effect {
				o.Effect = pool
			}
		}
		switch {
		case t.Effect != "" && o.Effect == 0, len(t.Key) > maxTaintKey:
			continue // no taint of the pool is like that
		case o.AnyValue:
			o.Value = ""
		}
		out = append(out, o)
	}
	return out
}

// maxTaintKey is the manager's bound for the key of a taint, in bytes.
const maxTaintKey = 63

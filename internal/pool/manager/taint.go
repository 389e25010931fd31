package manager

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

const (
	// maxTaints bounds the taints of a target, and maxTolerations those of a lease.
	maxTaints      = 16
	maxTolerations = 16
	// maxTaintSize bounds an encoded taint, in bytes.
	maxTaintSize = 200
	// maxTaintSets bounds the different sets of taints in the pool: a decision on a lease
	// looks at each of them.
	maxTaintSets = 64
)

var (
	taintKeyPattern   = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,63}$`)
	taintValuePattern = regexp.MustCompile(`^[A-Za-z0-9._-]{0,63}$`)
)

// taint keeps leases that do not tolerate it away from a slot or a node.
type taint struct {
	Key    string             `json:"key"`
	Value  string             `json:"value,omitempty"`
	Effect dxpuv1.TaintEffect `json:"effect"`
}

func (a taint) compare(b taint) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Effect, b.Effect))
}

var placementEffects = map[dxpuv1.TaintEffect]placement.Effect{
	dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE: placement.NoSchedule, dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE: placement.NoExecute,
}

func (a taint) placement() placement.Taint {
	return placement.Taint{Key: a.Key, Value: a.Value, Effect: placementEffects[a.Effect]}
}

// placementTaints returns taints for package placement.
func placementTaints(taints []taint) []placement.Taint {
	out := make([]placement.Taint, 0, len(taints))
	for _, a := range taints {
		out = append(out, a.placement())
	}
	return out
}

func tolerationsOf(s *dxpuv1.LeaseSpec) []placement.Toleration {
	var out []placement.Toleration
	for _, o := range s.Tolerations {
		out = append(out, placement.Toleration{Key: o.Key, Value: o.Value, AnyValue: o.AnyValue, Effect: placementEffects[o.Effect]})
	}
	return out
}

func taintMessages(taints []taint) []*dxpuv1.Taint {
	var out []*dxpuv1.Taint
	for _, a := range taints {
		out = append(out, &dxpuv1.Taint{Key: a.Key, Value: a.Value, Effect: a.Effect})
	}
	return out
}

func checkTolerations(s *dxpuv1.LeaseSpec) error {
	if n := len(s.Tolerations); n > maxTolerations {
		return invalid("spec.tolerations: %d, at most %d", n, maxTolerations)
	}
	for _, o := range s.Tolerations {
		switch {
		case o.Key == "" && !o.AnyValue:
			return invalid("spec.tolerations: a toleration without a key must be for any value")
		case o.Key != "" && !taintKeyPattern.MatchString(o.Key):
			return invalid("spec.tolerations: the key %q is not 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.' and '/'", o.Key)
		case o.AnyValue && o.Value != "":
			return invalid("spec.tolerations: a toleration is for any value or for the value %q, not both", o.Value)
		case !taintValuePattern.MatchString(o.Value):
			return invalid("spec.tolerations: the value %q is not up to 63 of A-Z, a-z, 0-9, '-', '_' and '.'", o.Value)
		case o.Effect != 0 && placementEffects[o.Effect] == 0:
			return invalid("spec.tolerations: the effect %d is unknown", o.Effect)
		}
	}
	return nil
}

// SetTaints implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) SetTaints(ctx context.Context, req *connect.Request[dxpuv1.SetTaintsRequest]) (*connect.Response[dxpuv1.SetTaintsResponse], error) {
	r := req.Msg
	for _, a := range r.Set {
		switch {
		case !taintKeyPattern.MatchString(a.Key):
			return nil, invalid("set: the key %q is not 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.' and '/'", a.Key)
		case !taintValuePattern.MatchString(a.Value):
			return nil, invalid("set: the value %q is not up to 63 of A-Z, a-z, 0-9, '-', '_' and '.'", a.Value)
		case placementEffects[a.Effect] == 0:
			return nil, invalid("set: the effect of %s must be NO_SCHEDULE or NO_EXECUTE", a.Key)
		}
	}
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.SetTaintsResponse) error {
		taints, err := t.setTaints(r)
		res.Taints = taintMessages(taints)
		return err
	})
}

// setTaints changes the taints of a target, and returns all that it has then.
func (t *tx) setTaints(r *dxpuv1.SetTaintsRequest) ([]taint, error) {
	n, err := t.target(r.Target)
	if err != nil {
		return nil, err
	}
	if r.ResourceVersion != 0 && r.ResourceVersion != n.ResourceVersion {
		return nil, conflict("target", n.ID, n.ResourceVersion, r.ResourceVersion)
	}
	n = t.nodes.edit(n.ID)
	n.ResourceVersion = t.revision()
	var slot *slotRecord
	of := &n.Taints
	if id := r.Target.GetGpuId(); id != "" {
		_, slot, _ = t.gpuByID(id) // of the editable record
		of = &slot.Taints
	}
	next, err := changeTaints(*of, r)
	if err != nil {
		return nil, err
	}
	*of = next
	t.reindex()
	if n := t.gpuPool.Restrictions() + t.hostPool.Restrictions(); n > maxTaintSets {
		return nil, errorf(connect.CodeResourceExhausted,
			"the pool would have %d different sets of taints, its limit is %d; give GPUs of one purpose the same taints", n, maxTaintSets)
	}
	name, words := targetName(n, slot), "has no taints any more"
	if len(next) > 0 {
		words = "has the taints " + string(placement.NewRestriction(placementTaints(next)...))
	}
	t.event(drainEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_TAINTED), "%s %s", name, words)
	return next, nil
}

// changeTaints returns taints after a request.
func changeTaints(old []taint, r *dxpuv1.SetTaintsRequest) ([]taint, error) {
	next := slices.Clone(old)
	for _, a := range r.Remove {
		before := len(next)
		next = slices.DeleteFunc(next, func(o taint) bool { return o.Key == a.Key && (a.Effect == 0 || o.Effect == a.Effect) })
		if len(next) == before {
			return nil, errorf(connect.CodeNotFound, "there is no taint %q to remove", strings.TrimSuffix(placement.Taint{Key: a.Key, Effect: placementEffects[a.Effect]}.String(), ":"))
		}
	}
	for _, a := range r.Set {
		set := taint{a.Key, a.Value, a.Effect}
		next = slices.DeleteFunc(next, func(o taint) bool { return o.compare(set) == 0 })
		next = append(next, set)
	}
	if len(next) > maxTaints {
		return nil, invalid("set: %d taints, at most %d", len(next), maxTaints)
	}
	slices.SortFunc(next, taint.compare)
	return next, nil
}

// evictUntolerated moves away the bindings of leases that do not tolerate a NO_EXECUTE
// taint of a node or of its slots, as a drain whose deadline is over.
func (t *tx) evictUntolerated(id string) {
	n := t.nodes.get(id)
	if !n.expels() {
		return
	}
	var bound []string
	var in string
	for _, b := range t.boundAt(n, nil) {
		if why := t.untolerated(n, t.bindings.get(b)); why != "" {
			bound, in = append(bound, b), why
		}
	}
	if len(bound) == 0 {
		return
	}
	t.maintainSoon(id)
	t.evict(n, bound, true, dxpuv1.Reason_REASON_TAINTED, fmt.Sprintf("host %s has the taint %s, which the lease does not tolerate", id, in))
}

// expels reports whether a node or one of its slots has a NO_EXECUTE taint.
func (n *nodeRecord) expels() bool {
	has := func(a taint) bool { return a.Effect == dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE }
	return slices.ContainsFunc(n.Taints, has) || slices.ContainsFunc(n.Slots, func(s slotRecord) bool { return slices.ContainsFunc(s.Taints, has) })
}

// untolerated returns a NO_EXECUTE taint at a node that the lease of a binding there does
// not tolerate; "" for none.
func (t *tx) untolerated(n *nodeRecord, b *bindingRecord) string {
	l := t.leases.get(b.LeaseID)
	if l == nil || !t.uses(n, b) {
		return ""
	}
	taints := n.Taints
	if b.BoxID == n.ID {
		for _, at := range slices.Compact([]uint32{b.BoxSlot, b.gpu().Slot}) {
			if s := n.slot(at); s != nil {
				taints = slices.Concat(taints, s.Taints)
			}
		}
	}
	by := tolerationsOf(l.spec)
	for _, a := range taints {
		if p := a.placement(); p.Effect == placement.NoExecute && !placement.Tolerated(p, by) {
			return p.String()
		}
	}
	return ""
}

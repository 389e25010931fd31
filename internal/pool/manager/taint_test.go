package manager

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestTaintsAreBounded checks the limits: the taints of a target, and the different sets
// of taints in the pool, which each decision looks at.
func TestTaintsAreBounded(t *testing.T) {
	w := newWorld(t, Config{})
	w.join(boxNode("b1", maxTaintSets+1))
	w.settle()
	set := func(gpu string, taints ...*dxpuv1.Taint) error {
		_, err := w.api().SetTaints(context.Background(), connect.NewRequest(&dxpuv1.SetTaintsRequest{
			Target: &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: gpu}}, Set: taints,
		}))
		return err
	}
	taint := func(i int) *dxpuv1.Taint {
		return &dxpuv1.Taint{Key: fmt.Sprint("k", i), Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE}
	}
	var many []*dxpuv1.Taint
	for i := range maxTaints + 1 {
		many = append(many, taint(i))
	}
	if err := set("b1/0", many...); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("%d taints: %v", len(many), err)
	}
	for i := range maxTaintSets {
		if err := set(fmt.Sprintf("b1/%d", i), taint(i)); err != nil {
			t.Fatal(err)
		}
	}
	last := fmt.Sprintf("b1/%d", maxTaintSets)
	if err := set(last, taint(maxTaintSets)); err == nil || !strings.Contains(err.Error(), "65 different sets of taints") {
		t.Errorf("one set too many: %v", err)
	}
	if err := set(last, taint(0)); err != nil {
		t.Errorf("a set that exists: %v", err)
	}
	// The refused change left nothing behind.
	d, err := w.api().ExplainLease(context.Background(), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{
		What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: &dxpuv1.LeaseSpec{Count: 1, Tolerations: []*dxpuv1.Toleration{{Key: "k64", AnyValue: true}}}},
	}))
	if err != nil || strings.Contains(strings.Join(d.Msg.Explanation, " "), "k64:") {
		t.Errorf("%v, %v", d, err)
	}
}

// TestTolerationsAreChecked has requests that would be mistakes.
func TestTolerationsAreChecked(t *testing.T) {
	var many []*dxpuv1.Toleration
	for i := range maxTolerations + 1 {
		many = append(many, &dxpuv1.Toleration{Key: fmt.Sprint("k", i), AnyValue: true})
	}
	for name, s := range map[string][]*dxpuv1.Toleration{
		"no key": {{Value: "v"}}, "a value and any": {{Key: "k", Value: "v", AnyValue: true}}, "a line break": {{Key: "a\nb"}},
		"an unknown effect": {{Key: "k", Effect: 9}}, "too many": many,
	} {
		if err := checkSpec(&dxpuv1.LeaseSpec{Count: 1, Tolerations: s}); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

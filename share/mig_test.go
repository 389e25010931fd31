package share_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/share"
)

// TestPlanMIGIsBounded plans on a layout that no GPU has, and that a driver might report:
// sixteen instances of three slices do not fit into 32, in 10^20 orders.
func TestPlanMIGIsBounded(t *testing.T) {
	p := share.MIGProfile{Name: "1g", Slices: 1, Size: 3}
	for start := range 30 {
		p.Starts = append(p.Starts, start)
	}
	l := share.MIGLayout{Profiles: []share.MIGProfile{p}, Memory: 32, Compute: 16}
	if _, _, ok := l.Plan(nil, make([]int, 16)); ok {
		t.Error("48 slices fit into 32")
	}
	if _, placed, ok := l.Plan(nil, make([]int, 10)); !ok || len(placed) != 10 {
		t.Errorf("30 slices do not fit into 32: %v", placed)
	}
}

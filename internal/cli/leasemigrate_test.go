package cli

import (
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A repeated "dxpu lease migrate" may find that its migration has failed: it says so, and does
// not wait for events that are over.
func TestMigrationError(t *testing.T) {
	for state, says := range map[dxpuv1.BindingState]string{
		dxpuv1.BindingState_BINDING_STATE_COPYING:  "",
		dxpuv1.BindingState_BINDING_STATE_FAILED:   "l-1 did not move to b2/0: b1 reports: no",
		dxpuv1.BindingState_BINDING_STATE_RELEASED: "l-1 did not move to b2/0: b1 reports: no",
	} {
		b := &dxpuv1.Binding{LeaseId: "l-1", GpuId: "b2/0", FollowsBindingId: "b-1", State: state, Detail: "b1 reports: no"}
		if err := migrationError(b); (err != nil) != (says != "") || err != nil && !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%v: %v, want %q", state, err, says)
		}
		b.FollowsBindingId = "" // it has followed it
		if err := migrationError(b); err != nil {
			t.Errorf("%v after the switch: %v", state, err)
		}
	}
}

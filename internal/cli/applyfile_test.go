package cli

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestEveryFlagIsAKey checks that a file of "dxpu apply" can say what the flags can.
func TestEveryFlagIsAKey(t *testing.T) {
	for _, c := range []struct {
		cmd    *cobra.Command
		spec   reflect.Type
		others string // flags that are not about the object
	}{
		{newLeaseCreateCommand(&connection{}), reflect.TypeFor[leaseSpec](), " request-id wait timeout  output json yaml help "},
		{newTenantSetCommand(&connection{}), reflect.TypeFor[tenantSpec](), "  output json yaml help "},
	} {
		keys := map[string]bool{}
		for i := range c.spec.NumField() {
			keys[c.spec.Field(i).Tag.Get("yaml")] = true
		}
		c.cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !keys[f.Name] && !strings.Contains(c.others, " "+f.Name+" ") {
				t.Errorf("%s: --%s is no key of the file", c.cmd.CommandPath(), f.Name)
			}
		})
	}
}

// TestLeaseKeys checks the keys that are not strings of the spec.
func TestLeaseKeys(t *testing.T) {
	s, err := parseSpecs([]byte(`
leases:
  - {name: a, gpu: [b1/0, b1/1], toleration: ["team=ml:NoSchedule", "*"], ttl: 1m, queue-timeout: 2h}
  - {name: b, gpu-memory: 2GiB, compute: 30%, class: offline, share: time, affinity: x, workload: bert}
`))
	if err != nil {
		t.Fatal(err)
	}
	a, b := s.Leases[0].spec, s.Leases[1].spec
	if a.Count != 2 || len(a.Tolerations) != 2 || a.Ttl.AsDuration().Minutes() != 1 || !a.Wait || a.WaitTimeout.AsDuration().Hours() != 2 {
		t.Errorf("got %v", a)
	}
	part := &dxpuv1.Part{MemoryBytes: 2 << 30, Compute: 300, Class: dxpuv1.PartClass_PART_CLASS_OFFLINE, Share: dxpuv1.ShareMode_SHARE_MODE_TIME}
	if !proto.Equal(b.Part, part) || b.PartRules.Affinity != "x" || b.PartRules.Workload != "bert" {
		t.Errorf("got %v", b)
	}
}

// TestPreviewsHaveTheirTenants divides more changes than a call takes: each call has the
// tenants of its leases.
func TestPreviewsHaveTheirTenants(t *testing.T) {
	a := &apply{}
	a.would("tenant", "a", "", "created", &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_PutTenant{
		PutTenant: &dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "a"}},
	}})
	for range 100 {
		a.would("lease", "x", "", "created", &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_CreateLease{
			CreateLease: &dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Tenant: "a"}},
		}})
	}
	leases := 0
	for _, together := range previews(a.wanted, a.wanted) {
		if len(together) > previewSize || together[0].change.GetPutTenant() == nil {
			t.Errorf("a call has %d changes, the first is %v", len(together), together[0].change)
		}
		leases += len(together) - 1
	}
	if leases != 100 {
		t.Errorf("%d leases in all calls, want 100", leases)
	}
}

// busyManager looks at two changes of a preview, and knows the tenants of the preview only.
type busyManager struct{ poolAPI }

func (busyManager) Preview(_ context.Context, req *connect.Request[dxpuv1.PreviewRequest]) (*connect.Response[dxpuv1.PreviewResponse], error) {
	res, tenants := &dxpuv1.PreviewResponse{}, map[string]bool{}
	for i, c := range req.Msg.Changes {
		r := &dxpuv1.PreviewResult{}
		switch put := c.GetPutTenant(); {
		case i >= 2:
			r.Code = connect.CodeCanceled.String()
		case put != nil:
			tenants[put.Tenant.Id] = true
		case !tenants[c.GetCreateLease().Spec.Tenant]:
			r.Code = connect.CodeNotFound.String()
		}
		res.Results = append(res.Results, r)
	}
	return connect.NewResponse(res), nil
}

// TestPreviewGoesOn has a manager that takes a few changes at a time: the calls that go on
// have the tenants of their leases, too.
func TestPreviewGoesOn(t *testing.T) {
	a := &apply{api: busyManager{}}
	a.would("tenant", "a", "", "created", &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_PutTenant{
		PutTenant: &dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "a"}},
	}})
	for range 3 {
		a.would("lease", "x", "", "created", &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_CreateLease{
			CreateLease: &dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Tenant: "a"}},
		}})
	}
	if errs := a.preview(t.Context()); len(errs) > 0 {
		t.Errorf("%v", errs)
	}
}

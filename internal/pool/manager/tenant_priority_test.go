package manager

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Tenants may lower the priority of their leases. Priorities above the default need a
// limit of the tenant's own, or an operator; the tenant's limit holds for everyone.
func TestHighPrioritiesAreReserved(t *testing.T) {
	for _, tt := range []struct {
		caller   string
		limit    *int32 // of the tenant
		priority int
		allowed  bool
	}{
		{"tenant", nil, 0, true},
		{"tenant", nil, -100, true},
		{"tenant", nil, 1, false},
		{"tenant", nil, 100, false},
		{"tenant", proto.Int32(20), 20, true},
		{"tenant", proto.Int32(20), 21, false},
		{"tenant", proto.Int32(-10), 0, false},
		{"operator", nil, 100, true},
		{"admin", nil, 100, true},
		{"operator", proto.Int32(20), 21, false},
		{"host", nil, 1, false},
	} {
		t.Run(fmt.Sprint(tt.caller, tt.priority), func(t *testing.T) {
			w := newAccessWorld(t)
			if tt.limit != nil {
				w.putTenant("team-a", &dxpuv1.Quota{MaxPriority: tt.limit})
			}
			request := fmt.Sprintf(`{"spec":{"count":1,"hostId":"$HOST","tenant":"$TENANT","priority":%d}}`, tt.priority)
			body := []byte(w.fill(request, tt.caller, w.own))
			for _, method := range []string{"CreateLease", "ExplainLease"} {
				if method == "ExplainLease" && tt.caller == "host" {
					continue
				}
				a := callJSON(w.handler, "/dxpu.v1.PoolService/"+method, w.secrets[tt.caller], "192.0.2.1:1", body)
				if allowed := a.code == "ok"; allowed != tt.allowed {
					t.Errorf("%s: %q %s", method, a.code, a.message)
				}
			}
		})
	}
}

package web

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestReservationIsShown looks for a lease that begins later on the pages of the pool and of
// the leases: it is neither in the queue nor among those with GPUs.
func TestReservationIsShown(t *testing.T) {
	w := newWorld(t, 0, host("h1", "r1", 4), box("b1", "r1", "DX100", dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH, 4, 0))
	w.settle()
	begin := w.now().Add(time.Hour)
	id := w.lease(&dxpuv1.LeaseSpec{
		Tenant: "later", Count: 2, HostId: "h1", StartTime: timestamppb.New(begin), ExpiresAfter: durationpb.New(time.Hour),
	})
	promised := "b1/0 b1/1 to h1"
	for path, want := range map[string]bool{
		"/": true, "/ui/leases": true, "/ui/leases?tenant=later&host=h1": true, "/ui/leases?state=pending": true,
		"/ui/leases?tenant=other": false, "/ui/leases?host=h2": false, "/ui/leases?state=active": false,
	} {
		_, body := get(t, w.url+path)
		said := text(checkPage(t, body))
		if has := strings.Contains(said, id) && strings.Contains(said, promised); has != want {
			t.Errorf("%s has the reservation: %v, want %v\n%s", path, has, want, said)
		}
	}
}

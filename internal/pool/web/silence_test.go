package web

import (
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Leases whose box or host does not report are the first that needs attention, and their
// pages say whose reports are missing.
func TestLeasesWithoutReports(t *testing.T) {
	w := lostWorld(t)
	const silent = "host h01 and box r1-nv do not report"
	_, body := get(t, w.url+"/")
	page := text(checkPage(t, body))
	lease, box := strings.Index(page, "Lease l-1 of vision "+silent), strings.Index(page, "Box r1-nv has not reported")
	if lease < 0 || box < lease {
		t.Errorf("lease at %d, box at %d of %s", lease, box, page)
	}
	for path, want := range map[string]string{"/ui/leases": silent, "/ui/leases/l-1": "Every GPU is attached, by the last report: host h01 and a box do not report."} {
		if _, body := get(t, w.url+path); !strings.Contains(text(checkPage(t, body)), want) {
			t.Errorf("%s does not say %q", path, want)
		}
	}
	for _, node := range []string{"Host h01", "Box r1-nv"} {
		if _, body := get(t, w.url+"/ui/leases/l-1"); !strings.Contains(text(checkPage(t, body)), node+" does not report: its state is that of its last report.") {
			t.Errorf("the explanation of the lease does not say that %s is silent", node)
		}
	}
	// A tenant learns of its host, and of no box.
	token := w.token(dxpuv1.Role_ROLE_TENANT, "vision")
	_, body = get(t, w.url+"/ui/leases", "Authorization", "Bearer "+token)
	if page := text(checkPage(t, body)); !strings.Contains(page, "host h01 does not report") || strings.Contains(page, "box r1-nv") {
		t.Errorf("a tenant reads %s", page)
	}

	w = normalWorld(t)
	for _, path := range []string{"/", "/ui/leases", "/ui/leases/l-1"} {
		if _, body := get(t, w.url+path); strings.Contains(text(checkPage(t, body)), "not report") {
			t.Errorf("%s of a pool that works says that something does not report", path)
		}
	}
}

package web

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// dividedWorld has a lease with a part of each of two GPUs.
func dividedWorld(t *testing.T) (w *world, lease string) {
	b := box("b1", "r1", "DX100", pcie, 4, 0) // two are spares
	b.divided = 4
	w = newWorld(t, 0, host("h1", "r1", 8), b)
	return w, w.lease(&dxpuv1.LeaseSpec{Count: 2, HostId: "h1", Tenant: "vision", Part: &dxpuv1.Part{MemoryBytes: 16 << 30, Compute: 300}})
}

// TestResizeParts gives the parts of a lease other sizes from its page.
func TestResizeParts(t *testing.T) {
	w, lease := dividedWorld(t)
	other := w.lease(&dxpuv1.LeaseSpec{Count: 2, HostId: "h1", Tenant: "vision", Part: &dxpuv1.Part{MemoryBytes: 20 << 30, Compute: 405}})
	if said, _ := w.leaseSays(t, other); !strings.Contains(said, "Of each GPU the lease has 20 GiB and 40.5 % of the compute.") {
		t.Fatalf("the page says %s", said)
	}
	form := func(fields url.Values) url.Values {
		fields["do"], fields["id"] = []string{"resizepart"}, []string{lease}
		return fields
	}
	for _, tt := range []struct {
		fields url.Values
		says   string
	}{
		{url.Values{"memory": {"24"}, "compute": {"50"}}, "Lease " + lease + " gets 24 GiB and 50 % of the compute of each GPU."},
		{url.Values{"memory": {"60"}, "compute": {""}}, "Lease " + lease + " gets 60 GiB and 50 % of the compute of each GPU."},
		{url.Values{"memory": {"61"}}, "has room for 60 GiB and 59.5 % of the compute for this part, and it asks for 61 GiB and 50 % of the compute"},
		{url.Values{"compute": {" 20 "}, "deadline": {"60"}}, "Lease " + lease + " gets 60 GiB and 20 % of the compute of each GPU."},
		{url.Values{}, "memory and compute: one of them must have a new size"},
		{url.Values{"memory": {"0"}}, "is not a number from 1 to 4096"},
		{url.Values{"memory": {"4097"}}, "is not a number from 1 to 4096"},
		{url.Values{"compute": {hostile}}, "is not a number from 1 to 100"},
		{url.Values{"memory": {"8"}, "deadline": {"soon"}}, "is not a number from 1 to 86400"},
		{url.Values{"memory": {"8"}, "deadline": {"-1"}}, "is not a number from 1 to 86400"},
	} {
		if said := w.do(t, form(tt.fields)); !strings.Contains(strings.ToLower(said), strings.ToLower(tt.says)) {
			t.Errorf("%v: the page says %s", tt.fields, said)
		}
		w.settle()
	}
	l, err := w.pool.GetLease(t.Context(), connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: lease}))
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Msg.Lease.Spec.Part; p.MemoryBytes != 60<<30 || p.Compute != 200 {
		t.Errorf("the lease has parts of %v", p)
	}
}

// TestResizePartsOfWholeGPUs checks that the page of a lease with whole GPUs offers no size
// of parts, and that the form is refused there.
func TestResizePartsOfWholeGPUs(t *testing.T) {
	w, lease := movingWorld(t)
	if said, _ := w.leaseSays(t, lease); strings.Contains(said, "Resize its parts") || !strings.Contains(said, "Resize lease "+lease) {
		t.Errorf("the page says %s", said)
	}
	res, body := post(t, w.url+"/ui/do", url.Values{"do": {"resizepart"}, "id": {lease}, "memory": {"8"}, "next": {"/ui/hosts"}})
	if said := text(checkPage(t, body)); res.StatusCode == http.StatusSeeOther || !strings.Contains(said, "has whole GPUs") {
		t.Errorf("%s: %s", res.Status, said)
	}
}

package web

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// movingWorld has a lease of two GPUs that can move, and four free GPUs in another box.
func movingWorld(t *testing.T) (w *world, lease string) {
	nodes := []*simNode{host("h1", "r1", 4), box("b1", "r1", "DX100", pcie, 2, 0), box("b2", "r1", "DX100", pcie, 4, 0)}
	for _, n := range nodes {
		n.movable = true
	}
	w = newWorld(t, 0, nodes...)
	return w, w.lease(&dxpuv1.LeaseSpec{Count: 2, HostId: "h1", Tenant: "vision"})
}

// leaseSays returns the text of the page of a lease, and the GPUs that it offers to move.
func (w *world) leaseSays(t *testing.T, lease string, header ...string) (said, movable string) {
	t.Helper()
	_, body := get(t, w.url+"/ui/leases/"+lease, header...)
	doc := checkPage(t, body)
	each(doc, func(n *html.Node) {
		if n.Data == "option" && n.Parent.Data == "select" {
			movable += " " + text(n)
		}
	})
	return strings.Join(strings.Fields(text(doc)), " "), strings.TrimSpace(movable)
}

// do sends a form twice, as a double click does, and returns what the next page says.
func (w *world) do(t *testing.T, fields url.Values) string {
	t.Helper()
	fields.Set("next", "/ui/hosts")
	var said string
	for range 2 {
		res, body := post(t, w.url+"/ui/do", fields)
		if c := cookieOf(res, noticeCookie); res.StatusCode == http.StatusSeeOther && c != nil {
			_, body = get(t, w.url+"/ui/hosts", "Cookie", noticeCookie+"="+c.Value)
		}
		again := text(checkPage(t, body))
		if said != "" && again != said {
			t.Errorf("the second form is answered by %q, the first by %q", again, said)
		}
		said = again
	}
	return said
}

// TestMigrate moves a GPU of a lease from its page, and lets it stay after all.
func TestMigrate(t *testing.T) {
	w, lease := movingWorld(t)
	if said, movable := w.leaseSays(t, lease); movable != "b1/0 b1/1" || strings.Contains(said, "Migrations") {
		t.Fatalf("%q can move: %s", movable, said)
	}
	if said := w.do(t, url.Values{"do": {"migrate"}, "id": {lease}, "gpu": {"b1/1"}, "to": {"b1/0"}}); !strings.Contains(said, "it is in the same box") {
		t.Errorf("to a GPU of the same box: %s", said)
	}
	if said := w.do(t, url.Values{"do": {"migrate"}, "id": {lease}, "gpu": {"b1/1"}, "to": {"b2/3"}}); !strings.Contains(said, "GPU b1/1 of lease "+lease+" moves to b2/3.") {
		t.Fatalf("confirmed by %s", said)
	}
	w.settle()
	if said, movable := w.leaseSays(t, lease); movable != "b1/0" || !strings.Contains(said, "GPU b1/1 moves to b2/3: ready.") || !strings.Contains(said, "Keep b1/1") {
		t.Fatalf("meanwhile %q can move: %s", movable, said)
	}
	if said := w.do(t, url.Values{"do": {"stay"}, "id": {lease}, "gpu": {"b1/1"}}); !strings.Contains(said, "Lease "+lease+" keeps GPU b1/1.") {
		t.Errorf("confirmed by %s", said)
	}
	w.settle()
	if said, movable := w.leaseSays(t, lease); movable != "b1/0 b1/1" || strings.Contains(said, "moves to b2/3:") {
		t.Errorf("afterwards %q can move: %s", movable, said)
	}
	if said := w.do(t, url.Values{"do": {"stay"}, "id": {lease}, "gpu": {"b1/1"}}); !strings.Contains(said, "no migration of b1/1 of lease "+lease+" is under way") {
		t.Errorf("without a migration: %s", said)
	}
	if said := w.do(t, url.Values{"do": {"migrate"}, "id": {lease}, "gpu": {"b1/0"}, "to": {""}}); !strings.Contains(said, "GPU b1/0 of lease "+lease+" moves to b2/") {
		t.Errorf("to a GPU that the manager chooses: %s", said)
	}
}

// TestTenantsDoNotMigrate looks at the page of a lease as its tenant: only operators move GPUs.
func TestTenantsDoNotMigrate(t *testing.T) {
	w, lease := movingWorld(t)
	cookie := tokenCookie + "=" + w.token(dxpuv1.Role_ROLE_TENANT, "vision")
	if said, movable := w.leaseSays(t, lease, "Cookie", cookie); movable != "" || !strings.Contains(said, "Delete lease "+lease) {
		t.Errorf("a tenant can move %q: %s", movable, said)
	}
}

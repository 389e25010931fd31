package web

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A search for an ID leads to its page; one for a part of it shows what has that part.
func TestSearch(t *testing.T) {
	w, lease := busyWorld(t)
	for q, to := range map[string]string{
		lease: "/ui/leases/" + lease, "r2-nv/5": "/ui/gpus/r2-nv/5", "h03": "/ui/hosts/h03", "r2-nv": "/ui/boxes/r2-nv", " h03 ": "/ui/hosts/h03",
	} {
		res, _ := get(t, w.url+"/ui/search?q="+escape(q))
		if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != to {
			t.Errorf("%q: %s to %q, want %s", q, res.Status, res.Header.Get("Location"), to)
		}
	}
	_, body := get(t, w.url+"/ui/search?q=R2")
	var found []string
	each(checkPage(t, body), func(n *html.Node) {
		if n.Data == "a" && within(n, "li") && !within(n, "nav") {
			found = append(found, attr(n, "href"))
		}
	})
	for _, want := range []string{"/ui/boxes/r2-nv", "/ui/boxes/r2-sw", "/ui/gpus/r2-nv/0"} {
		if !slices.Contains(found, want) {
			t.Errorf("a search for R2 does not find %s: %v", want, found)
		}
	}
	tenant := w.token(dxpuv1.Role_ROLE_TENANT, "speech")
	res, body := get(t, w.url+"/ui/search?q=r2-nv", "Cookie", tokenCookie+"="+tenant)
	if res.StatusCode != http.StatusOK || strings.Contains(body, "/ui/boxes/") {
		t.Errorf("a tenant finds boxes: %s", res.Status)
	}
}

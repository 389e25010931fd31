package web

import (
	"net/http"
	"net/url"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// searchData is the content of the page of a search.
type searchData struct {
	Text  string
	Found []entry // the objects with the text in their ID; Key is the kind
}

// shownFound bounds the objects of one kind that a search shows, and scanFound the pages
// of the API that it reads for them.
const (
	shownFound = 20
	scanFound  = 5
)

// searchPage finds leases, GPUs, boxes, hosts and tenants by a part of their ID.
func (s *Server) searchPage(v *view) error {
	v.Name, v.Title, v.Poll = "search", "Search", 0
	d := &searchData{Text: strings.TrimSpace(v.Query.Get("q"))}
	v.Data = d
	if d.Text == "" {
		return nil
	}
	for _, find := range []func(*view, *searchData) error{findLeases, findGPUs, findHosts, findBoxes, findTenants} {
		if err := allowed(find(v, d)); err != nil {
			return err
		}
	}
	return nil
}

// exactly redirects a search for the ID of an object to its page.
func (s *Server) exactly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := strings.TrimSpace(r.FormValue("q"))
		api := s.cfg.Client(r)
		to := ""
		switch {
		case id == "":
		case strings.Contains(id, "/"):
			if _, err := ask(r.Context(), api.GetGPU, &dxpuv1.GetGPURequest{GpuId: id}); err == nil {
				to = gpuHref(id)
			}
		default:
			if _, err := ask(r.Context(), api.GetLease, &dxpuv1.GetLeaseRequest{LeaseId: id}); err == nil {
				to = "/ui/leases/" + url.PathEscape(id)
			} else if _, err := ask(r.Context(), api.GetHost, &dxpuv1.GetHostRequest{HostId: id}); err == nil {
				to = "/ui/hosts/" + url.PathEscape(id)
			} else if _, err := ask(r.Context(), api.GetBox, &dxpuv1.GetBoxRequest{BoxId: id}); err == nil {
				to = "/ui/boxes/" + url.PathEscape(id)
			}
		}
		if to != "" {
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// find adds the objects of a list whose ID contains the text.
func find[T any](d *searchData, kind string, fetch func(token string) (fetched[T], error), id func(T) string, href func(id string) string) error {
	token, shown := "", 0
	for range scanFound {
		page, err := fetch(token)
		if err != nil {
			return err
		}
		for _, item := range page.items {
			if shown < shownFound && strings.Contains(strings.ToLower(id(item)), strings.ToLower(d.Text)) {
				d.Found = append(d.Found, entry{Key: kind, Name: id(item), Href: href(id(item))})
				shown++
			}
		}
		if token = page.next; token == "" || shown == shownFound {
			break
		}
	}
	return nil
}

func findLeases(v *view, d *searchData) error {
	return find(d, "Lease", func(token string) (fetched[*dxpuv1.Lease], error) {
		res, err := ask(v.ctx(), v.api.ListLeases, &dxpuv1.ListLeasesRequest{PageSize: maxFetch, PageToken: token})
		return fetched[*dxpuv1.Lease]{res.GetLeases(), res.GetNextPageToken()}, err
	}, (*dxpuv1.Lease).GetId, func(id string) string { return "/ui/leases/" + url.PathEscape(id) })
}

func findGPUs(v *view, d *searchData) error {
	return find(d, "GPU", func(token string) (fetched[*dxpuv1.GPU], error) {
		res, err := ask(v.ctx(), v.api.ListGPUs, &dxpuv1.ListGPUsRequest{PageSize: maxFetch, PageToken: token})
		return fetched[*dxpuv1.GPU]{res.GetGpus(), res.GetNextPageToken()}, err
	}, func(g *dxpuv1.GPU) string { return g.Id }, gpuHref)
}

func findHosts(v *view, d *searchData) error {
	return find(d, "Host", func(token string) (fetched[*dxpuv1.Host], error) {
		res, err := ask(v.ctx(), v.api.ListHosts, &dxpuv1.ListHostsRequest{PageSize: maxFetch, PageToken: token})
		return fetched[*dxpuv1.Host]{res.GetHosts(), res.GetNextPageToken()}, err
	}, func(h *dxpuv1.Host) string { return h.GetNode().GetId() }, func(id string) string { return "/ui/hosts/" + url.PathEscape(id) })
}

func findBoxes(v *view, d *searchData) error {
	return find(d, "Box", func(token string) (fetched[*dxpuv1.Box], error) {
		res, err := ask(v.ctx(), v.api.ListBoxes, &dxpuv1.ListBoxesRequest{PageSize: maxFetch, PageToken: token})
		return fetched[*dxpuv1.Box]{res.GetBoxes(), res.GetNextPageToken()}, err
	}, func(b *dxpuv1.Box) string { return b.GetNode().GetId() }, func(id string) string { return "/ui/boxes/" + url.PathEscape(id) })
}

func findTenants(v *view, d *searchData) error {
	res, err := v.api.ListTenants(v.ctx(), connect.NewRequest(&dxpuv1.ListTenantsRequest{PageSize: maxFetch}))
	if err != nil {
		return err
	}
	return find(d, "Tenant", func(string) (fetched[*dxpuv1.Tenant], error) {
		return fetched[*dxpuv1.Tenant]{items: res.Msg.Tenants}, nil
	},
		(*dxpuv1.Tenant).GetId, func(id string) string { return "/ui/leases?tenant=" + url.QueryEscape(id) })
}

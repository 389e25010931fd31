package web

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// poolData is the content of the page of the pool.
type poolData struct {
	Counts   counts
	Racks    []rack
	Drawn    bool // slots are drawn; otherwise only totals of racks
	Age      string
	Hidden   bool // the viewer has no access to boxes
	Models   []string
	Filter   poolFilter
	Problems []problem
	Chart    *chart // nil: no history, or no access to it
	Start    bool   // the pool has no box or no host yet
	Queue    []*dxpuv1.Lease
	Reserved []*dxpuv1.Lease // that begin later
	Plans    []*dxpuv1.Maintenance
	Events   []*dxpuv1.Event
	Page     int
	Pages    int
}

// poolFilter is the filter of the map, from the query.
type poolFilter struct {
	Rack, Model, Show string
	OneRack           bool
}

// problem is an object that needs an operator's attention.
type problem struct {
	Kind kind
	What string
	Href string
	Why  string
}

// racksPerPage bounds the rows of a large pool's page.
const racksPerPage = 100

func (s *Server) poolPage(v *view) error {
	v.Name, v.Title, v.Nav = "pool", "Pool", "pool"
	d := &poolData{Filter: poolFilter{
		Rack: v.Query.Get("rack"), Model: v.Query.Get("model"), Show: v.Query.Get("show"), OneRack: v.Query.Has("rack"),
	}}
	v.Data = d
	load := s.drawPool
	if v.Pool.Gpus > maxDrawn {
		load = s.sumPool
	}
	err := load(v, d)
	if connect.CodeOf(err) == connect.CodePermissionDenied {
		d.Hidden, err = true, nil
	}
	if err != nil {
		return err
	}
	for _, m := range v.Pool.Spares {
		d.Models = append(d.Models, m.Model)
	}
	d.dim()
	d.Start = v.Operator() && (v.Pool.Boxes == 0 || v.Pool.Hosts == 0)
	if err := s.findProblems(v, d); err != nil {
		return err
	}
	history, err := ask(v.ctx(), v.api.GetPoolHistory, &dxpuv1.GetPoolHistoryRequest{Samples: chartSamples})
	if allowedOrUnknown(err) != nil {
		return err
	}
	d.Chart = newChart(history.GetSamples())
	if d.Queue, err = queue(v, 8); err != nil {
		return err
	}
	if d.Reserved, err = reservations(v, leaseFilter{}); err != nil {
		return err
	}
	plans, err := ask(v.ctx(), v.api.ListMaintenance, &dxpuv1.ListMaintenanceRequest{})
	if allowedOrUnknown(err) != nil {
		return err
	}
	d.Plans = plans.GetMaintenance()
	d.Events, err = newestEvents(v, nil, 10)
	return allowed(err)
}

// drawPool loads a pool whose every slot is drawn.
func (s *Server) drawPool(v *view, d *poolData) error {
	var boxes []*dxpuv1.Box
	if err := walkBoxes(v.ctx(), v.api, func(more []*dxpuv1.Box) { boxes = append(boxes, more...) }); err != nil {
		return err
	}
	d.Drawn = true
	d.Racks = byRack(boxes, true)
	for _, r := range d.Racks {
		d.Counts.add(r.Counts)
	}
	d.oneRack()
	return nil
}

// sumPool loads the totals of racks, for a pool of more than maxDrawn GPUs.
func (s *Server) sumPool(v *view, d *poolData) error {
	sums, err := s.racks.get(cmp.Or(scopeOf(v.Me), credential(v.r)), s.cfg.Now, func() ([]rack, error) { return sumRacks(v.ctx(), v.api) })
	if err != nil {
		return err
	}
	d.Racks = slices.Clone(sums.racks)
	for _, r := range d.Racks {
		d.Counts.add(r.Counts)
	}
	if age := v.Now.Sub(sums.at); age >= time.Second {
		d.Age = formatAge(age)
	}
	if !d.Filter.OneRack {
		d.paginate(v.Query)
		return nil
	}
	d.oneRack()
	if len(d.Racks) == 1 {
		return d.drawRack(v)
	}
	return nil
}

// drawRack loads the boxes of the only rack on the page.
func (d *poolData) drawRack(v *view) error {
	r := &d.Racks[0]
	d.Drawn = true
	for _, id := range r.ids[:min(len(r.ids), maxDrawn/8)] {
		res, err := v.api.GetBox(v.ctx(), connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: id}))
		switch {
		case connect.CodeOf(err) == connect.CodeNotFound: // removed since the racks were counted
		case err != nil:
			return err
		default:
			r.Boxes = append(r.Boxes, newBoxView(res.Msg.Box))
		}
	}
	return nil
}

// oneRack removes all racks but the one that the query names.
func (d *poolData) oneRack() {
	if d.Filter.OneRack {
		d.Racks = slices.DeleteFunc(d.Racks, func(r rack) bool { return r.Name != d.Filter.Rack })
	}
}

// paginate removes all racks that are not on the page that the query names.
func (d *poolData) paginate(q url.Values) {
	d.Pages = (len(d.Racks) + racksPerPage - 1) / racksPerPage
	n, _ := strconv.Atoi(q.Get("page"))
	d.Page = min(max(n, 1), max(d.Pages, 1))
	from := (d.Page - 1) * racksPerPage
	d.Racks = d.Racks[from:min(len(d.Racks), from+racksPerPage)]
}

// dim marks the slots that do not pass the filter, and collects the models.
func (d *poolData) dim() {
	show := kindNamed(d.Filter.Show)
	for _, r := range d.Racks {
		for _, b := range r.Boxes {
			for i := range b.Slots {
				s := &b.Slots[i]
				model := s.GPU.GetDevice().GetModel()
				if model != "" {
					d.Models = append(d.Models, model)
				}
				s.Dim = show != kinds && s.Kind != show || d.Filter.Model != "" && model != d.Filter.Model
			}
		}
	}
	slices.SortFunc(d.Models, func(a, b string) int { return cmp.Or(compareNatural(a, b), cmp.Compare(a, b)) })
	d.Models = slices.Compact(d.Models)
}

// findProblems collects leases with too few GPUs or without reports, then their causes: nodes that do not
// report, broken GPUs, and missing spares.
func (s *Server) findProblems(v *view, d *poolData) error {
	leases, err := ask(v.ctx(), v.api.ListLeases, &dxpuv1.ListLeasesRequest{State: dxpuv1.LeaseState_LEASE_STATE_DEGRADED, PageSize: shownProblems})
	if allowed(err) != nil {
		return err
	}
	for _, l := range leases.GetLeases() {
		what := "Lease " + l.Id + " of " + l.GetSpec().GetTenant()
		d.add(problem{degraded, what, "/ui/leases/" + url.PathEscape(l.Id), fmt.Sprintf("%d of %s", len(gpusOf(l)), plural(l.GetSpec().GetCount(), "GPU")) + colon(l.StateReason)})
	}
	if more := int(v.Pool.LeasesDegraded) - len(leases.GetLeases()); more > 0 {
		d.add(problem{degraded, plural(more, "more lease"), "/ui/leases?state=degraded", "degraded"})
	}
	d.findHit(v, leases.GetLeases())
	for _, r := range d.Racks {
		for _, b := range r.Boxes {
			if !b.Node.GetConnected() {
				d.add(problem{
					unreachable, "Box " + b.ID, "/ui/boxes/" + url.PathEscape(b.ID),
					fmt.Sprintf("has not reported for %s; %d of %s leased", ago(v.Now, b.Node.GetLastReportTime()), b.leased(), plural(b.Counts.Total(), "GPU")),
				})
			}
		}
		if r.Boxes == nil && r.Silent > 0 {
			d.add(problem{
				unreachable, "Rack " + cmp.Or(r.Name, "without a name"), "/?rack=" + url.QueryEscape(r.Name),
				plural(r.Silent, "box does", "boxes do") + " not report; " + plural(r.Hit, "GPU") + " there leased",
			})
		}
	}
	if lost := v.Pool.Hosts - min(v.Pool.Hosts, v.Pool.HostsConnected); lost > 0 {
		d.add(problem{unreachable, "Hosts", "/ui/hosts?show=lost", plural(lost, "host does", "hosts do") + " not report"})
	}
	for _, name := range v.Pool.AbsentManagers {
		d.add(problem{unreachable, "Manager " + name, "/ui/events?type=leader", "does not run; the pool decides only while most of its managers run"})
	}
	for _, h := range []dxpuv1.Health{dxpuv1.Health_HEALTH_FAILED, dxpuv1.Health_HEALTH_DEGRADED} {
		res, err := ask(v.ctx(), v.api.ListGPUs, &dxpuv1.ListGPUsRequest{Health: h, PageSize: shownProblems})
		if allowed(err) != nil {
			return err
		}
		for _, g := range res.GetGpus() {
			d.add(problem{kindOf(g), "GPU " + g.Id, gpuHref(g.Id), word(h) + colon(g.HealthDetail)})
		}
	}
	for _, m := range v.Pool.Spares {
		if m.Held < m.Wanted {
			d.add(problem{held, "Spares of " + m.Model, "/#spares", fmt.Sprintf("%d of %d available", m.Held, m.Wanted)})
		}
	}
	return nil
}

func (d *poolData) add(p problem) { d.Problems = append(d.Problems, p) }

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// queue returns the waiting leases, the next one first.
func queue(v *view, most int) ([]*dxpuv1.Lease, error) {
	res, err := ask(v.ctx(), v.api.ListLeases, &dxpuv1.ListLeasesRequest{State: dxpuv1.LeaseState_LEASE_STATE_PENDING, PageSize: maxFetch})
	if err != nil {
		return nil, allowed(err)
	}
	res.Leases = slices.DeleteFunc(res.Leases, sleeps)
	slices.SortStableFunc(res.Leases, func(a, b *dxpuv1.Lease) int { return cmp.Compare(a.QueuePosition, b.QueuePosition) })
	return res.Leases[:min(len(res.Leases), most)], nil
}

// sleeps reports whether a lease is not in the queue yet, because it begins later.
func sleeps(l *dxpuv1.Lease) bool { return l.Reservation != nil && l.QueuePosition == 0 }

// newestEvents returns the n newest events, newest first.
func newestEvents(v *view, f *dxpuv1.EventFilter, n int) ([]*dxpuv1.Event, error) {
	res, err := ask(v.ctx(), v.api.ListEvents, &dxpuv1.ListEventsRequest{Filter: f, NewestFirst: true, PageSize: int32(n)})
	return res.GetEvents(), err
}

// gpuHref returns the path of the page of a GPU, whose ID is "BOX/SLOT".
func gpuHref(id string) string {
	i := strings.LastIndexByte(id, '/')
	if i < 0 {
		return "/ui/gpus"
	}
	return "/ui/gpus/" + url.PathEscape(id[:i]) + "/" + url.PathEscape(id[i+1:])
}

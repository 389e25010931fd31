package web

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// maxAsked bounds the nodes about which a page asks, one by one.
const maxAsked = 256

// silence finds the nodes that do not report, and asks about each of them once. The state
// of a lease is that of the last reports, so a page says whose reports are missing.
type silence struct {
	v     *view
	known map[string]bool // by a node's kind and ID, such as "host h1"
}

func newSilence(v *view) *silence { return &silence{v, map[string]bool{}} }

// host reports whether a host does not report. An unknown one does not count.
func (s *silence) host(id string) bool {
	if id == "" || s.v.Operator() && s.v.Pool.GetHosts() == s.v.Pool.GetHostsConnected() {
		return false
	}
	return s.lost("host "+id, func() (*dxpuv1.NodeInfo, error) {
		res, err := ask(s.v.ctx(), s.v.api.GetHost, &dxpuv1.GetHostRequest{HostId: id})
		return res.GetHost().GetNode(), err
	})
}

// box is host for a box. Boxes are hidden from tenants: each refusal would be an entry of
// the audit log.
func (s *silence) box(id string) bool {
	if !s.v.Operator() || s.v.Pool.GetBoxes() == s.v.Pool.GetBoxesConnected() {
		return false
	}
	return s.lost("box "+id, func() (*dxpuv1.NodeInfo, error) {
		res, err := ask(s.v.ctx(), s.v.api.GetBox, &dxpuv1.GetBoxRequest{BoxId: id})
		return res.GetBox().GetNode(), err
	})
}

func (s *silence) lost(name string, node func() (*dxpuv1.NodeInfo, error)) bool {
	lost, ok := s.known[name]
	if ok || len(s.known) >= maxAsked {
		return lost
	}
	info, err := node()
	lost = err == nil && !info.GetConnected()
	s.known[name] = lost
	return lost
}

// nodes returns the nodes of a host and of GPUs that do not report, such as "host h1".
func (s *silence) nodes(host string, gpus []string) (out []string) {
	if s.host(host) {
		out = append(out, "host "+host)
	}
	for _, g := range gpus {
		box, _, _ := strings.Cut(g, "/")
		if name := "box " + box; !slices.Contains(out, name) && s.box(box) {
			out = append(out, name)
		}
	}
	return out
}

// ofLease returns the nodes of a lease's GPUs that do not report.
func (s *silence) ofLease(l *dxpuv1.Lease) []string {
	if l.HostId == "" {
		return nil // it has no GPUs
	}
	return s.nodes(l.HostId, gpusOf(l))
}

// hitLease is a lease whose box or host does not report.
type hitLease struct {
	id, tenant, host string
	gpus             []string
}

// findHit collects the leases on the drawn boxes whose box or host does not report.
func (d *poolData) findHit(v *view, listed []*dxpuv1.Lease) {
	leases := map[string]*hitLease{}
	var order []string
	for _, r := range d.Racks {
		for _, b := range r.Boxes {
			for _, s := range b.Slots {
				id := s.GPU.GetLeaseId()
				if id == "" || slices.ContainsFunc(listed, func(l *dxpuv1.Lease) bool { return l.Id == id }) {
					continue
				}
				if leases[id] == nil {
					leases[id] = &hitLease{id: id, tenant: s.GPU.GetTenant(), host: s.GPU.GetHostId()}
					order = append(order, id)
				}
				leases[id].gpus = append(leases[id].gpus, s.GPU.GetId())
			}
		}
	}
	missing, hit := newSilence(v), 0
	slices.SortFunc(order, compareNatural)
	for _, id := range order {
		l := leases[id]
		nodes := missing.nodes(l.host, l.gpus)
		if len(nodes) == 0 {
			continue
		}
		if hit++; hit <= shownProblems {
			d.add(problem{unreachable, "Lease " + id + " of " + l.tenant, "/ui/leases/" + url.PathEscape(id), noReport(nodes)})
		}
	}
	if more := hit - shownProblems; more > 0 {
		d.add(problem{unreachable, plural(more, "more lease"), "/ui/leases", "with a box or a host that does not report"})
	}
}

// noReport says that nodes do not report.
func noReport(nodes []string) string {
	if len(nodes) == 1 {
		return nodes[0] + " does not report"
	}
	last := len(nodes) - 1
	return fmt.Sprintf("%s and %s do not report", strings.Join(nodes[:last], ", "), nodes[last])
}

package web

import (
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// hostsData is the content of the page of hosts.
type hostsData struct {
	Hosts  []hostRow
	Next   string
	Filter hostFilter
}

type hostFilter struct{ Rack, Name, Show string }

// hostRow is a host and the totals of its links.
type hostRow struct {
	*dxpuv1.Host
	Used          int
	RTTMin        uint64 // nanoseconds; 0: no link
	RTTMax        uint64
	Sent          uint64 // bytes per second
	Received      uint64
	Retransmitted uint64
	BadPaths      int
}

func newHostRow(h *dxpuv1.Host) hostRow {
	row := hostRow{Host: h}
	for _, s := range h.Slots {
		if s.BindingId == "" {
			continue
		}
		row.Used++
		c := s.GetCounters()
		if n := c.GetRttNs(); n > 0 {
			row.RTTMax = max(row.RTTMax, n)
			if row.RTTMin == 0 || n < row.RTTMin {
				row.RTTMin = n
			}
		}
		row.Sent += c.GetSendRate()
		row.Received += c.GetReceiveRate()
		row.Retransmitted += c.GetDatagramsRetransmitted()
		for _, p := range s.Paths {
			if p.Health != dxpuv1.Health_HEALTH_OK && p.Health != dxpuv1.Health_HEALTH_UNSPECIFIED {
				row.BadPaths++
			}
		}
	}
	return row
}

func (f hostFilter) keeps(h *dxpuv1.Host) bool {
	n := h.GetNode()
	if f.Rack != "" && n.GetRack() != f.Rack || f.Name != "" && !strings.Contains(n.GetId(), f.Name) {
		return false
	}
	switch f.Show {
	case "lost":
		return !n.GetConnected()
	case "cordoned":
		return n.GetCordoned() || n.GetDraining()
	case "used":
		return newHostRow(h).Used > 0
	case "free":
		return newHostRow(h).Used < len(h.Slots)
	}
	return true
}

func (s *Server) hostsPage(v *view) error {
	v.Name, v.Title, v.Nav, v.Poll = "hosts", "Hosts", "hosts", 2
	d := &hostsData{Filter: hostFilter{v.Query.Get("rack"), v.Query.Get("name"), v.Query.Get("show")}}
	v.Data = d
	hosts, next, err := collect(v.Query.Get("after"), rowsPerPage, func(token string) (fetched[*dxpuv1.Host], error) {
		res, err := ask(v.ctx(), v.api.ListHosts, &dxpuv1.ListHostsRequest{PageSize: rowsPerPage, PageToken: token})
		return fetched[*dxpuv1.Host]{res.GetHosts(), res.GetNextPageToken()}, err
	}, d.Filter.keeps)
	d.Next = next
	for _, h := range hosts {
		d.Hosts = append(d.Hosts, newHostRow(h))
	}
	return err
}

// closed reports whether a node takes no leases because of maintenance.
func closed(n *dxpuv1.NodeInfo) bool {
	return n.GetMaintenanceState() > dxpuv1.MaintenanceState_MAINTENANCE_STATE_PLANNED
}

// hostData is the content of the page of a host.
type hostData struct {
	hostRow
	Events []*dxpuv1.Event
}

func (s *Server) hostPage(v *view) error {
	id := v.r.PathValue("host")
	v.Name, v.Title, v.Nav, v.Poll = "host", "Host "+id, "hosts", 1
	res, err := ask(v.ctx(), v.api.GetHost, &dxpuv1.GetHostRequest{HostId: id})
	if err != nil {
		return err
	}
	d := &hostData{hostRow: newHostRow(res.GetHost())}
	v.Data = d
	d.Events, err = newestEvents(v, &dxpuv1.EventFilter{HostId: id}, shownEvents)
	return allowed(err)
}

// boxData is the content of the page of a box.
type boxData struct {
	boxView
	ProxyGPUs uint32
	Events    []*dxpuv1.Event
}

func (s *Server) boxPage(v *view) error {
	id := v.r.PathValue("box")
	v.Name, v.Title, v.Nav, v.Poll = "box", "Box "+id, "pool", 2
	res, err := ask(v.ctx(), v.api.GetBox, &dxpuv1.GetBoxRequest{BoxId: id})
	if err != nil {
		return err
	}
	d := &boxData{boxView: newBoxView(res.GetBox()), ProxyGPUs: res.GetBox().GetProxyGpus()}
	v.Data = d
	d.Events, err = newestEvents(v, &dxpuv1.EventFilter{BoxId: id}, shownEvents)
	return allowed(err)
}

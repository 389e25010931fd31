package web

import (
	"bytes"
	"net/url"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// eventsData is the content of the page of events.
type eventsData struct {
	Events []*dxpuv1.Event
	Next   string
	Filter eventFilter
	Types  []string
}

// eventFilter is the filter of the page of events and of a stream, from the query.
type eventFilter struct{ Type, Lease, GPU, Box, Host string }

func newEventFilter(q url.Values) eventFilter {
	return eventFilter{q.Get("type"), q.Get("lease"), q.Get("gpu"), q.Get("box"), q.Get("host")}
}

// api returns the filter for the API.
func (f eventFilter) api() *dxpuv1.EventFilter {
	out := &dxpuv1.EventFilter{LeaseId: f.Lease, GpuId: f.GPU, BoxId: f.Box, HostId: f.Host}
	for t := range dxpuv1.EventType_name {
		if e := dxpuv1.EventType(t); t != 0 && f.Type != "" && strings.HasPrefix(word(e), f.Type) {
			out.Types = append(out.Types, e)
		}
	}
	return out
}

// keeps reports whether an event passes the filter. It decides as the API does.
func (f eventFilter) keeps(e *dxpuv1.Event) bool {
	return (f.Lease == "" || f.Lease == e.LeaseId) && (f.GPU == "" || f.GPU == e.GpuId) && (f.Box == "" || f.Box == e.BoxId) &&
		(f.Host == "" || f.Host == e.HostId) && (f.Type == "" || strings.HasPrefix(word(e.Type), f.Type))
}

// eventGroups are the choices of the page: first words of event types.
var eventGroups = []string{"lease", "binding", "GPU", "node", "cordoned", "drain", "path", "replacement", "overdue", "tenant", "token", "leader"}

func (s *Server) eventsPage(v *view) error {
	v.Name, v.Title, v.Nav, v.Poll = "events", "Events", "events", 0
	d := &eventsData{Filter: newEventFilter(v.Query), Types: eventGroups}
	v.Data = d
	res, err := ask(v.ctx(), v.api.ListEvents, &dxpuv1.ListEventsRequest{
		Filter: d.Filter.api(), NewestFirst: true, PageSize: shownEvents, PageToken: v.Query.Get("after"),
	})
	d.Events, d.Next = res.GetEvents(), res.GetNextPageToken()
	if err == nil {
		// The stream starts where the list ends.
		v.Pool.Revision = res.Revision
	}
	return err
}

// eventRow renders an event as a row of the table of events.
func (s *Server) eventRow(e *dxpuv1.Event) (string, error) {
	var b bytes.Buffer
	err := parsed().pages["events"].ExecuteTemplate(&b, "eventrow", map[string]any{"E": e, "Now": s.cfg.Now()})
	return b.String(), err
}

package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// change is what a stream says of one event.
type change struct {
	Revision uint64 `json:"revision"`
	Type     string `json:"type"`
	// Row is the event as a row of the table, for the page of the events.
	Row string `json:"row,omitempty"`
}

// stream is a live page's source: an EventSource that gets an "event" for each
// event that the caller may see and the query's filter passes. Its IDs are
// revisions, so a browser that comes again names the last one that it saw
// and misses nothing; where these events are forgotten it is told to "reset".
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many live pages are open", http.StatusServiceUnavailable)
		return
	}
	req := &dxpuv1.WatchEventsRequest{Filter: newEventFilter(r.URL.Query()).api()}
	for _, from := range []string{r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")} {
		if n, err := strconv.ParseUint(from, 10, 64); err == nil {
			req.AfterRevision = n
			break
		}
	}
	events, err := s.cfg.Client(r).WatchEvents(r.Context(), connect.NewRequest(req))
	if err != nil {
		http.Error(w, message(err), httpStatus(err))
		return
	}
	defer func() { _ = events.Close() }()
	out := &eventWriter{w: w, rc: http.NewResponseController(w), timeout: s.cfg.WriteTimeout}
	rows := r.URL.Query().Has("rows")
	for events.Receive() {
		if !out.begin() || !s.send(out, events.Msg(), rows) {
			return
		}
	}
	err = events.Err()
	switch {
	case connect.CodeOf(err) == connect.CodeOutOfRange:
		_ = out.begin() && out.event(0, "reset", "{}")
	case err != nil && !out.begun:
		http.Error(w, message(err), httpStatus(err))
	}
}

// send passes one message of the watch on.
func (s *Server) send(out *eventWriter, m *dxpuv1.WatchEventsResponse, rows bool) bool {
	e := m.Event
	if e == nil {
		return out.event(m.Revision, "alive", "{}")
	}
	c := change{Revision: m.Revision, Type: word(e.Type)}
	if rows {
		var err error
		if c.Row, err = s.eventRow(e); err != nil {
			return false
		}
	}
	data, err := json.Marshal(c) // without line ends, as a stream's data must be
	return err == nil && out.event(m.Revision, "change", string(data))
}

// eventWriter writes a stream of server-sent events. A browser that does not
// take them in time loses its stream, and holds up nobody else.
type eventWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	begun   bool
}

func (o *eventWriter) begin() bool {
	if o.begun {
		return true
	}
	o.begun = true
	o.w.Header().Set("Content-Type", "text/event-stream")
	o.w.Header().Set("X-Accel-Buffering", "no") // nginx would keep it back
	return o.write("retry: 1000\n\n")
}

// event writes one event; id 0 leaves the browser's as it is.
func (o *eventWriter) event(id uint64, name, data string) bool {
	s := ""
	if id > 0 {
		s = fmt.Sprintf("id: %d\n", id)
	}
	return o.write(s + "event: " + name + "\ndata: " + data + "\n\n")
}

func (o *eventWriter) write(s string) bool {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // not every connection has one
	_, err := o.w.Write([]byte(s))
	return err == nil && o.rc.Flush() == nil
}

package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// rowPace is the minimum time between two writes to the page of events.
	rowPace = 100 * time.Millisecond
	// pagePace is the same for other pages, which update themselves once a second.
	pagePace = time.Second
	// streamAlive is the interval between messages that the stream is alive.
	streamAlive = 10 * time.Second
	// streamCheck is the interval of checks of the viewer's identity before writes.
	streamCheck = time.Second
)

// stream serves the server-sent events of a live page (HTML standard, section 9.2): a
// "change" for each event that the viewer may see and that passes the query's filter.
// Event IDs are revisions. A browser that reconnects sends the last one, and misses
// nothing. It gets a "reset" if the manager no longer has the events since then.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		tooManyPages(w)
		return
	}
	v := &viewer{
		s: s, r: r, out: &eventWriter{w: w, rc: http.NewResponseController(w), timeout: s.cfg.WriteTimeout},
		filter: newEventFilter(r.URL.Query()), rows: r.URL.Query().Has("rows"), from: resumeAt(r),
	}
	err := v.identify()
	if err == nil {
		leave, ok := s.viewers.enter(v.key, s.cfg.MaxStreams/tenantShare)
		if !ok {
			tooManyPages(w)
			return
		}
		defer leave()
		err = v.follow()
	}
	switch {
	case connect.CodeOf(err) == connect.CodeOutOfRange:
		_ = v.out.begin() && v.out.write(sse(0, "reset", "{}"))
	case err != nil && !v.out.begun:
		http.Error(w, message(err), httpStatus(err))
	}
}

func tooManyPages(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "10")
	http.Error(w, "too many live pages", http.StatusServiceUnavailable)
}

// tenantShare is the fraction of the streams that a tenant, or a node, may have open.
const tenantShare = 16

// viewers counts the open streams by access (scopeOf).
type viewers struct {
	mu   sync.Mutex // guards open
	open map[string]int
}

// enter counts a stream, unless its viewer's tenant or node has most of them open. Those who see the whole pool
// have no limit of their own. The caller must call leave when the stream ends.
func (c *viewers) enter(key string, most int) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[key] >= most && key != word(dxpuv1.Role_ROLE_ADMIN) && key != word(dxpuv1.Role_ROLE_OPERATOR) {
		return nil, false
	}
	c.open[key]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.open[key]--; c.open[key] == 0 {
			delete(c.open, key)
		}
	}, true
}

// resumeAt returns the last revision that a browser saw; 0: it wants new events only.
func resumeAt(r *http.Request) uint64 {
	for _, from := range []string{r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")} {
		if n, err := strconv.ParseUint(from, 10, 64); err == nil {
			return n
		}
	}
	return 0
}

// viewer is an open live page.
type viewer struct {
	s       *Server
	r       *http.Request
	out     *eventWriter
	filter  eventFilter
	rows    bool
	from    uint64 // the page has all events up to this revision
	key     string // its access (scopeOf)
	checked time.Time
}

// identify sets the viewer's access. It returns an error if the access has changed.
func (v *viewer) identify() error {
	me, err := v.s.identities.of(v.r, v.key == "", v.s.cfg.Client)
	if err != nil {
		return err
	}
	key := scopeOf(me)
	if key == "" {
		key = fmt.Sprintf("%p", v) // unique: not shared
	}
	if v.key != "" && v.key != key {
		return connect.NewError(connect.CodeUnauthenticated, errors.New("the credential now belongs to another identity"))
	}
	v.key, v.checked = key, time.Now()
	return nil
}

// follow passes on the events of a feed until it ends or the browser disconnects.
func (v *viewer) follow() error {
	f, err := v.s.feeds.join(v.r, v.key, v.from, func(r *http.Request) watcher { return v.s.cfg.Client(r) })
	if err != nil {
		return err
	}
	defer v.s.feeds.leave(f)
	if _, at, _, _, _ := f.after(v.from); v.from == 0 {
		v.from = at
	}
	alive := time.NewTicker(streamAlive)
	defer alive.Stop()
	for {
		events, at, more, ok, over := f.after(v.from)
		switch {
		case !ok:
			return connect.NewError(connect.CodeOutOfRange, fmt.Errorf("the events after revision %d are no longer available", v.from))
		case !v.pass(f, events, at):
			return nil
		case over:
			return nil
		}
		select {
		case <-v.r.Context().Done():
			return nil
		case <-more:
			if len(events) > 0 && !wait(v.r.Context(), v.pace()) {
				return nil
			}
		case <-alive.C:
			if v.identify() != nil || !v.out.write(sse(v.from, "alive", "{}")) {
				return nil
			}
		}
	}
}

func (v *viewer) pace() time.Duration {
	if v.rows {
		return rowPace
	}
	return pagePace
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// wanted returns the events to send. The page of events gets all that pass its filter,
// other pages the newest one, which makes them update themselves.
func (v *viewer) wanted(all []*feedEvent) []*feedEvent {
	if v.rows {
		return slices.DeleteFunc(slices.Clone(all), func(e *feedEvent) bool { return !v.filter.keeps(e.event) })
	}
	for i, e := range slices.Backward(all) {
		if v.filter.keeps(e.event) {
			return all[i : i+1]
		}
	}
	return nil
}

// pass writes events in one piece. It reports whether the stream goes on.
func (v *viewer) pass(f *feed, events []*feedEvent, at uint64) bool {
	var b strings.Builder
	for _, e := range v.wanted(events) {
		data, err := e.encode(v.rows)
		if err != nil {
			return false
		}
		b.WriteString(sse(e.event.Revision, "change", data))
	}
	v.from = max(v.from, at)
	if !v.out.begin() {
		return false
	}
	if b.Len() == 0 {
		return true
	}
	if time.Since(v.checked) > streamCheck && v.identify() != nil {
		return false
	}
	return v.out.write(b.String())
}

// sse returns a server-sent event. With id 0 the browser keeps its last ID.
func sse(id uint64, name, data string) string {
	s := ""
	if id > 0 {
		s = "id: " + strconv.FormatUint(id, 10) + "\n"
	}
	return s + "event: " + name + "\ndata: " + data + "\n\n"
}

// eventWriter writes server-sent events. A write longer than timeout ends the stream.
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
	o.w.Header().Set("X-Accel-Buffering", "no") // nginx would buffer the stream
	return o.write("retry: 1000\n\n")
}

// write writes and flushes. Afterwards there is no deadline: it would end a stream of HTTP/2 on
// which nothing happens.
func (o *eventWriter) write(s string) bool {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // not all connections have deadlines
	defer func() { _ = o.rc.SetWriteDeadline(time.Time{}) }()
	_, err := o.w.Write([]byte(s))
	return err == nil && o.rc.Flush() == nil
}

package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
)

const (
	// streamPace is the least time between two writes to the page of the events:
	// what happens meanwhile is written together.
	streamPace = 100 * time.Millisecond
	// lookPace is that for other pages, which do not look again sooner.
	lookPace = time.Second
	// streamAlive is how often a page hears that its stream lives.
	streamAlive = 10 * time.Second
	// streamCheck is how often a stream that writes asks again whether its caller
	// is still who it was.
	streamCheck = time.Second
)

// stream is a live page's source: an EventSource that gets a "change" for each
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
	v := &viewer{
		s: s, r: r, out: &eventWriter{w: w, rc: http.NewResponseController(w), timeout: s.cfg.WriteTimeout},
		filter: newEventFilter(r.URL.Query()), rows: r.URL.Query().Has("rows"), from: resumeAt(r),
	}
	err := v.identify()
	if err == nil {
		err = v.follow()
	}
	switch {
	case connect.CodeOf(err) == connect.CodeOutOfRange:
		_ = v.out.begin() && v.out.write(sse(0, "reset", "{}"))
	case err != nil && !v.out.begun:
		http.Error(w, message(err), httpStatus(err))
	}
}

// resumeAt is the last revision that a browser saw; 0: it wants what comes.
func resumeAt(r *http.Request) uint64 {
	for _, from := range []string{r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")} {
		if n, err := strconv.ParseUint(from, 10, 64); err == nil {
			return n
		}
	}
	return 0
}

// viewer is one live page that is open.
type viewer struct {
	s       *Server
	r       *http.Request
	out     *eventWriter
	filter  eventFilter
	rows    bool
	from    uint64 // the page has seen everything up to this revision
	key     string // what it may see
	checked time.Time
}

// identify finds out what the caller sees, and that it is what it was.
func (v *viewer) identify() error {
	me, err := v.s.identities.of(v.r, v.key == "", v.s.cfg.Client)
	if err != nil {
		return err
	}
	key := sees(me)
	if key == "" {
		key = fmt.Sprintf("%p", v) // shares with nobody
	}
	if v.key != "" && v.key != key {
		return connect.NewError(connect.CodeUnauthenticated, errors.New("the credential is another's now"))
	}
	v.key, v.checked = key, time.Now()
	return nil
}

// follow passes a feed on until it ends or the browser goes.
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
		messages, at, more, ok, over := f.after(v.from)
		switch {
		case !ok:
			return connect.NewError(connect.CodeOutOfRange, fmt.Errorf("events after revision %d are forgotten", v.from))
		case !v.pass(f, messages, at):
			return nil
		case over:
			return nil
		}
		select {
		case <-v.r.Context().Done():
			return nil
		case <-more:
			if len(messages) > 0 && !wait(v.r.Context(), v.pace()) {
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
		return streamPace
	}
	return lookPace
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// wanted are the happenings that the page hears of. The page of the events gets
// each; for others the newest is enough, since it makes them look again.
func (v *viewer) wanted(all []*happening) []*happening {
	if v.rows {
		return slices.DeleteFunc(slices.Clone(all), func(h *happening) bool { return !v.filter.keeps(h.event) })
	}
	for i, h := range slices.Backward(all) {
		if v.filter.keeps(h.event) {
			return all[i : i+1]
		}
	}
	return nil
}

// pass writes messages in one piece.
func (v *viewer) pass(f *feed, messages []*happening, at uint64) bool {
	var b strings.Builder
	for _, m := range v.wanted(messages) {
		data, err := f.encode(m, v.rows)
		if err != nil {
			return false
		}
		b.WriteString(sse(m.event.Revision, "change", data))
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

// sse is one server-sent event; id 0 leaves the browser's as it is.
func sse(id uint64, name, data string) string {
	s := ""
	if id > 0 {
		s = "id: " + strconv.FormatUint(id, 10) + "\n"
	}
	return s + "event: " + name + "\ndata: " + data + "\n\n"
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

func (o *eventWriter) write(s string) bool {
	_ = o.rc.SetWriteDeadline(time.Now().Add(o.timeout)) // not every connection has one
	_, err := o.w.Write([]byte(s))
	return err == nil && o.rc.Flush() == nil
}

package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"sync"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// feedKeeps is the minimum number of events that a feed keeps. A viewer that falls
// further behind loses its stream, and is told to reload when it reconnects. A feed
// also starts this many revisions before its first viewer's, for viewers slightly
// behind it.
const feedKeeps = 1000

// feed is one watch of the manager's events for all live pages of viewers with the
// same access (scopeOf). A viewer has a position in the feed and no queue of its own,
// so slow viewers cost nothing.
type feed struct {
	key   string
	event func(*dxpuv1.Event) (string, error) // renders a row
	stop  context.CancelFunc
	ready chan struct{} // closed when the watch is open or has failed
	done  chan struct{} // closed when run has ended

	mu      sync.Mutex // guards the fields below
	viewers int
	events  []*feedEvent // by revision; at most 2*feedKeeps
	start   uint64       // events has all events after this revision
	at      uint64       // revision that the watch has reached
	over    bool
	more    chan struct{} // closed and replaced on new events and at the end
}

// feedEvent is an event of a feed. Its row is rendered once, when first needed.
type feedEvent struct {
	event *dxpuv1.Event
	row   func() (string, error)
}

// after returns the events after a revision, the revision that they reach, and a
// channel that is closed when there are more. ok is false if some of the events are no
// longer available; over is true at the end of the feed.
func (f *feed) after(revision uint64) (events []*feedEvent, at uint64, more <-chan struct{}, ok, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := sort.Search(len(f.events), func(i int) bool { return f.events[i].event.Revision > revision })
	// add appends to the slice or replaces it, so the returned part does not change.
	return f.events[i:len(f.events):len(f.events)], f.at, f.more, revision >= f.start, f.over
}

// add adds a message of the watch.
func (f *feed) add(m *dxpuv1.WatchEventsResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = max(f.at, m.Revision)
	if m.Event == nil {
		return
	}
	if len(f.events) >= 2*feedKeeps {
		drop := len(f.events) - feedKeeps
		f.start = f.events[drop-1].event.Revision
		f.events = slices.Clone(f.events[drop:])
	}
	f.events = append(f.events, &feedEvent{m.Event, sync.OnceValues(func() (string, error) { return f.event(m.Event) })})
	f.wakeLocked()
}

func (f *feed) wakeLocked() {
	close(f.more)
	f.more = make(chan struct{})
}

// run reads the watch until it ends.
func (f *feed) run(watch *connect.ServerStreamForClient[dxpuv1.WatchEventsResponse]) {
	defer close(f.done)
	for watch.Receive() {
		f.add(watch.Msg())
	}
	_ = watch.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	f.wakeLocked()
}

// change is the data of a server-sent event.
type change struct {
	Revision uint64 `json:"revision"`
	Type     string `json:"type"`
	Row      string `json:"row,omitempty"` // HTML, for the page of events
}

// encode returns the data of a server-sent event, with the row if rows is set.
func (e *feedEvent) encode(rows bool) (string, error) {
	c := change{Revision: e.event.Revision, Type: word(e.event.Type)}
	if rows {
		var err error
		if c.Row, err = e.row(); err != nil {
			return "", err
		}
	}
	data, err := json.Marshal(c) // one line, as the format requires
	return string(data), err
}

// feeds is the open feeds by access.
type feeds struct {
	event func(*dxpuv1.Event) (string, error)
	mu    sync.Mutex // guards open; taken before a feed's mu
	open  map[string]*feed
}

// join returns a feed of viewers with the access key, which has the events after a
// revision. If none is open, the caller opens one with its own credential. When that
// credential becomes invalid the feed ends, and its viewers open another. The error is
// OUT_OF_RANGE if the events are no longer available. The caller must call leave.
func (fs *feeds) join(r *http.Request, key string, from uint64, client clientFunc) (*feed, error) {
	for {
		f, mine := fs.find(key, from)
		if mine {
			return f, fs.begin(f, r, from, client)
		}
		select {
		case <-f.ready:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		if fs.addViewer(f, from) {
			return f, nil
		}
	}
}

// find returns an open feed, or a new one that the caller must begin.
func (fs *feeds) find(key string, from uint64) (f *feed, mine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.open[key]; f != nil && f.serves(from) {
		return f, false
	}
	f = &feed{key: key, event: fs.event, viewers: 1, more: make(chan struct{}), ready: make(chan struct{}), done: make(chan struct{})}
	fs.open[key] = f // a feed that starts too late keeps its viewers
	return f, true
}

// serves reports whether a feed has, or may get, the events after a revision.
func (f *feed) serves(from uint64) bool {
	select {
	case <-f.ready:
	default:
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.over && f.viewers > 0 && (from == 0 || from >= f.start)
}

// addViewer counts the caller as a viewer of a feed, if the feed serves it.
func (fs *feeds) addViewer(f *feed, from uint64) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if !f.serves(from) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.viewers++
	return true
}

// begin opens a feed's watch and admits other viewers.
func (fs *feeds) begin(f *feed, r *http.Request, from uint64, client clientFunc) error {
	ctx, stop := context.WithCancel(context.WithoutCancel(r.Context()))
	f.stop = stop
	watch, err := f.dial(r.Clone(ctx), from, client)
	if err != nil {
		stop()
		fs.mu.Lock()
		defer fs.mu.Unlock()
		f.over = true
		if fs.open[f.key] == f {
			delete(fs.open, f.key)
		}
		close(f.ready)
		return err
	}
	go f.run(watch)
	close(f.ready)
	return nil
}

type clientFunc = func(*http.Request) watcher

// watcher is the part of the API that feeds need.
type watcher interface {
	WatchEvents(context.Context, *connect.Request[dxpuv1.WatchEventsRequest]) (*connect.ServerStreamForClient[dxpuv1.WatchEventsResponse], error)
}

// dial opens the watch, feedKeeps revisions before from, or at from if earlier events
// are no longer available. The first message says that the watch is open.
func (f *feed) dial(r *http.Request, from uint64, client clientFunc) (*connect.ServerStreamForClient[dxpuv1.WatchEventsResponse], error) {
	starts := []uint64{from}
	if from > feedKeeps {
		starts = []uint64{from - feedKeeps, from}
	}
	err := errors.New("no watch")
	for _, start := range starts {
		watch, e := client(r).WatchEvents(r.Context(), connect.NewRequest(&dxpuv1.WatchEventsRequest{AfterRevision: start}))
		if e == nil && watch.Receive() {
			f.start, f.at = watch.Msg().Revision, watch.Msg().Revision
			return watch, nil
		}
		if e == nil {
			e = watch.Err()
			_ = watch.Close()
		}
		if e == nil {
			e = connect.NewError(connect.CodeUnavailable, errors.New("the manager closed the watch"))
		}
		if err = e; connect.CodeOf(err) != connect.CodeOutOfRange {
			break
		}
	}
	return nil, err
}

// leave removes a viewer from a feed. The last one ends the feed and waits for that.
func (fs *feeds) leave(f *feed) {
	if fs.removeViewer(f) {
		f.stop()
		<-f.done
	}
}

// removeViewer reports whether the viewer was the last one.
func (fs *feeds) removeViewer(f *feed) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.viewers--; f.viewers > 0 {
		return false
	}
	if fs.open[f.key] == f {
		delete(fs.open, f.key)
	}
	return true
}

// scopeOf names the access of an identity: callers with the same scope see the same. It
// is empty for an unknown identity.
func scopeOf(me *dxpuv1.WhoAmIResponse) string {
	switch me.GetRole() {
	case dxpuv1.Role_ROLE_ADMIN, dxpuv1.Role_ROLE_OPERATOR:
		return word(me.Role)
	case dxpuv1.Role_ROLE_TENANT:
		return fmt.Sprintf("%s %q", word(me.Role), me.Tenant)
	case dxpuv1.Role_ROLE_HOST, dxpuv1.Role_ROLE_BOX:
		return fmt.Sprintf("%s %q", word(me.Role), me.Actor)
	case dxpuv1.Role_ROLE_UNSPECIFIED:
	}
	return ""
}

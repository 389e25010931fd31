package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// feedKeeps is how many events a feed remembers: who falls further behind is
// dropped, and told to look again when he comes back. It is also how far back a
// feed begins before the first who asks, for those that come with him.
const feedKeeps = 1000

// feed is one watch of the manager's events for all live pages of callers that
// see the same: a role, and a tenant or node where the role is one's. Viewers hold
// a place in it and nothing else, so a slow one costs what a fast one costs.
type feed struct {
	key   string
	event func(*dxpuv1.Event) (string, error) // renders a row
	stop  context.CancelFunc
	ready chan struct{} // closed when the watch stands, or cannot be had
	done  chan struct{} // closed when run has ended

	mu       sync.Mutex // guards what follows
	viewers  int
	messages []*happening // in the order of their revisions, feedKeeps at most
	start    uint64       // every event after this revision is in messages
	at       uint64       // up to which revision the watch has come
	over     bool
	more     chan struct{} // closed and replaced when there is more, or the end
}

// happening is an event as live pages get it; its row is rendered once, when the
// first page wants it.
type happening struct {
	event *dxpuv1.Event
	once  sync.Once
	row   string
	err   error
}

// after returns what has happened since a revision, up to which revision that
// is, and a channel that is closed when there is more. ok is false when
// something since then is forgotten, over when nothing will follow.
func (f *feed) after(revision uint64) (messages []*happening, at uint64, more <-chan struct{}, ok, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.messages, revision+1, func(m *happening, r uint64) int {
		switch {
		case m.event.Revision < r:
			return -1
		case m.event.Revision > r:
			return 1
		}
		return 0
	})
	// Entries are replaced, never written over, so the slice stays what it is.
	return f.messages[i:len(f.messages):len(f.messages)], f.at, f.more, revision >= f.start, f.over
}

// add takes in one message of the watch.
func (f *feed) add(m *dxpuv1.WatchEventsResponse) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = max(f.at, m.Revision)
	if m.Event == nil {
		return
	}
	if len(f.messages) >= 2*feedKeeps {
		drop := len(f.messages) - feedKeeps
		f.start = f.messages[drop-1].event.Revision
		f.messages = slices.Clone(f.messages[drop:])
	}
	f.messages = append(f.messages, &happening{event: m.Event})
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

// change is what a stream says of one event.
type change struct {
	Revision uint64 `json:"revision"`
	Type     string `json:"type"`
	// Row is the event as a row of the table, for the page of the events.
	Row string `json:"row,omitempty"`
}

// encode is the event as a stream's data, with its row where rows are wanted.
func (f *feed) encode(m *happening, rows bool) (string, error) {
	c := change{Revision: m.event.Revision, Type: word(m.event.Type)}
	if rows {
		m.once.Do(func() { m.row, m.err = f.event(m.event) })
		if m.err != nil {
			return "", m.err
		}
		c.Row = m.row
	}
	data, err := json.Marshal(c) // without line ends, as a stream's data must be
	return string(data), err
}

// feeds are the feeds that somebody looks at.
type feeds struct {
	event func(*dxpuv1.Event) (string, error)
	mu    sync.Mutex // guards open; may be held when a feed's is taken
	open  map[string]*feed
}

// join returns the feed of those who see what key says, from a revision on. The
// first who comes opens it with his own credential, and so does who needs an
// earlier one; when the credential ends, so does the feed, and its viewers open
// another. The error says OUT_OF_RANGE when events since then are forgotten. Who
// joined must leave.
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
		if fs.enter(f, from) {
			return f, nil
		}
	}
}

// find returns the feed that is open, or one that the caller must begin.
func (fs *feeds) find(key string, from uint64) (f *feed, mine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.open[key]; f != nil && f.serves(from) {
		return f, false
	}
	f = &feed{key: key, event: fs.event, viewers: 1, more: make(chan struct{}), ready: make(chan struct{}), done: make(chan struct{})}
	fs.open[key] = f // one that was there and begins too late goes on for those that it has
	return f, true
}

// serves reports whether a feed has, or while it is being opened may have, what
// has happened since a revision.
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

// enter makes the caller one of a feed's viewers, if it serves him.
func (fs *feeds) enter(f *feed, from uint64) bool {
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

// begin opens a feed's watch and lets others in.
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

// watcher is the part of the API that a feed needs.
type watcher interface {
	WatchEvents(context.Context, *connect.Request[dxpuv1.WatchEventsRequest]) (*connect.ServerStreamForClient[dxpuv1.WatchEventsResponse], error)
}

// dial opens the watch: some events before from, or where these are forgotten,
// just there. The watch's first message says that it stands.
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
			e = connect.NewError(connect.CodeUnavailable, errors.New("the manager has ended the watch"))
		}
		if err = e; connect.CodeOf(err) != connect.CodeOutOfRange {
			break
		}
	}
	return nil, err
}

// leave ends the feed with its last viewer, and returns when it has ended.
func (fs *feeds) leave(f *feed) {
	if fs.wasLast(f) {
		f.stop()
		<-f.done
	}
}

func (fs *feeds) wasLast(f *feed) bool {
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

// sees names what a caller sees; those with the same name see the same. It is
// empty for a caller of whom nothing is known.
func sees(me *dxpuv1.WhoAmIResponse) string {
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

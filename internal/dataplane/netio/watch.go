package netio

import (
	"context"
	"io"
	"slices"
	"sync/atomic"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/tlp"
)

// captures holds the running captures in an immutable list. The pointer is nil
// while none runs, which is all that the data plane checks then.
type captures struct {
	list atomic.Pointer[[]*capture.Session]
}

// Capture writes the TLPs that pass between the links of this fabric and their
// handlers to w, as o says, until ctx ends or w fails. It does not delay them: it
// drops and counts the TLPs for which w is too slow. It calls flush when the
// bytes written so far should leave a buffer.
func (f *Fabric) Capture(ctx context.Context, o capture.Options, w io.Writer, flush func()) error {
	s := capture.NewSession(o)
	f.changeCaptures(func(list []*capture.Session) []*capture.Session { return append(list, s) })
	defer f.changeCaptures(func(list []*capture.Session) []*capture.Session {
		return slices.DeleteFunc(list, func(other *capture.Session) bool { return other == s })
	})
	return s.Stream(ctx, w, flush)
}

// changeCaptures replaces the list by the result of change on a copy.
func (f *Fabric) changeCaptures(change func([]*capture.Session) []*capture.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*capture.Session
	if old := f.captures.list.Load(); old != nil {
		list = append(list, *old...)
	}
	if list = change(list); len(list) == 0 {
		f.captures.list.Store(nil)
		return
	}
	f.captures.list.Store(&list)
}

// watcher shows the TLPs of the groups to the captures.
type watcher struct{ *Fabric }

func (w watcher) Watching() bool { return w.captures.list.Load() != nil }

func (w watcher) TLP(b *engine.Binding, received bool, p *tlp.Packet) {
	list := w.captures.list.Load()
	if list == nil {
		return
	}
	at := uint64(w.start.UnixNano() + int64(w.Now()))
	h := capture.Header{Received: received, Binding: b.ID()}
	h.Epoch, h.Source, h.Destination = b.Route()
	if received {
		h.Source, h.Destination = h.Destination, h.Source
	}
	for _, s := range *list {
		s.TLP(at, &h, p)
	}
}

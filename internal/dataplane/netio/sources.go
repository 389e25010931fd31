package netio

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
)

// sources are the sockets that the readers of the network look at, too, while an
// answer is due there: those of device servers. So the goroutine that has received
// a request also receives its answer and sends it on, and no other wakes up. While
// it polls it looks at the network as often, so no tenant waits for another's
// server.
type sources struct {
	mu  sync.Mutex // guards changes
	all atomic.Pointer[[]engine.Source]
}

// Poll implements engine.Driver.
func (f *Fabric) Poll(s engine.Source) {
	f.sources.mu.Lock()
	defer f.sources.mu.Unlock()
	all := append(slices.Clone(f.sources.list()), s)
	f.sources.all.Store(&all)
}

func (s *sources) list() []engine.Source {
	if all := s.all.Load(); all != nil {
		return *all
	}
	return nil
}

// due reports whether a source is to be polled.
func (s *sources) due() bool {
	for _, source := range s.list() {
		if source.Due() {
			return true
		}
	}
	return false
}

// poll looks at the sources whose answers are due, and reports whether one had a
// message.
func (s *sources) poll() (any bool) {
	for _, source := range s.list() {
		if source.Due() && source.Poll() {
			any = true
		}
	}
	return any
}

// attend ends the polling before the reader sleeps.
func (s *sources) attend() {
	for _, source := range s.list() {
		source.Attend()
	}
}

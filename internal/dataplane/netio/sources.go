package netio

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
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

// sleeper sleeps until one of several sockets is readable. It belongs to one goroutine
// at a time.
type sleeper struct {
	sockets []unix.PollFd // the first is that of the network
	held    []engine.Source
	release []func()
}

// wakeUp is the end of a sleep.
type wakeUp struct {
	slept   bool // false: no answer of a source is due, and sleep has returned at once
	served  bool // a source had a message, which was taken
	network bool // the socket of the network is readable
}

// sleep waits until a datagram has arrived or a source has a message. If no answer of a source
// is due, the caller sleeps in its own socket, which takes one system call less.
func (s *sleeper) sleep(conn *udp.Conn, sources []engine.Source) (w wakeUp) {
	s.sockets = append(s.sockets[:0], unix.PollFd{})
	s.held, s.release = s.held[:0], s.release[:0]
	for _, source := range sources {
		if fd, release := source.Hold(); release != nil {
			s.sockets = append(s.sockets, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			s.held, s.release = append(s.held, source), append(s.release, release)
		}
	}
	if len(s.held) == 0 {
		return w
	}
	conn.Sleep(s.sockets)
	w.slept, w.network = true, s.sockets[0].Revents != 0
	for i, source := range s.held {
		if s.sockets[i+1].Revents != 0 && source.Poll() {
			w.served = true
		}
		s.release[i]()
	}
	return w
}

package vfioserver

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// events are the event descriptors by which a server signals its vectors, of which there may be
// 2048. One goroutine waits for all of them. The zero value has none; one goroutine at a time uses it.
type events struct {
	signalled func(id vectorID) // called from a goroutine of the events

	files map[vectorID]*os.File // that the server has
	epoll *os.File              // nil: there was no descriptor yet
	done  chan struct{}         // closed when the goroutine has ended
}

// ownVectors is the number of vectors that each device may have. With more, it may take the
// descriptors of the process only while half of them are free: those of other tenants' devices
// remain.
const ownVectors = 256

// create makes event descriptors for the n vectors from start, and waits for their signals.
func (s *events) create(index uint32, start, n int) (files []*os.File, err error) {
	for v := start; v < start+n; v++ {
		f, err := vfiouser.NewEvent()
		if err == nil {
			files = append(files, f)
			err = s.watch(vectorID{index, v}, f, len(s.files)+len(files))
		}
		if err != nil {
			s.close(files)
			return nil, err
		}
	}
	return files, nil
}

// watch waits for the signals of a vector. n is the number of descriptors with this one.
func (s *events) watch(id vectorID, f *os.File, n int) error {
	if err := s.open(); err != nil {
		return err
	}
	return s.control(f, func(epoll, fd int) error {
		if l := rights.Limit(); n > ownVectors && uint64(fd) >= l.Limit/2 {
			return fmt.Errorf("the device has more than %d interrupt vectors in use, and half of the %d files that the process may open are open: raise LimitNOFILE of its unit, or ulimit -n: %w",
				ownVectors, l.Limit, unix.EMFILE)
		}
		// Edges alone: every signal is one, and the server can fill and empty the counter.
		return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{
			Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(id.vector), Pad: int32(id.index),
		})
	})
}

// control calls f with the descriptors of the events and of a file.
func (s *events) control(file *os.File, f func(epoll, fd int) error) error {
	outer, err := s.epoll.SyscallConn()
	if err != nil {
		return err
	}
	inner, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed, nested error
	err = outer.Control(func(epoll uintptr) {
		nested = inner.Control(func(fd uintptr) { failed = f(int(epoll), int(fd)) })
	})
	return errors.Join(err, nested, failed)
}

// open starts the goroutine.
func (s *events) open() error {
	if s.epoll != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // then os.NewFile gives it to the runtime's poller
	}
	if err != nil {
		return os.NewSyscallError("epoll_create", err)
	}
	s.epoll, s.files, s.done = os.NewFile(uintptr(fd), "events"), map[vectorID]*os.File{}, make(chan struct{})
	go s.listen(s.epoll)
	return nil
}

// listen tells of signals until stop.
func (s *events) listen(epoll *os.File) {
	defer close(s.done)
	raw, err := epoll.SyscallConn()
	if err != nil {
		return
	}
	var got [64]unix.EpollEvent
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), got[:], 0) // EINTR: n is -1
			return n != 0
		})
		if err != nil {
			return
		}
		for i := range max(n, 0) {
			s.signalled(vectorID{uint32(got[i].Pad), int(got[i].Fd)})
		}
	}
}

// keep notes descriptors that the server has taken, in the place of earlier ones.
func (s *events) keep(index uint32, start int, files []*os.File) {
	for i, f := range files {
		id := vectorID{index, start + i}
		if old := s.files[id]; old != nil {
			s.close([]*os.File{old})
		}
		s.files[id] = f
	}
}

// take removes the descriptors of an index. The caller closes them.
func (s *events) take(index uint32) (files []*os.File) {
	for id, f := range s.files {
		if id.index == index {
			files = append(files, f)
			delete(s.files, id)
		}
	}
	return files
}

// close closes descriptors. The server may still have them, so they leave the events first.
func (s *events) close(files []*os.File) {
	for _, f := range files {
		_ = s.control(f, func(epoll, fd int) error { return unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, fd, nil) })
		_ = f.Close()
	}
}

// stop closes all descriptors and waits for the goroutine.
func (s *events) stop() {
	if s.epoll == nil {
		return
	}
	for index := range uint32(vfiouser.NumIRQs) {
		s.close(s.take(index))
	}
	_ = s.epoll.Close()
	<-s.done
}

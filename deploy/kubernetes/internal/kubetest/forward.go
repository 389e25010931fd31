package kubetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// forwarder carries connections from an address in a node's network to an address of this
// machine, so the node reaches the API server and nothing else.
type forwarder struct {
	listener net.Listener
	loops    sync.WaitGroup
	mu       sync.Mutex
	open     map[net.Conn]bool // nil: closed
}

// newForwarder listens at an address in the network namespace of a process, and carries the connections
// to another one.
func newForwarder(pid int, address, to string) (*forwarder, error) {
	l, err := listenIn(fmt.Sprintf("/proc/%d/ns/net", pid), address)
	if err != nil {
		return nil, fmt.Errorf("forward %s: %w", address, err)
	}
	f := &forwarder{listener: l, open: map[net.Conn]bool{}}
	f.loops.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			f.loops.Go(func() { f.carry(in, to) })
		}
	})
	return f, nil
}

// listenIn listens in another network namespace: a socket stays in the one in which it was
// made.
func listenIn(namespace, address string) (l net.Listener, err error) {
	done := make(chan struct{})
	go func() { // ends at once, with its thread, which no one else may use
		defer close(done)
		runtime.LockOSThread()
		var file *os.File
		if file, err = os.Open(namespace); err != nil {
			return
		}
		defer file.Close()
		if err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		l, err = net.Listen("tcp", address)
	}()
	<-done
	return l, err
}

// track reports whether the forwarder is open, and keeps the connection if so.
func (f *forwarder) track(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		return false
	}
	f.open[c] = true
	return true
}

func (f *forwarder) end(c net.Conn) {
	f.mu.Lock()
	delete(f.open, c)
	f.mu.Unlock()
	c.Close()
}

func (f *forwarder) carry(in net.Conn, address string) {
	defer f.end(in)
	out, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer f.end(out)
	if !f.track(in) || !f.track(out) {
		return
	}
	var other sync.WaitGroup
	other.Go(func() {
		_, err := io.Copy(out, in)
		err = errors.Join(err, out.(*net.TCPConn).CloseWrite())
		if err != nil {
			out.Close()
		}
	})
	_, _ = io.Copy(in, out)
	in.Close() // ends the other copy
	other.Wait()
}

// Close ends all connections.
func (f *forwarder) Close() {
	f.listener.Close()
	f.mu.Lock()
	for c := range f.open {
		c.Close()
	}
	f.open = nil
	f.mu.Unlock()
	f.loops.Wait()
}

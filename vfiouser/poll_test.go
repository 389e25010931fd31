package vfiouser

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A read that the caller polls for brings its data, and so do the reads of others
// meanwhile.
func TestTryReadAndPoll(t *testing.T) {
	f := serve(t, func(*Config) {})
	c, _ := f.client(ClientConfig{})
	must(t, c.RegionWrite(bg, 0, 8, []byte{1, 2, 3, 4}))
	for i := range 200 {
		data, ended := make([]byte, 4), make(chan error, 1)
		for !c.TryRead(0, 8, data, func(err error) { ended <- err }) {
		}
		if i%10 == 0 {
			must(t, c.RegionRead(bg, 0, 8, make([]byte, 4)))
		}
		for open := true; open; {
			select {
			case err := <-ended:
				must(t, err)
				open = false
			default:
				c.Poll()
			}
		}
		if [4]byte(data) != [4]byte{1, 2, 3, 4} {
			t.Fatalf("read %v", data)
		}
	}
	ended := make(chan error, 1)
	for !c.TryRead(0, 8, make([]byte, 4), func(err error) { ended <- err }) {
	}
	must(t, <-ended) // read by the client's own goroutine
}

// A program that holds the socket is woken by the answer, and takes it itself: the
// client's own goroutine stays aside.
func TestHold(t *testing.T) {
	f := serve(t, func(*Config) {})
	c, _ := f.client(ClientConfig{})
	over := false // not guarded: this goroutine alone takes the answers
	limit := time.Now().Add(patience)
	for taken := 0; taken < 20; {
		if time.Now().After(limit) {
			t.Fatalf("took %d answers", taken)
		}
		fd, release := c.Hold()
		if release == nil { // a caller that polls brings the goroutine aside
			ended := make(chan error, 1)
			for !c.TryRead(0, 8, make([]byte, 4), func(err error) { ended <- err }) {
			}
			for len(ended) == 0 {
				c.Poll()
			}
			continue
		}
		over = false
		for !c.TryRead(0, 8, make([]byte, 4), func(err error) { must(t, err); over = true }) {
		}
		socket := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(socket, int(patience/time.Millisecond)); n != 1 {
			t.Fatalf("the answer makes nothing readable: %v", err)
		}
		if !c.Poll() || !over {
			t.Fatal("another goroutine took the answer")
		}
		release()
		taken++
	}
	must(t, c.Close())
	if _, release := c.Hold(); release != nil {
		t.Error("a closed client has a socket to hold")
	}
}

// A program that polls takes one of two replies that one read has brought. It must not
// sleep then: the other one makes no socket readable.
func TestHoldLeavesNoReply(t *testing.T) {
	const alone, first, second = 8, 16, 24
	c, err := fakeServer(t, ClientConfig{}, "", nil, func(p *rawPeer) {
		answer := func(r reply) []byte {
			p.id = r.id - 1
			return p.message(r.cmd, 1, append(r.body, 1, 2, 3, 4))
		}
		var both []byte
		for {
			r, err := p.tryRecv()
			switch {
			case err != nil:
				return
			case binary.LittleEndian.Uint64(r.body) == first:
				both = answer(r)
			default:
				p.send(append(both, answer(r)...))
				both = nil
			}
		}
	})
	must(t, err)
	read := func(offset uint64, answers chan error) {
		for !c.TryRead(0, offset, make([]byte, 4), func(err error) { answers <- err }) {
		}
	}
	hold := func() (fd uintptr, release func()) { // a caller that polls brings the goroutine aside
		for limit := time.Now().Add(patience); time.Now().Before(limit); {
			if fd, release = c.Hold(); release != nil {
				return fd, release
			}
			answers := make(chan error, 1)
			for read(alone, answers); len(answers) == 0; {
				c.Poll()
			}
		}
		t.Fatal("the client's own goroutine does not go aside")
		return 0, nil
	}
	for range 20 {
		fd, release := hold()
		answers := make(chan error, 2)
		read(first, answers)
		read(second, answers)
		socket := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(socket, int(patience/time.Millisecond)); n != 1 {
			t.Fatalf("the answers make nothing readable: %v", err)
		}
		if !c.Poll() {
			t.Fatal("another goroutine took the answer")
		}
		release()
		if _, release := c.Hold(); release != nil {
			left := len(answers) < 2
			release()
			if left {
				t.Fatal("the program may sleep although a reply is left")
			}
		}
		for range 2 {
			must(t, <-answers)
		}
	}
}

// A server that does not read does not hold up a caller that must not wait.
func TestTryReadWithoutRoom(t *testing.T) {
	f := serve(t, func(*Config) {})
	c, _ := f.client(ClientConfig{MaxOpen: 4})
	done := func(error) {}
	c.main.wmu.Lock()
	if c.TryRead(0, 0, make([]byte, 4), done) {
		t.Error("sent while another goroutine is sending")
	}
	c.main.wmu.Unlock()
	for range 4 {
		c.sem <- struct{}{}
	}
	if c.TryRead(0, 0, make([]byte, 4), done) {
		t.Error("more requests than MaxOpen")
	}
	for range 4 {
		<-c.sem
	}
	near, far := socketPair(t)
	defer far.Close()
	b, err := newSocket(near, new(Disposer))
	must(t, err)
	defer b.close()
	message, n := make([]byte, 32), 0
	for err = b.trySend(message); err == nil; err = b.trySend(message) {
		n++
	}
	if !errors.Is(err, errWouldBlock) || n == 0 {
		t.Errorf("after %d messages: %v", n, err)
	}
	must(t, c.Close())
	if c.TryRead(0, 0, make([]byte, 4), done) {
		t.Error("a closed client takes a read")
	}
	if len(c.sem) != 0 || len(c.calls) != 0 {
		t.Errorf("%d places and %d calls are left", len(c.sem), len(c.calls))
	}
}

// A read that cannot leave while the client ends is delivered or refused, not both.
func TestTryReadWhileTheClientEnds(t *testing.T) {
	for range 200 {
		peers := make(chan *rawPeer, 1)
		c, err := fakeServer(t, ClientConfig{}, "", nil, func(p *rawPeer) { peers <- p })
		must(t, err)
		<-peers // it does not read
		for err == nil {
			err = c.main.sock.trySend(make([]byte, 32))
		}
		if !errors.Is(err, errWouldBlock) {
			t.Fatal(err)
		}
		began := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			<-began
			_ = c.Close()
		})
		var delivered atomic.Int32
		taken := int32(0)
		for tries := 0; c.Err() == nil; tries++ {
			if c.TryRead(0, 0, make([]byte, 4), func(error) { delivered.Add(1) }) {
				taken++
			}
			if tries == 0 {
				close(began)
			}
		}
		wg.Wait()
		if delivered.Load() != taken {
			t.Fatalf("%d reads are delivered, and %d were taken", delivered.Load(), taken)
		}
	}
}

// heldUp returns a client whose socket is taken by a send that waits for the server,
// and the server's end. release ends the send.
func heldUp(t *testing.T, read func(error)) (c *Client, server *rawPeer, asked reply, release func()) {
	t.Helper()
	peers := make(chan *rawPeer, 1)
	c, err := fakeServer(t, ClientConfig{}, "", nil, func(p *rawPeer) { peers <- p })
	must(t, err)
	if !c.TryRead(0, 0, make([]byte, 4), read) {
		t.Fatal("the read is not sent")
	}
	server = <-peers
	asked = server.recv()
	c.main.wmu.Lock()
	release = sync.OnceFunc(c.main.wmu.Unlock)
	t.Cleanup(release) // before the client closes
	return c, server, asked, release
}

// A request of the server that is refused, and a server that does not read, do not hold
// up the goroutine that reads: it reads for others, too.
func TestRefusalsDoNotWait(t *testing.T) {
	ended := make(chan error, 1)
	c, server, asked, release := heldUp(t, func(err error) { ended <- err })
	request := server.message(11, 0, le(uint64(0), uint64(4)))
	server.send(request)
	server.reply(asked, 0, access(0, 0, 4, 1, 2, 3, 4))
	limit := time.After(patience)
	for open := true; open; {
		select {
		case err := <-ended:
			must(t, err)
			open = false
		case <-limit:
			t.Fatal("the refusal holds up the reader")
		default:
			c.Poll()
		}
	}
	release()
	if r := server.recv(); r.cmd != 11 || r.errno != unix.ENODEV {
		t.Errorf("%+v", r)
	}
}

// A server that asks without end and reads no answers is given up.
func TestRefusalsAreBounded(t *testing.T) {
	c, server, _, _ := heldUp(t, func(error) {})
	go func() {
		for range 3 * maxRefusals {
			if _, err := server.Write(server.message(11, 0, le(uint64(0), uint64(4)))); err != nil {
				return
			}
		}
	}()
	select {
	case <-c.Done():
	case <-time.After(patience):
		t.Fatal("the client takes any number of requests")
	}
	if err := c.Err(); !errors.Is(err, errNotReading) {
		t.Error(err)
	}
}

// A caller that must not wait reads the socket once, however small the parts of a
// message are.
func TestTryReadsOnce(t *testing.T) {
	near, far := socketPair(t)
	peer := &rawPeer{tb: t, UnixConn: far}
	defer far.Close()
	s, err := newSocket(near, new(Disposer))
	must(t, err)
	defer s.close()
	fr := newFramer(s, 1<<10)
	defer fr.close()
	file, _ := memfd(t, 4096)
	m := peer.message(11, 0, le(uint64(0), uint64(4)))
	for len(m) > 0 { // a read ends behind the part that carries descriptors
		peer.send(m[:8], mustFD(t, file))
		m = m[8:]
	}
	for range 3 {
		if _, err := fr.try(false); !errors.Is(err, errWouldBlock) {
			t.Fatalf("a part of a message: %v", err)
		}
	}
	if _, err := fr.try(false); err != nil {
		t.Error(err)
	}
}

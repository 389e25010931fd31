package vfiouser

import (
	"errors"
	"testing"
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
	c.Attend()
	ended := make(chan error, 1)
	for !c.TryRead(0, 8, make([]byte, 4), func(err error) { ended <- err }) {
	}
	must(t, <-ended) // read by the client's own goroutine
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
	b, err := newSocket(near)
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

package vfioserver

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Polling goes on while answers are quick, and is tried ever less often while they
// are not.
func TestPollingFollowsTheServer(t *testing.T) {
	var p polling
	tries := func(reads int) (n int) {
		for range reads {
			if p.next() {
				n++
				p.judge(slow + 1)
			}
		}
		return n
	}
	for range 100 {
		if !p.next() {
			t.Fatal("a quick server is not polled")
		}
		p.judge(slow)
	}
	if n := tries(10_000); n < 10_000/(mostSkip+1) || n > 50 {
		t.Errorf("polled for %d of 10000 answers of a slow server", n)
	}
	for !p.next() {
	}
	p.judge(slow)
	if !p.next() {
		t.Error("a server that is quick again is not polled")
	}
}

// echo answers each access as it is.
type echo struct{ vfiouser.NopHandler }

func (echo) Access(_ *vfiouser.Conn, a *vfiouser.Access) { a.Reply() }

// connectTo serves a device with a page of registers, and connects to it.
func connectTo(t *testing.T, cfg vfiouser.Config) *vfiouser.Client {
	t.Helper()
	cfg.Regions[0] = vfiouser.Region{Size: 4096, Flags: vfiouser.RegionFlagRead}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: pcie.ConfigSize, Flags: vfiouser.RegionFlagRead}
	server, err := vfiouser.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	listener, err := vfiouser.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(ctx, listener) })
	t.Cleanup(served.Wait)
	t.Cleanup(cancel)
	client, err := vfiouser.Dial(t.Context(), path, vfiouser.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

// A read that is not polled for is sent by the goroutine that brings it, too.
func TestUnpolledReadNeedsNoWorker(t *testing.T) {
	client := connectTo(t, vfiouser.Config{Handler: echo{}})
	answered := make(chan struct{}, 1)
	c := &connection{client: client, start: time.Now(), notify: func() { answered <- struct{}{} }}
	c.polling.left = 1
	a := &access{data: make([]byte, 4)}
	if !c.tryRead(a) || a.polled {
		t.Fatalf("the read is left to a worker, or polled for: %v", a.polled)
	}
	<-answered
	if in := c.takeInbox(); len(in) != 1 || in[0].access != a || a.err != nil {
		t.Errorf("%d messages, %v", len(in), a.err)
	}
	if !c.tryRead(a) || !a.polled {
		t.Errorf("the next read is not polled for")
	}
	<-answered
}

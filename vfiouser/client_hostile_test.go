package vfiouser

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeServer accepts one connection, negotiates with the JSON text and leaves
// the rest to play.
func fakeServer(t *testing.T, cfg ClientConfig, json string, fds []int, play func(*rawPeer)) (*Client, error) {
	t.Helper()
	x, y := socketPair(t)
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	t.Cleanup(func() { _ = x.Close() })
	p := &rawPeer{tb: t, UnixConn: x}
	go func() {
		defer close(done)
		r, err := p.tryRecv()
		if err != nil || r.cmd != 1 {
			t.Errorf("VERSION: %+v %v", r, err)
			return
		}
		p.id = r.id - 1
		p.send(p.message(1, 1, []byte("\x00\x00\x02\x00"+json)), fds...)
		if play != nil {
			play(p)
		}
	}()
	c, err := NewClient(bg, y, cfg)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func TestTwinSocket(t *testing.T) {
	x, y := socketPair(t)
	raw, err := y.File()
	must(t, err)
	twin := &rawPeer{tb: t, UnixConn: x}
	got := make(chan []byte, 1)
	cfg := ClientConfig{DMA: DMAFunc(func(_ *Client, r *DMARequest) {
		got <- bytes.Clone(r.Data)
		r.Reply()
	})}
	c, err := fakeServer(t, cfg, `{"capabilities":{"max_msg_fds":8,"twin_socket":{"supported":true,"fd_index":0}}}`+"\x00", []int{mustFD(t, raw)},
		func(p *rawPeer) { // a request is open while the device does DMA, each on its socket
			req, err := p.tryRecv()
			if err != nil || req.cmd != 9 {
				t.Errorf("%+v %v", req, err)
				return
			}
			twin.ok(12, le(uint64(0x1000), uint64(4), 0x64636261))
			p.reply(req, 0, append(req.body, 1, 2, 3, 4))
		})
	must(t, err)
	must(t, raw.Close())
	if !c.Twin() {
		t.Fatal("the twin socket is not used")
	}
	var b [4]byte
	must(t, c.RegionRead(bg, 0, 0, b[:]))
	if data := <-got; string(data) != "abcd" || b != [4]byte{1, 2, 3, 4} {
		t.Errorf("%q % x", data, b)
	}
}

func TestServersThatLie(t *testing.T) {
	sock, _ := memfd(t, 4096)
	for name, s := range map[string]struct {
		json string
		fds  []int
	}{
		"twin without descriptor": {`{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}`, nil},
		"twin without index":      {`{"capabilities":{"twin_socket":{"supported":true}}}`, []int{mustFD(t, sock)}},
		"twin is a file":          {`{"capabilities":{"twin_socket":{"supported":true,"fd_index":0}}}`, []int{mustFD(t, sock)}},
		"index out of range":      {`{"capabilities":{"twin_socket":{"supported":true,"fd_index":4294967295}}}`, []int{mustFD(t, sock)}},
		"not JSON":                {`{`, nil},
	} {
		if _, err := fakeServer(t, ClientConfig{}, s.json, s.fds, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, s := range map[string]struct {
		answer func(p *rawPeer, r reply)
		want   error // nil: any
	}{
		"errno 0 of rust":  {func(p *rawPeer, r reply) { p.sendReply(r, 0x21, nil) }, nil},
		"errno":            {func(p *rawPeer, r reply) { p.reply(r, unix.EPERM, nil) }, unix.EPERM},
		"header only":      {func(p *rawPeer, r reply) { p.reply(r, 0, nil) }, nil},
		"short":            {func(p *rawPeer, r reply) { p.reply(r, 0, access(0, 0, 4, 1)) }, nil},
		"long":             {func(p *rawPeer, r reply) { p.reply(r, 0, access(0, 0, 4, 1, 2, 3, 4, 5)) }, nil},
		"other count":      {func(p *rawPeer, r reply) { p.reply(r, 0, access(0, 0, 8, 1, 2, 3, 4)) }, nil},
		"silence":          {func(*rawPeer, reply) {}, ErrTimeout},
		"hang-up":          {func(p *rawPeer, _ reply) { _ = p.CloseWrite() }, ErrClosed},
		"garbage":          {func(p *rawPeer, _ reply) { p.send(bytes.Repeat([]byte{0xff}, 64)) }, nil},
		"half a message":   {func(p *rawPeer, _ reply) { p.send(p.message(9, 1, nil)[:7]); _ = p.CloseWrite() }, io.ErrUnexpectedEOF},
		"only unsolicited": {func(p *rawPeer, r reply) { p.id = r.id; p.send(p.message(9, 1, access(0, 0, 4, 1, 2, 3, 4))) }, ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := fakeServer(t, ClientConfig{Timeout: 5 * short}, "", nil, func(p *rawPeer) {
				if r, err := p.tryRecv(); err == nil {
					s.answer(p, r)
				}
			})
			must(t, err)
			err = c.RegionRead(bg, 0, 0, make([]byte, 4))
			if err == nil || s.want != nil && !errors.Is(err, s.want) {
				t.Errorf("%v, want %v", err, s.want)
			}
		})
	}
}

// sendReply sends a reply with these flags.
func (p *rawPeer) sendReply(r reply, flags uint32, body []byte) {
	p.id = r.id - 1
	p.send(p.message(r.cmd, flags, body))
}

func TestInformationThatLies(t *testing.T) {
	for name, body := range map[string][]byte{
		"too many regions": le(16, 2, 101, 5),
		"too many irqs":    le(16, 2, 9, 51),
		"short":            le(16, 2, 9),
	} {
		c, err := fakeServer(t, ClientConfig{}, "", nil, func(p *rawPeer) { r := p.recv(); p.reply(r, 0, body) })
		must(t, err)
		if d, err := c.DeviceInfo(bg); err == nil {
			t.Errorf("%s: %+v", name, d)
		}
	}
	// The argsz grows at each request: it is asked twice, not for ever.
	c, err := fakeServer(t, ClientConfig{}, "", nil, func(p *rawPeer) {
		for _, argsz := range []int{64, 128} {
			r := p.recv()
			p.reply(r, 0, le(argsz, 3, 0, 0, uint64(4096), uint64(0)))
		}
	})
	must(t, err)
	if r, _, err := c.RegionInfo(bg, 0); err != nil || r.Size != 4096 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestContextEndsAWait(t *testing.T) {
	f := serve(t)
	hold := f.dev.holding(0)
	c, _ := f.client(ClientConfig{})
	ctx, cancel := context.WithCancel(bg)
	p := []byte{9}
	result := make(chan error, 1)
	go func() { result <- c.RegionRead(ctx, 0, 0, p) }()
	a := <-hold
	cancel()
	if err := waitErr(t, result); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	a.Reply() // the late answer goes nowhere
	must(t, c.RegionRead(bg, 2, 0, make([]byte, 4)))
	if p[0] != 9 {
		t.Error("the late answer was written into the caller's buffer")
	}
}

func TestSilentServerIsGivenUp(t *testing.T) {
	f := serve(t)
	f.dev.holding(0)
	c, _ := f.client(ClientConfig{})
	c.mu.Lock()
	c.cfg.Timeout = 25 * short   // a busy machine may take longer to connect
	c.timer.Reset(c.cfg.Timeout) // VERSION has set it
	c.mu.Unlock()
	done := make(chan error, 100)
	for range maxUnanswered + 1 {
		must(t, c.StartRead(0, 0, make([]byte, 4), into(done)))
	}
	for range maxUnanswered + 1 {
		if err := waitErr(t, done); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	}
	<-c.Done()
	if err := c.Err(); !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
}

func TestServerThatDoesNotRead(t *testing.T) {
	release := make(chan struct{})
	c, err := fakeServer(t, ClientConfig{Timeout: 5 * short}, "", nil, func(*rawPeer) { <-release })
	defer close(release)
	must(t, err)
	for err == nil {
		err = c.PostWrite(0, 0, make([]byte, 16<<10))
	}
	if !errors.Is(err, ErrTimeout) {
		t.Error(err)
	}
}

func TestServerFloodsWithDMA(t *testing.T) {
	var held []*DMARequest
	full, played := make(chan struct{}), make(chan struct{})
	cfg := ClientConfig{MaxDMA: 4, DMA: DMAFunc(func(_ *Client, r *DMARequest) {
		if held = append(held, r); len(held) == 4 {
			close(full)
		}
	})}
	c, err := fakeServer(t, cfg, "", nil, func(p *rawPeer) {
		for range 5 {
			p.send(p.message(11, 0, le(uint64(0), uint64(4))))
		}
		if r := p.recv(); r.errno != unix.EBUSY {
			t.Errorf("the fifth: %+v", r)
		}
		p.wantErr(unix.E2BIG, 11, le(uint64(0), uint64(2<<20)))
		p.wantErr(unix.E2BIG, 12, le(uint64(0), uint64(5), 0))
		p.wantErr(unix.EINVAL, 12, le(uint64(0)))
		p.wantErr(unix.EINVAL, 11, le(uint64(1<<64-1), uint64(2)))
		p.wantErr(unix.ENOSYS, 9, access(0, 0, 4))
		p.send(p.message(12, 0x10, le(uint64(0), uint64(4), 0)))
		close(played)
	})
	must(t, err)
	<-full
	<-played
	for _, r := range held {
		r.Fail(nil)
	}
	must(t, c.Err())
}

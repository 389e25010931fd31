package vfiouser

import (
	"bytes"
	"runtime"
	"testing"
)

// resume makes a server take over a connection of a process that was killed.
func resume(t *testing.T, j []byte) (*rawPeer, *Server) {
	t.Helper()
	cfg, _ := testConfig()
	cfg.Journal = j
	srv, err := NewServer(cfg)
	must(t, err)
	x, y := socketPair(t)
	ended := make(chan error, 1)
	go func() { ended <- srv.Resume(bg, y) }()
	t.Cleanup(func() {
		_ = srv.Close()
		_ = waitErr(t, ended)
	})
	return &rawPeer{tb: t, UnixConn: x}, srv
}

// A server that takes over a connection answers the request that its predecessor has
// read, and goes on.
func TestResume(t *testing.T) {
	j := make(journal, JournalSize)
	j.begin(77, CmdRegionRead, access(0, 8, 4))
	p, srv := resume(t, j)
	if r := p.recv(); r.id != 77 || r.cmd != uint16(CmdRegionRead) || len(r.body) != 20 {
		t.Errorf("%+v", r)
	}
	p.ok(9, access(7, 0, 4))
	p.ok(3, dmaUnmap(0, 1<<40)) // of mappings that the predecessor had
	p.ok(8, setIRQs(disable, 0, 0, 0))
	c := srv.Conn()
	c.mu.Lock()
	if m, ok := j.pending(); ok {
		t.Errorf("the journal has %+v", m)
	}
	c.mu.Unlock()
	for _, cmd := range []Command{CmdRegionWrite, CmdDeviceReset} {
		j := make(journal, JournalSize)
		j.begin(5, cmd, access(0, 8, 4))
		p, _ := resume(t, j)
		r := p.recv()
		if want := map[Command]int{CmdRegionWrite: 16, CmdDeviceReset: 0}[cmd]; r.id != 5 || r.errno != 0 || len(r.body) != want {
			t.Errorf("%v: %+v", cmd, r)
		}
	}
}

// The journal has the access that waits, until it is answered.
func TestJournal(t *testing.T) {
	j := make(journal, JournalSize)
	f := serve(t, func(c *Config) { c.Journal = j })
	hold := f.dev.holding(0)
	p, c := f.connect()
	p.send(p.message(9, 0, access(0, 8, 4)))
	a := <-hold
	c.mu.Lock()
	m, ok := j.pending()
	c.mu.Unlock()
	if !ok || m.ID != p.id || m.Command != CmdRegionRead || !bytes.Equal(m.body, access(0, 8, 4)) {
		t.Errorf("the journal has %+v, %v", m, ok)
	}
	a.Reply()
	p.recv()
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := j.pending(); ok {
		t.Errorf("the journal has %+v after the answer", m)
	}
}

// The journal has the read that came together with writes, while the first write waits,
// and while the read waits because the handler holds as many accesses as it may.
func TestJournalOfWhatWaits(t *testing.T) {
	j := make(journal, JournalSize)
	f := serve(t, func(c *Config) { c.Journal, c.MaxOpen = j, 1 })
	hold := f.dev.holding(0)
	p, c := f.connect()
	recorded := func() (message, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return j.pending()
	}
	writes := append(p.message(10, 0x10, append(access(0, 0, 4), 1, 2, 3, 4)), p.message(10, 0x10, append(access(0, 4, 4), 1, 2, 3, 4))...)
	p.send(append(writes, p.message(9, 0, access(0, 8, 4))...))
	first := <-hold
	if m, ok := recorded(); !ok || m.ID != p.id || m.Command != CmdRegionRead || !bytes.Equal(m.body, access(0, 8, 4)) {
		t.Fatalf("the journal has %+v, %v", m, ok)
	}
	first.Reply()
	(<-hold).Reply()
	(<-hold).Reply()
	if r := p.recv(); r.id != p.id {
		t.Errorf("%+v", r)
	}
	if m, ok := recorded(); ok {
		t.Errorf("the journal has %+v after the answer", m)
	}

	p.send(p.message(10, 0x10, append(access(0, 0, 4), 1, 2, 3, 4)))
	write := <-hold
	p.send(p.message(9, 0, access(0, 8, 4))) // alone
	for m, ok := recorded(); !ok || m.ID != p.id; m, ok = recorded() {
		runtime.Gosched()
	}
	write.Reply()
	(<-hold).Reply()
	p.recv()
}

// An answer that comes after the end of its connection leaves the journal alone: it
// belongs to the next connection then, or is no longer mapped.
func TestJournalAfterTheConnection(t *testing.T) {
	j := make(journal, JournalSize)
	f := serve(t, func(c *Config) { c.Journal = j })
	hold := f.dev.holding(0)
	p, c := f.connect()
	p.send(p.message(9, 0, access(0, 8, 4)))
	a := <-hold
	must(t, p.Close())
	<-c.Done()
	if m, ok := j.pending(); ok {
		t.Errorf("the journal has %+v of a connection that has ended", m)
	}
	j.begin(p.id, CmdRegionRead, access(0, 8, 4)) // as the next connection does
	a.Reply()
	if _, ok := j.pending(); !ok {
		t.Error("a late answer has removed the record of another connection")
	}
}

// The journal does not keep an access that the server has refused: the next process would
// answer it a second time.
func TestJournalOfRefusedAccess(t *testing.T) {
	j := make(journal, JournalSize)
	f := serve(t, func(c *Config) { c.Journal = j })
	hold := f.dev.holding(0)
	p, c := f.connect()
	write := p.message(10, 0x10, append(access(0, 0, 4), 1, 2, 3, 4))
	p.send(append(write, p.message(9, 0, access(0, 1<<40, 4))...))
	(<-hold).Reply()
	if r := p.recv(); r.id != p.id || r.errno == 0 {
		t.Errorf("%+v", r)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := j.pending(); ok {
		t.Errorf("the journal has %+v after the answer", m)
	}
}

package vfiouser

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A peer that connects and never sends a whole VERSION, whatever else it sends, does not keep the
// device from a VMM.
func TestPeerWithoutVersion(t *testing.T) {
	version := new(rawPeer).message(1, 0, []byte(qemuVersion))
	drip := time.NewTicker(10 * time.Millisecond)
	defer drip.Stop()
	for name, say := range map[string]func(p *rawPeer){
		"nothing": func(*rawPeer) {},
		"a part":  func(p *rawPeer) { p.send(version[:len(version)-1]) },
		"drips": func(p *rawPeer) {
			for i := range version {
				<-drip.C
				if _, err := p.Write(version[i : i+1]); err != nil {
					return
				}
			}
		},
		"another request":     func(p *rawPeer) { p.wantErr(unix.EINVAL, 4, make([]byte, 16)) },
		"a version of others": func(p *rawPeer) { p.wantErr(unix.EINVAL, 1, []byte{9, 0, 0, 0}) },
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, func(c *Config) { c.Deadline = 200 * time.Millisecond })
			mute := f.dial()
			say(mute)
			if r, err := mute.tryRecv(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("the peer stays: %v, %v", r, err)
			}
			f.connect()
		})
	}
}

// A VERSION that has come in time counts, also if the process has stood still until after the
// deadline.
func TestVersionBeforeAPause(t *testing.T) {
	f := serve(t)
	srv := f.Server
	s, peer := newPair(t)
	defer func() { _ = peer.Close() }()
	p := &rawPeer{tb: t, UnixConn: peer}
	p.send(p.message(1, 0, []byte(qemuVersion)))
	c := newConn(srv, s)
	c.start = c.start.Add(-time.Hour)
	must(t, c.negotiate())
	if r := p.recv(); r.errno != 0 {
		t.Errorf("the answer is %v", r.errno)
	}
	s.close()
	c.clear()
}

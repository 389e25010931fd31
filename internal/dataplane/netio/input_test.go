package netio

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/machine"
)

// A reader polls while requests and answers go to and fro, and in a transfer, and at no
// other time.
func TestSoon(t *testing.T) {
	f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0"}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.closeSockets()
	peer, err := udp.Listen("127.0.0.1:0", udp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	conn := f.paths[0].conn
	in := &input{fabric: f, path: f.paths[0], conn: conn, reader: conn.NewReader()}
	for _, c := range []struct {
		name       string
		came, sent int // bytes
		want       bool
	}{
		{"nothing sent", 100, 0, false},
		{"a request and its answer", 100, reader.Brief, true},
		{"the longest request", reader.Brief, 1, true},
		{"much sent", 100, reader.Brief + 1, false},
		{"much came", reader.Brief + 1, 100, true},
		{"much came, nothing sent", reader.Brief + 1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := peer.NewWriter().Write(make([]byte, c.came), c.came, conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			if err := in.Receive(true); err != nil {
				t.Fatal(err)
			}
			if c.sent > 0 {
				if err := conn.NewWriter().Write(make([]byte, c.sent), c.sent, peer.LocalAddr()); err != nil {
					t.Fatal(err)
				}
			}
			if got := in.Soon(); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// A reader that polls sends the datagrams that a fault plan has held back until now.
// They count as sent from the beginning: the answer is awaited.
func TestReaderSendsWhatIsDue(t *testing.T) {
	plan := fault.Plan{Delay: time.Millisecond}
	f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0", Fault: plan}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.closeSockets() // it does not run: no other goroutine sends
	peer, err := udp.Listen("127.0.0.1:0", udp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	p := f.paths[0]
	in := &input{fabric: f, path: p, conn: p.conn, reader: p.conn.NewReader()}
	for _, block := range []bool{false, true} {
		if err := peer.NewWriter().Write(make([]byte, 64), 64, p.conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if err := in.Receive(true); err != nil {
			t.Fatal(err)
		}
		before := p.conn.TxBytes()
		p.write(f.Now, p.conn.NewWriter(), make([]byte, 32), 32, peer.LocalAddr())
		if p.conn.TxBytes() != before || !in.Soon() {
			t.Fatalf("%d bytes left at once; an answer is awaited: %v", p.conn.TxBytes()-before, in.Soon())
		}
		for limit := time.Now().Add(patience); p.conn.TxBytes() == before; {
			if err := in.Receive(block); !errors.Is(err, reader.ErrNothing) {
				t.Fatal(err)
			}
			if time.Now().After(limit) {
				t.Fatal("the datagram is still held back")
			}
		}
		if due, held := time.Duration(p.due.Load()), p.held.Load(); due != machine.Never || held != 0 {
			t.Errorf("due at %v, %d bytes are held", due, held)
		}
	}
}

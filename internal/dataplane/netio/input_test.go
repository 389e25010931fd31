package netio

import (
	"log/slog"
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// A reader polls while requests and answers go to and fro, and at no other time.
func TestExchange(t *testing.T) {
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
		{"much came", reader.Brief + 1, 100, false},
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
			if got := in.Exchange(); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

package netio

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/machine"
)

// A reader polls while requests and answers go to and fro, and at no other time, except in
// a transfer.
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
		{"much came of no binding", reader.Brief + 1, 100, false},
		{"much came of no binding, nothing sent", reader.Brief + 1, 0, false},
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

// A reader polls in a transfer of a binding. Long datagrams of strangers are none: they
// would keep a processor busy.
func TestSoonInATransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no link sends by itself
		x := newExchange(t)
		in := x.in[1]
		stranger, err := udp.Listen("127.0.0.1:0", udp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer stranger.Close()
		datagram := make([]byte, reader.Brief+1) // only the version and the binding are looked at
		datagram[0], datagram[7] = frame.Version2<<4|byte(frame.TypeTraffic), 1
		for x.drain(0) || x.drain(1) {
		}
		for _, c := range []struct {
			name string
			from *udp.Conn
			n    int
			want bool
		}{
			{"a stranger", stranger, len(datagram), false},
			{"the peer", x.in[0].conn, len(datagram), true},
			{"a stranger in a transfer", stranger, len(datagram), false},
			{"the peer again", x.in[0].conn, len(datagram), true},
			{"a short one of the peer", x.in[0].conn, reader.Brief, false},
		} {
			if err := c.from.NewWriter().Write(datagram[:c.n], c.n, in.conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
			x.receive(1)
			if got := in.Soon(); got != c.want {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	})
}

// One entry takes the batches of a transfer that have arrived, some at most. It takes none
// behind a short one, whose answer must not wait, and none where a fault plan counts
// datagrams.
func TestGathering(t *testing.T) {
	for _, c := range []struct {
		name string
		came []int // bytes of each datagram
		plan fault.Plan
		want []uint64 // datagrams taken by each call of Receive
	}{
		{"one", []int{1000}, fault.Plan{}, []uint64{1}},
		{"a transfer", []int{1000, 1000, 1000, 1000, 1000, 1000}, fault.Plan{}, []uint64{maxGathered, 2}},
		{"short ones", []int{100, 100, 100}, fault.Plan{}, []uint64{1, 1, 1}},
		{"a short one in a transfer", []int{1000, 100, 1000}, fault.Plan{}, []uint64{2, 1}},
		{"with faults", []int{1000, 1000}, fault.Plan{Delay: time.Hour}, []uint64{1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0", Fault: c.plan}}, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer f.closeSockets()
			peer, err := udp.Listen("127.0.0.1:0", udp.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			in := newInput(f, f.paths[0], 0)
			for _, n := range c.came {
				if err := peer.NewWriter().Write(make([]byte, n), n, in.conn.LocalAddr()); err != nil {
					t.Fatal(err)
				}
			}
			for i, want := range c.want {
				before := in.conn.Stats().RxDatagrams
				if err := in.Receive(false); err != nil {
					t.Fatal(err)
				}
				if got := in.conn.Stats().RxDatagrams - before; got != want {
					t.Errorf("call %d took %d datagrams, want %d", i, got, want)
				}
			}
			if stray := f.Stats().Stray; stray != uint64(len(c.came)) {
				t.Errorf("%d datagrams were looked at, want %d", stray, len(c.came))
			}
		})
	}
}

// A report that is found behind the batches of a transfer is not lost.
func TestGatheringMeetsAReport(t *testing.T) {
	f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0"}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer f.closeSockets()
	var peers [2]*udp.Conn
	for i := range peers {
		if peers[i], err = udp.Listen("127.0.0.1:0", udp.Options{}); err != nil {
			t.Fatal(err)
		}
		defer peers[i].Close()
	}
	in := newInput(f, f.paths[0], 0)
	gone := peers[1].LocalAddr()
	if err := peers[1].Close(); err != nil {
		t.Fatal(err)
	}
	for round := range 2 { // the first one's report comes before its data
		if err := peers[0].NewWriter().Write(make([]byte, 1000), 1000, in.conn.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_ = in.conn.NewWriter().Write(make([]byte, 100), 100, gone)
		in.deafTo = 0
		for limit := 4; in.deafTo == 0 && limit > 0; limit-- {
			if err := in.Receive(false); err != nil && !errors.Is(err, reader.ErrNothing) {
				t.Fatal(err)
			}
		}
		if in.deafTo == 0 {
			t.Errorf("round %d: no report", round)
		}
	}
	for in.Receive(false) == nil {
	}
	if n := f.Stats().Stray; n != 2 {
		t.Errorf("%d datagrams arrived, want 2", n)
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
		p.write(f.Now, p.conn.NewWriter(), [][]byte{make([]byte, 32)}, 32, peer.LocalAddr(), 0)
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

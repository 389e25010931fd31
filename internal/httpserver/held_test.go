package httpserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The answers that callers do not take have a bound together: the oldest end, and another
// caller has its answer.
func TestAnswersThatAreNotTaken(t *testing.T) {
	const size = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		held := &heldAnswers{most: 3 * size}
		srv := New(nil, API, slog.New(slog.DiscardHandler))
		srv.Handler = boundPeers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, size))
		}), held)
		connect, stop := servePipes(srv)
		defer stop()
		ask := func() net.Conn {
			client := connect()
			if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return client
		}
		var slow []net.Conn
		for range 6 {
			slow = append(slow, ask())
		}
		quick := ask()
		if n, err := io.Copy(io.Discard, quick); n < size || err != nil {
			t.Errorf("%d bytes for a caller that takes its answer: %v", n, err)
		}
		if held.bytes > held.most {
			t.Errorf("%d bytes are held", held.bytes)
		}
		whole := 0
		for _, c := range slow {
			if n, _ := io.Copy(io.Discard, c); n >= size {
				whole++
			}
		}
		if whole != 2 { // besides the answer of the quick one
			t.Errorf("%d slow callers have their answers, want the last 2", whole)
		}
		if held.bytes != 0 || len(held.callers) != 0 {
			t.Errorf("at the end %d bytes are held", held.bytes)
		}
	})
}

// servePipes serves connections that keep nothing: writes wait for reads. stop waits for the
// server, and for the timers of its connections, in a bubble.
func servePipes(srv *http.Server) (connect func() (client net.Conn), stop func()) {
	conns, served := make(chan net.Conn), make(chan struct{})
	l := &pipesListener{conns: conns, closed: make(chan struct{})}
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	connect = func() net.Conn {
		client, conn := net.Pipe()
		conns <- conn
		return client
	}
	return connect, func() {
		_ = srv.Close()
		<-served
		time.Sleep(2 * answerTimeout)
	}
}

type pipesListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipesListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipesListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipesListener) Addr() net.Addr { return &net.TCPAddr{} }

// A caller that takes nothing does not end the answers of others that are slow, too.
func TestSlowCallerBesideOneThatTakesNothing(t *testing.T) {
	held := &heldAnswers{most: 10 << 20}
	ended := map[string]int{}
	enter := func(address string) (leave func()) {
		return held.enter(peerOf(&http.Request{RemoteAddr: address + ":1"}), 1<<20, func() { ended[address]++ })
	}
	leave := enter("192.0.2.1")
	for range 50 {
		enter("192.0.2.2")
	}
	for i := range 3 { // one network has many addresses
		enter(fmt.Sprintf("[2001:db8::%d]", 1+i))
	}
	if held.callers[netip.MustParseAddr("2001:db8::")].bytes != 3<<20 {
		t.Error("the addresses of an IPv6 network count apart")
	}
	if ended["192.0.2.1"] != 0 || ended["192.0.2.2"] != 44 || held.bytes != held.most {
		t.Errorf("ended: %v, %d bytes are held", ended, held.bytes)
	}
	leave()
	for i := range 50 { // as many addresses: one piece each
		enter(fmt.Sprint("192.0.2.", 10+i))
	}
	if held.bytes > held.most {
		t.Errorf("%d bytes are held", held.bytes)
	}
}

// Over HTTP/2 a caller with wide windows that reads nothing keeps no handler waiting: neither
// while others want the memory, nor beyond the time for an answer.
func TestAnswersThatAreNotTakenOverHTTP2(t *testing.T) {
	for name, most := range map[string]int{"too much is held": 3 << 20, "time": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := &heldAnswers{most: most}
				srv := New(nil, API, slog.New(slog.DiscardHandler))
				var writing atomic.Int32
				srv.Handler = boundPeers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					writing.Add(1)
					defer writing.Add(-1)
					_, _ = w.Write(make([]byte, 1<<20))
				}), held)
				connect, stop := servePipes(srv)
				defer stop()
				client := connect()
				defer client.Close()
				// The server may hang up before the last calls.
				if err := askHTTP2(client, 10); err != nil && most == 1<<30 {
					t.Error(err)
				}
				synctest.Wait()
				if most == 1<<30 {
					if n := writing.Load(); n != 10 {
						t.Errorf("%d handlers write, want 10", n)
					}
					time.Sleep(2 * answerTimeout)
					synctest.Wait()
				}
				if n := writing.Load(); n != 0 || held.bytes != 0 {
					t.Errorf("%d handlers still write, and %d bytes are held", n, held.bytes)
				}
			})
		})
	}
}

// askHTTP2 makes calls over a connection, and reads the server's settings alone.
func askHTTP2(client net.Conn, calls int) error {
	f := http2.NewFramer(client, client)
	read := make(chan error)
	go func() {
		_, err := f.ReadFrame()
		read <- err
	}()
	_, err := io.WriteString(client, http2.ClientPreface)
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	err = errors.Join(err, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}), <-read)
	for i := range calls {
		block.Reset()
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", "/"}, {":authority", "x"}} {
			err = errors.Join(err, e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
		}
		err = errors.Join(err, f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
		}))
		if i == 0 { // before the first answer fills the connection
			err = errors.Join(err, f.WriteWindowUpdate(0, 1<<30))
		}
	}
	return err
}

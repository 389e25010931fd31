package httpserver

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A server's connections are bounded: one more is closed at once, and its place is free
// when another one is closed. The others are served meanwhile.
func TestConnectionsAreBounded(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	l := newBoundListener(tcp, API, slog.New(slog.NewTextHandler(&log, nil)))
	l.most = 3
	served := make(chan struct{})
	srv := New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), API, slog.New(slog.DiscardHandler))
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	ask := func(c net.Conn) error {
		_, err := fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if err != nil {
			return err
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	open := func() (net.Conn, error) {
		c, err := net.Dial("tcp", tcp.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, ask(c)
	}
	var conns []net.Conn
	for range 3 {
		c, err := open()
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if _, err := open(); err == nil {
		t.Error("one more connection is served")
	}
	if err := ask(conns[0]); err != nil {
		t.Errorf("an old connection: %v", err)
	}
	_ = conns[1].Close()
	for err = errors.New("never tried"); err != nil; { // until the server has noticed
		_, err = open()
	}
	_ = srv.Close()
	<-served
	if !strings.Contains(log.String(), "has 3 connections, which is its limit") {
		t.Errorf("the log: %s", log.String())
	}
	if l.open != 0 || len(l.from) != 0 {
		t.Errorf("closed connections count: %d, %v", l.open, l.from)
	}
}

// The connections of each address are counted as in a plain list of all that are open.
func TestConnectionsOfAddresses(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 6))
	l := &boundListener{most: 24, from: map[netip.Addr]int{}}
	peers := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("127.0.0.1")}
	var open []netip.Addr
	for step := range 10_000 {
		if i := r.IntN(2 * l.most); i < len(open) {
			l.leave(open[i])
			open = append(open[:i], open[i+1:]...)
			continue
		}
		peer := peers[r.IntN(len(peers))]
		own := 0
		for _, p := range open {
			if p == peer {
				own++
			}
		}
		want := len(open) < 24 && (own < 6 || peer.IsLoopback() || len(open) < 12)
		if got := l.enter(peer) == ""; got != want {
			t.Fatalf("step %d: %s with %d of %d connections is let in: %v, want %v", step, peer, own, len(open), got, want)
		}
		if want {
			open = append(open, peer)
		}
	}
}

// A caller that does not send its body, or does not take its answer, keeps no request.
func TestSlowPeers(t *testing.T) {
	tests := []struct {
		name, head string
		handler    http.HandlerFunc
		within     time.Duration
	}{
		{"a body of a page", "POST /ui/do HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na=", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
		}, bodyTimeout},
		{"a body that the handler does not read", "POST /none HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\na=", http.NotFound, bodyTimeout},
		{"an answer", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 1<<20))
		}, answerTimeout},
		{"an answer with a time of its own", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(5 * time.Second))
			_, _ = w.Write(make([]byte, 1<<20))
		}, 5 * time.Second},
		{"a short answer", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ok")
		}, answerTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, conn := net.Pipe() // which keeps nothing: writes wait for reads
				srv := New(tt.handler, API, slog.New(slog.DiscardHandler))
				done := make(chan struct{})
				begin := time.Now()
				go func() {
					defer close(done)
					_ = srv.Serve(&pipeListener{conn: conn, closed: make(chan struct{})})
				}()
				if _, err := io.WriteString(client, tt.head); err != nil {
					t.Fatal(err)
				}
				if strings.HasPrefix(tt.head, "POST") {
					_, _ = io.Copy(io.Discard, client) // until the server closes it
				} else {
					time.Sleep(tt.within + time.Second)
					synctest.Wait()
					if n, err := io.Copy(io.Discard, client); n > 8<<10 {
						t.Errorf("%d bytes came later: %v", n, err)
					}
				}
				if took := time.Since(begin); took > tt.within+2*time.Second {
					t.Errorf("the connection lasted %v", took)
				}
				_ = client.Close()
				_ = srv.Close()
				<-done
			})
		})
	}
}

// The time for a body ends with the body: a stream stays open.
func TestStreamOutlivesItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, conn := net.Pipe()
		srv := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(4 * bodyTimeout)
			_, err := io.WriteString(w, "an event")
			if err = errors.Join(err, r.Context().Err()); err != nil {
				t.Error(err)
			}
		}), API, slog.New(slog.DiscardHandler))
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(&pipeListener{conn: conn, closed: make(chan struct{})})
		}()
		if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
		if res, err := http.ReadResponse(bufio.NewReader(client), nil); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("the answer: %v, %v", res, err)
		}
		_ = client.Close()
		_ = srv.Close()
		<-done
	})
}

type pipeListener struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// Streams and calls work over HTTP/2 as before: a stream flushes, and lives without messages.
func TestPeersOfHTTP2(t *testing.T) {
	more := make(chan struct{})
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v %v\n", body, err, r.ProtoMajor)
		w.(http.Flusher).Flush()
		<-more
		_, _ = io.WriteString(w, "more\n")
	}), API, slog.New(slog.DiscardHandler))
	srv.EnableHTTP2 = true
	srv.TLS = &tls.Config{NextProtos: []string{"h2"}}
	srv.StartTLS()
	defer srv.Close()
	res, err := srv.Client().Post(srv.URL, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	lines := bufio.NewReader(res.Body)
	if line, err := lines.ReadString('\n'); line != "hello <nil> 2\n" {
		t.Fatalf("the answer is %q, %v", line, err)
	}
	close(more)
	if line, err := lines.ReadString('\n'); line != "more\n" {
		t.Errorf("then it is %q, %v", line, err)
	}
}

// The log has the lines of the HTTP server about connections, in its own format, and no caller
// can fill it.
func TestConnectionsInTheLog(t *testing.T) {
	var out bytes.Buffer
	srv := New(http.NotFoundHandler(), API, slog.New(slog.NewJSONHandler(&out, nil)))
	for range 1000 {
		srv.ErrorLog.Printf("http: TLS handshake error from 10.0.0.9:1234: EOF")
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if want := `"msg":"a connection to the API failed","why":"from 10.0.0.9:1234: EOF"}`; !strings.HasSuffix(lines[0], want) || len(lines) > 100 {
		t.Errorf("%d lines, the first is %q, want %q", len(lines), lines[0], want)
	}
}

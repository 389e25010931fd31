//go:build linux

package cli

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// The answers that callers do not take have a bound together: the oldest end, and another
// caller has its answer.
func TestAnswersThatAreNotTaken(t *testing.T) {
	const size = 1 << 20
	synctest.Test(t, func(t *testing.T) {
		held := &heldAnswers{most: 3 * size}
		srv := newServer(nil, apiShare, slog.New(slog.DiscardHandler))
		srv.Handler = boundPeers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, size))
		}), held)
		conns := make(chan net.Conn)
		l := &pipesListener{conns: conns, closed: make(chan struct{})}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = srv.Serve(l)
		}()
		ask := func() net.Conn {
			client, conn := net.Pipe() // which keeps nothing: writes wait for reads
			conns <- conn
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
		if held.bytes != 0 || held.waiting.Len() != 0 {
			t.Errorf("at the end %d bytes are held", held.bytes)
		}
		_ = srv.Close()
		<-served
		time.Sleep(answerTimeout) // the timers of the connections
	})
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

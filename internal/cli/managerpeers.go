//go:build linux

package cli

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// bodyTimeout is how long a caller may take to send the body of a request, and
	// answerTimeout how long to take a piece of an answer.
	bodyTimeout   = 20 * time.Second
	answerTimeout = time.Minute
	// maxConnections bounds the connections of a server, 50 KB each: far more than the
	// nodes of the largest pool that was measured.
	maxConnections = 1 << 16
	// An address may have a quarter of them once half are taken: a program has one, a browser six,
	// and a load balancer or a network behind one address those of all its nodes.
	addressShare = 4
)

// boundPeers ends requests whose callers do not send the body, or do not take the answer.
func boundPeers(next http.Handler, held *heldAnswers) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if r.ProtoMajor == 1 { // the deadline of the connection's last answer
			_ = c.SetWriteDeadline(time.Time{})
		}
		if r.Body != http.NoBody && c.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil {
			r.Body = &peerBody{r.Body, c}
		}
		next.ServeHTTP(&peerWriter{ResponseWriter: w, c: c, r: r, held: held}, r)
		_ = c.SetWriteDeadline(time.Now().Add(answerTimeout)) // of what the server still has
	})
}

// peerBody removes the read deadline once the body has been read: a stream stays open.
type peerBody struct {
	io.ReadCloser
	c *http.ResponseController
}

func (b *peerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.c.SetReadDeadline(time.Time{}) // setting it has succeeded before
	}
	return n, err
}

// peerWriter bounds the time of each write. Between them there is no deadline: it would end an
// HTTP/2 stream on which nothing happens.
type peerWriter struct {
	http.ResponseWriter
	c    *http.ResponseController
	r    *http.Request
	held *heldAnswers
	own  bool // the handler has set a deadline
}

func (w *peerWriter) Write(p []byte) (int, error) {
	w.limit(answerTimeout)
	defer w.limit(0)
	if len(p) >= heldFrom {
		defer w.held.enter(peerOf(w.r), len(p), func() { hangUp(w.r) })()
	}
	return w.ResponseWriter.Write(p)
}

// FlushError is for [http.ResponseController].
func (w *peerWriter) FlushError() error {
	w.limit(answerTimeout)
	defer w.limit(0)
	return w.c.Flush()
}

// Flush implements [http.Flusher], which streams need.
func (w *peerWriter) Flush() { _ = w.FlushError() }

// Unwrap is for [http.ResponseController].
func (w *peerWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetWriteDeadline is for [http.ResponseController]. A handler's deadline replaces that of each write.
func (w *peerWriter) SetWriteDeadline(at time.Time) error {
	w.own = !at.IsZero()
	return w.c.SetWriteDeadline(at)
}

// limit sets the time for what follows; 0: none.
func (w *peerWriter) limit(d time.Duration) {
	if w.own {
		return
	}
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	_ = w.c.SetWriteDeadline(at) // not all connections have deadlines
}

// boundListener closes connections beyond a number, all together and from one address that
// is not this machine. It leaves descriptors to etcd, which ends the process when it cannot
// open a file.
type boundListener struct {
	net.Listener
	share listenerShare
	most  int
	log   *slog.Logger

	mu   sync.Mutex // guards the fields below
	open int
	from map[netip.Addr]int
}

// listenerShare is the part of a process's descriptors that a listener may use, in eighths.
type listenerShare struct {
	name    string // of the listener
	eighths uint64
	words   string // for the part
}

var (
	apiShare   = listenerShare{"the API", 6, "three quarters"}
	adminShare = listenerShare{"--admin-listen", 1, "an eighth"}
)

// newBoundListener returns a boundListener for a part of the descriptors of the process.
func newBoundListener(l net.Listener, share listenerShare, log *slog.Logger) *boundListener {
	var files unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files) // cannot fail
	most := int(min(maxConnections, files.Cur/8*share.eighths))
	return &boundListener{Listener: l, share: share, most: most, log: log, from: map[netip.Addr]int{}}
}

// Accept implements [net.Listener].
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return c, nil
		}
		peer := networkOf(tcp.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
		if why := l.enter(peer); why != "" {
			_ = tcp.Close()
			l.log.Warn("a connection to "+l.share.name+" failed", "why", why)
			continue
		}
		return &boundConn{tcp, sync.OnceFunc(func() { l.leave(peer) })}, nil
	}
}

// networkOf returns the address that stands for a peer: that of the network, for IPv6, of which one
// machine has as many addresses as it wants.
func networkOf(a netip.Addr) netip.Addr {
	if a = a.Unmap().WithZone(""); a.Is6() && !a.IsLoopback() {
		return netip.PrefixFrom(a, 64).Masked().Addr()
	}
	return a
}

// enter counts a connection, or returns why it cannot be.
func (l *boundListener) enter(peer netip.Addr) (why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.most / addressShare
	if peer.IsLoopback() || l.open < l.most/2 {
		own = math.MaxInt
	}
	switch {
	case l.open >= l.most:
		return fmt.Sprintf("%s has %d connections, which is its limit: %s of the open files of the process (LimitNOFILE), at most %d",
			l.share.name, l.open, l.share.words, maxConnections)
	case l.from[peer] >= own:
		return fmt.Sprintf("%s has %d connections, which is the limit of an address", peer, own)
	}
	l.open++
	l.from[peer]++
	return ""
}

func (l *boundListener) leave(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.from[peer]--; l.from[peer] == 0 {
		delete(l.from, peer)
	}
}

// boundConn counts until it is closed.
type boundConn struct {
	*net.TCPConn
	leave func()
}

func (c *boundConn) Close() error {
	defer c.leave()
	return c.TCPConn.Close()
}

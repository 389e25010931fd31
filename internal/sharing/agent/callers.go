//go:build linux

package agent

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"sync"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// maxCalls bounds the connections of one user to the control socket: each takes a descriptor, and a
// silent one stays for seconds. Root has no bound: it can stop the agent anyway.
const maxCalls = 128

// callers accepts the connections of the control socket. A user's connections and descriptors keep
// no other user waiting.
type callers struct {
	*rights.Listener
	log   *slog.Logger
	trash map[uint32]*rights.Disposer // by user

	mu    sync.Mutex // guards calls
	calls map[uint32]int
}

// caller is a connection of a user.
type caller struct {
	*rights.Conn
	leave func()
}

func newCallers(l *net.UnixListener, log *slog.Logger) *callers {
	return &callers{
		Listener: rights.NewListener(l, new(rights.Disposer)), log: log,
		trash: map[uint32]*rights.Disposer{}, calls: map[uint32]int{},
	}
}

// Accept implements net.Listener. Its connections are *caller.
func (l *callers) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		const nobody = math.MaxUint32
		uid := uint32(nobody)
		if p, err := peerOf(c); err == nil {
			uid = p.Uid
			p.process.close()
		}
		if l.trash[uid] == nil {
			l.trash[uid] = new(rights.Disposer)
		}
		conn := rights.NewConn(c, l.trash[uid])
		why := l.refuse(c, uid)
		if why == nil && !l.enter(uid) {
			why = fmt.Errorf("this user has %d calls to the sharing agent already: try again when they have ended", maxCalls)
		}
		if why == nil {
			return &caller{conn, sync.OnceFunc(func() { l.leave(uid) })}, nil
		}
		l.log.Warn("call is refused", "user", uid, "error", why)
		_, _ = conn.Write(unavailable(why)) // it does not wait: nothing else is on its way
		_ = conn.Close()
	}
}

// refuse says why a connection is not served whatever its user has: the last descriptors of the agent
// are for root and the agent's user.
func (l *callers) refuse(c *net.UnixConn, uid uint32) error {
	if uid == 0 || int(uid) == os.Getuid() {
		return nil
	}
	return allowed(c)
}

// Close implements net.Conn.
func (c *caller) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

func (l *callers) enter(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if uid != 0 && l.calls[uid] >= maxCalls {
		return false
	}
	l.calls[uid]++
	return true
}

func (l *callers) leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls[uid]--; l.calls[uid] == 0 {
		delete(l.calls, uid)
	}
}

// unavailable is the answer to a call that is not served.
func unavailable(why error) []byte {
	text := why.Error() + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
}

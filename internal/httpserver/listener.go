package httpserver

import (
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/loglimit"
)

const (
	// maxConnections bounds the connections of a server, 50 KB each: far more than the
	// nodes of the largest pool that was measured.
	maxConnections = 1 << 16
	// An address may have a quarter of them once half are taken: a program has one, a browser six,
	// and a load balancer or a network behind one address those of all its nodes.
	addressShare = 4
)

// boundListener closes connections beyond a number, all together and from one address that
// is not this machine. It leaves descriptors to etcd, which ends the process when it cannot
// open a file.
type boundListener struct {
	net.Listener
	share Share
	most  int
	log   *slog.Logger

	mu   sync.Mutex // guards the fields below
	open int
	from map[netip.Addr]int
}

// Bound returns a listener with a share of the descriptors of the process. It says in the log,
// not for each, which connections it closes.
func Bound(l net.Listener, share Share, log *slog.Logger) net.Listener {
	return newBoundListener(l, share, slog.New(loglimit.New(log.Handler())))
}

func newBoundListener(l net.Listener, share Share, log *slog.Logger) *boundListener {
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

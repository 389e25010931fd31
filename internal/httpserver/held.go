package httpserver

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

const (
	// maxHeld bounds the pieces of answers that the callers of a server have not taken yet, in
	// bytes. A caller that takes nothing could have 256 of three megabytes.
	maxHeld = 256 << 20
	// heldFrom is the size in bytes from which a piece counts. A connection takes more than
	// smaller ones.
	heldFrom = 4 << 10
)

// heldAnswers counts the pieces of answers that wait for their callers, by network. When they
// are too many, the oldest one of the network that holds most ends: others may be slow, too.
type heldAnswers struct {
	most int

	mu      sync.Mutex // guards the fields below
	bytes   int
	callers map[netip.Addr]*heldCaller // by network, see peerOf
}

// heldCaller is what one network holds.
type heldCaller struct {
	network netip.Addr
	bytes   int
	waiting list.List // of *heldPiece, the oldest first
}

// heldPiece is a part of an answer that is being written.
type heldPiece struct {
	size   int
	end    func()
	caller *heldCaller
	at     *list.Element // nil: it no longer counts
}

// enter counts a piece before it is written; leave must follow. end makes its writer return, and
// is called before leave returns only, perhaps by enter itself: the answer is gone then.
func (h *heldAnswers) enter(network netip.Addr, size int, end func()) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.callers[network]
	if c == nil {
		if h.callers == nil {
			h.callers = map[netip.Addr]*heldCaller{}
		}
		c = &heldCaller{network: network}
		h.callers[network] = c
	}
	p := &heldPiece{size: size, end: end, caller: c}
	p.at = c.waiting.PushBack(p)
	c.bytes += size
	for h.bytes += size; h.bytes > h.most && h.bytes > size; { // alone it is not too much
		oldest := h.largest().waiting.Front().Value.(*heldPiece)
		oldest.end()
		h.remove(oldest)
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.remove(p)
	}
}

// largest returns the caller that holds most. The caller holds the lock, and a piece counts.
func (h *heldAnswers) largest() (most *heldCaller) {
	for _, c := range h.callers {
		if most == nil || c.bytes > most.bytes {
			most = c
		}
	}
	return most
}

// remove ends the count of a piece. The caller holds the lock.
func (h *heldAnswers) remove(p *heldPiece) {
	if p.at == nil {
		return
	}
	c := p.caller
	c.waiting.Remove(p.at)
	p.at, h.bytes, c.bytes = nil, h.bytes-p.size, c.bytes-p.size
	if c.waiting.Len() == 0 {
		delete(h.callers, c.network)
	}
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// withConnection is for [http.Server.ConnContext].
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn() // the other one would wait for what it writes
	}
	return context.WithValue(ctx, connectionKey{}, c)
}

// hangUp closes the connection of a request. The deadline of an HTTP/2 stream would not do: its
// frame may be half written, and the caller takes nothing.
func hangUp(r *http.Request) {
	if c, ok := r.Context().Value(connectionKey{}).(net.Conn); ok {
		_ = c.Close()
	}
}

// peerOf returns the network of the caller, the zero address for a socket without one.
func peerOf(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return networkOf(at.Addr())
}

package manager

import (
	"container/list"
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// When ten thousand nodes come back at once, each of their calls takes the lock of
// the state several times. In a queue of thousands each call would wait longer than
// its caller does, and all of the work would be in vain. So only a limited number of
// calls works at a time, those of persons apart from those of nodes, and a waiting
// call leaves the queue when its caller has gone.

const (
	// gateWidth is the number of calls of a kind that work at a time: enough
	// for many of them to wait for the same batch of the store.
	gateWidth = 256
	// patience is how long the first call of the queue may wait while the queue
	// is first in, first out. Beyond it the newest call goes first, because its
	// caller is the last to give up.
	patience = time.Second
)

// gate limits the number of calls that work at a time. It implements
// connect.Interceptor.
type gate struct {
	mu      sync.Mutex // guards the fields below
	free    int
	waiting list.List // of *turn, the newest last
}

// turn is a waiting call.
type turn struct {
	since   time.Time
	granted chan struct{} // closed when the call may proceed
}

func newGate(width int) *gate { return &gate{free: width} }

// acquire waits until the call may proceed, or until ctx ends. The result ends
// the call's turn; it may be called more than once.
func (g *gate) acquire(ctx context.Context) (leave func(), err error) {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return sync.OnceFunc(g.release), nil
	}
	w := &turn{time.Now(), make(chan struct{})}
	at := g.waiting.PushBack(w)
	g.mu.Unlock()
	select {
	case <-w.granted:
		return sync.OnceFunc(g.release), nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	select {
	case <-w.granted: // granted just now: pass it on
		g.mu.Unlock()
		g.release()
	default:
		g.waiting.Remove(at)
		g.mu.Unlock()
	}
	return nil, unavailable("%w", context.Cause(ctx))
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.waiting.Front()
	if next == nil {
		g.free++
		return
	}
	if time.Since(next.Value.(*turn).since) > patience {
		next = g.waiting.Back()
	}
	close(g.waiting.Remove(next).(*turn).granted)
}

// WrapUnary implements connect.Interceptor. It runs once the request has been
// read, so that a slow sender does not keep other calls out.
func (g *gate) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		leave, err := g.acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
		return next(ctx, req)
	}
}

// WrapStreamingHandler implements connect.Interceptor. A stream counts from its
// request until it answers or waits for something to happen.
func (g *gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		s := &gatedStream{StreamingHandlerConn: conn, g: g, ctx: ctx, release: func() {}}
		defer func() { s.release() }()
		return next(context.WithValue(ctx, gateKey{}, s), s)
	}
}

func (*gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

type gateKey struct{}

// gatedStream is a stream with one request.
type gatedStream struct {
	connect.StreamingHandlerConn
	g       *gate
	ctx     context.Context //nolint:containedctx // the context of this one call
	release func()
}

func (s *gatedStream) Receive(msg any) error {
	if err := s.StreamingHandlerConn.Receive(msg); err != nil {
		return err
	}
	leave, err := s.g.acquire(s.ctx)
	if err == nil {
		s.release()
		s.release = leave
	}
	return err
}

// Send implements connect.StreamingHandlerConn. It ends the turn, because the
// caller may be slow to read.
func (s *gatedStream) Send(msg any) error {
	s.release()
	return s.StreamingHandlerConn.Send(msg)
}

// idling ends the turn of a stream that waits for something to happen.
func idling(ctx context.Context) {
	if s, ok := ctx.Value(gateKey{}).(*gatedStream); ok {
		s.release()
	}
}

package manager

import (
	"container/list"
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// When ten thousand nodes come back at once, each of their calls takes the lock
// of the state some times, and in a queue of thousands all of them wait for
// longer than their callers do: everything that is done is done for nobody. So
// only some calls work at a time, those of people beside those of nodes, and
// those that wait leave when their callers have gone.

const (
	// gateWidth is how many calls of a kind work at a time: enough for many of
	// them to wait for the same batch to be stored.
	gateWidth = 256
	// patience is how long the first of a queue may have waited while those who
	// came first still go first. Where it is longer, the newest go first: their
	// callers are the last to give up.
	patience = time.Second
)

// gate lets so many calls in at a time. It implements connect.Interceptor.
type gate struct {
	mu      sync.Mutex // guards what follows
	free    int
	waiting list.List // of *turn, the newest last
}

// turn is a call that waits.
type turn struct {
	since   time.Time
	granted chan struct{} // closed when it is its turn
}

func newGate(width int) *gate { return &gate{free: width} }

// acquire waits for a turn, or until ctx ends. leave gives it back; it may be
// called more than once.
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
	case <-w.granted: // just now: somebody else can have it
		g.mu.Unlock()
		g.release()
	default:
		g.waiting.Remove(at)
		g.mu.Unlock()
	}
	return nil, connect.NewError(connect.CodeUnavailable, context.Cause(ctx))
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

// WrapUnary implements connect.Interceptor. The request has been read by now: a
// caller who sends it slowly keeps nobody out.
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

// WrapStreamingHandler implements connect.Interceptor. A stream works from its
// request until it answers or waits for something to happen.
func (g *gate) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		s := &gatedStream{StreamingHandlerConn: conn, g: g, ctx: ctx, release: func() {}}
		defer func() { s.release() }()
		return next(context.WithValue(ctx, gateKey{}, s), s)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (*gate) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

type gateKey struct{}

// gatedStream is a stream of one request.
type gatedStream struct {
	connect.StreamingHandlerConn
	g       *gate
	ctx     context.Context //nolint:containedctx // of the one call that it stands for
	release func()
}

// Receive implements connect.StreamingHandlerConn.
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

// Send implements connect.StreamingHandlerConn. The caller may be slow to read.
func (s *gatedStream) Send(msg any) error {
	s.release()
	return s.StreamingHandlerConn.Send(msg)
}

// idling says that a stream waits for something to happen.
func idling(ctx context.Context) {
	if s, ok := ctx.Value(gateKey{}).(*gatedStream); ok {
		s.release()
	}
}

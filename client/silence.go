package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"
)

// ErrSilent ends a request to a manager that hangs: frozen, or cut off. Its connection may
// stay open for ever, and it may carry the request out when it wakes up.
var ErrSilent = errors.New("the manager does not answer any more")

// send sends a request to one manager. It ends the request, or the answer that has begun,
// when nothing arrives and the manager answers no probe either.
func (t *leaderTransport) send(r *http.Request, at *url.URL) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	b := &body{ctx: ctx, cancel: cancel, waits: &t.waits}
	b.watch.Go(func() {
		if t.hangs(ctx, at, &b.arrived) {
			t.forget(at)
			cancel(fmt.Errorf("%s: %w", at.Host, ErrSilent))
		}
	})
	res, err := t.base.RoundTrip(t.addressed(ctx, r, at))
	if cause := context.Cause(ctx); errors.Is(cause, ErrSilent) {
		if err == nil { // it came too late
			_ = res.Body.Close()
		}
		err = fmt.Errorf("%w, and may or may not carry the call out", cause)
	}
	if err != nil {
		b.end()
		return nil, err
	}
	b.arrived.Store(true)
	b.ReadCloser, res.Body = res.Body, b
	return res, nil
}

// hangs returns true when nothing arrives from a manager and it answers no probe, false when
// ctx ends. A silent manager that answers probes is asked ever less often, unless a user
// waits: thousands of nodes may watch it.
func (t *leaderTransport) hangs(ctx context.Context, m *url.URL, arrived *atomic.Bool) bool {
	first, longest := silence, longestSilence
	if t.waits.tell != nil {
		first, longest = userSilence, userSilence
	}
	next := first
	for silent := 0; silent < silentProbes; {
		if !pause(ctx, next) {
			return false
		}
		if arrived.Swap(false) {
			silent, next = 0, first
			continue
		}
		probing, cancel := context.WithTimeout(ctx, probeTimeout)
		answered := t.waits.after(slowProbe, m.Host+" does not answer")
		_, err := t.probe(probing, m)
		answered()
		cancel()
		var says refusal
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil || errors.As(err, &says):
			t.waits.answered()
			silent, next = 0, min(2*next, longest)
		default:
			silent, next = silent+1, silence
		}
	}
	return true
}

// body is the body of an answer. It is watched until it is closed.
type body struct {
	io.ReadCloser
	arrived atomic.Bool // something, since hangs looked
	ctx     context.Context
	cancel  context.CancelCauseFunc
	watch   sync.WaitGroup
	waits   *waits
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.arrived.Store(true)
		b.waits.over()
	}
	cause := context.Cause(b.ctx)
	switch { // after UNAVAILABLE, a watch goes on at another manager
	case err == nil || errors.Is(err, io.EOF):
	case errors.Is(cause, ErrSilent):
		err = connect.NewError(connect.CodeUnavailable, cause)
	case cause == nil: // the manager was killed, or the network failed
		err = connect.NewError(connect.CodeUnavailable, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// end ends the request, and waits for the end of the watch.
func (b *body) end() {
	b.cancel(nil)
	b.watch.Wait()
}

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
)

// errSilent ends a request to a manager that hangs: frozen, or cut off. Its connection may
// stay open for ever.
var errSilent = errors.New("the manager does not answer any more, and may or may not carry the call out")

// send sends a request to one manager, until it answers or answers no probe either.
func (t *leaderTransport) send(r *http.Request, at *url.URL) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	watching, answered := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		if t.hangs(watching, at) {
			cancel(fmt.Errorf("%s: %w", at.Host, errSilent))
		}
	})
	res, err := t.base.RoundTrip(t.addressed(ctx, r, at))
	answered()
	watch.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		if err == nil { // it came too late
			_ = res.Body.Close()
		}
		err = cause
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	res.Body = &body{res.Body, cancel}
	return res, nil
}

// hangs probes a manager until ctx ends, and returns true when it answers no more. A manager
// that answers probes is asked ever less often: thousands of nodes may watch it.
func (t *leaderTransport) hangs(ctx context.Context, m *url.URL) bool {
	next := silence
	for silent := 0; silent < silentProbes; {
		if !pause(ctx, next) {
			return false
		}
		probing, cancel := context.WithTimeout(ctx, probeTimeout)
		_, err := t.probe(probing, m)
		cancel()
		var says refusal
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil || errors.As(err, &says):
			silent, next = 0, min(2*next, longestSilence)
		default:
			silent, next = silent+1, silence
		}
	}
	return true
}

// body ends the context of a request when its answer has been read.
type body struct {
	io.ReadCloser
	end context.CancelCauseFunc
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}

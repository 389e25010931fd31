package web

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// maxOutcomes bounds the forms whose answers are remembered; a double click needs a
	// second, a reload some minutes.
	maxOutcomes = 1024
	// actTimeout bounds an action, which outlives the request that brought its form: a
	// browser drops the first of two requests.
	actTimeout = 30 * time.Second
)

var errNoOutcome = errors.New("the action failed in the manager")

// outcome is the answer to a form that changes the pool.
type outcome struct {
	done         chan struct{} // closed after the fields below are set
	notice, next string
	err          error
}

// outcomes remembers the answers to forms, so that a form that arrives twice, by a
// double click or a reload, takes effect once and is answered twice. Leases and
// replacements also have the request ID in the API: for them this holds across managers.
type outcomes struct {
	mu    sync.Mutex // guards the fields below
	known map[string]*outcome
	order []string // the keys of known, oldest first
}

// of returns the outcome of a request. It carries the action out if the request has not
// arrived before, and otherwise waits for the first one. An error is not remembered: the
// same form can be sent again.
func (o *outcomes) of(ctx context.Context, request string, carryOut func(context.Context) (notice, next string, err error)) (*outcome, error) {
	o.mu.Lock()
	out := o.known[request]
	first := out == nil
	if first {
		out = &outcome{done: make(chan struct{})}
		o.addLocked(request, out)
	}
	o.mu.Unlock()
	if !first {
		select {
		case <-out.done:
			return out, out.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	out.err = errNoOutcome // in case carryOut panics, which net/http recovers
	defer func() {
		if out.err != nil {
			o.forget(request, out)
		}
		close(out.done)
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), actTimeout)
	defer cancel()
	out.notice, out.next, out.err = carryOut(ctx)
	return out, out.err
}

func (o *outcomes) addLocked(request string, out *outcome) {
	if len(o.order) == maxOutcomes {
		delete(o.known, o.order[0])
		o.order = append(o.order[:0], o.order[1:]...)
	}
	o.known[request] = out
	o.order = append(o.order, request)
}

func (o *outcomes) forget(request string, out *outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known[request] == out {
		delete(o.known, request)
		// The form may come again: an old entry would then remove the new outcome early.
		o.order = slices.DeleteFunc(o.order, func(r string) bool { return r == request })
	}
}

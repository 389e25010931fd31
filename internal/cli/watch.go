package cli

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// rewatchPause is the time before a watch that the manager ended is opened again.
const rewatchPause = 100 * time.Millisecond

// rewatchTime is how long a command that follows the pool waits for a manager that does not
// answer. After rewatchSilence it says so.
const (
	rewatchTime    = time.Minute
	rewatchSilence = time.Second
)

// errWatched ends eventWatch.follow.
var errWatched = errors.New("watched")

// eventWatch follows the events of the pool. A manager ends its watches when another one
// leads, or when it stops: the watch then goes on from its revision at the next leader.
type eventWatch struct {
	api    poolAPI
	says   *notices
	next   *dxpuv1.WatchEventsRequest // continues the watch
	stream *connect.ServerStreamForClient[dxpuv1.WatchEventsResponse]
}

// openWatch opens a watch, which misses no event that happens after it returns.
func openWatch(ctx context.Context, api poolAPI, says *notices, r *dxpuv1.WatchEventsRequest) (*eventWatch, error) {
	w := &eventWatch{api: api, says: says, next: r}
	return w, w.open(ctx)
}

// awaitWatch is openWatch for a command that has begun something already: it waits for a
// manager that does not answer, like a watch that breaks later.
func awaitWatch(ctx context.Context, api poolAPI, says *notices, r *dxpuv1.WatchEventsRequest) (*eventWatch, error) {
	w := &eventWatch{api: api, says: says, next: r}
	return w, untilAnswered(ctx, says, w.open)
}

// open opens the stream. Its first message says that it is open.
func (w *eventWatch) open(ctx context.Context) (err error) {
	if w.stream, err = w.api.WatchEvents(ctx, connect.NewRequest(w.next)); err != nil {
		return err
	}
	if w.stream.Receive() {
		w.seen()
		return nil
	}
	err = w.stream.Err()
	w.close()
	if err == nil {
		err = connect.NewError(connect.CodeUnavailable, errors.New("the manager closed the watch"))
	}
	return err
}

func (w *eventWatch) close() { _ = w.stream.Close() }

// seen notes the revision of the last message.
func (w *eventWatch) seen() {
	w.next = &dxpuv1.WatchEventsRequest{AfterRevision: w.stream.Msg().Revision, Filter: w.next.Filter}
}

// follow calls each for every event, and with nil when the watch has begun or begun
// again, until the context ends or each returns an error. each returns errWatched when
// it has seen enough; follow then returns nil. An UNAVAILABLE of each is that of a
// manager that leads no more.
func (w *eventWatch) follow(ctx context.Context, each func(*dxpuv1.Event) error) error {
	for {
		err := each(nil)
		for err == nil && w.stream.Receive() {
			w.seen()
			if e := w.stream.Msg().Event; e != nil {
				err = each(e)
			}
		}
		if err == nil {
			err = w.stream.Err()
		}
		w.close()
		switch {
		case errors.Is(err, errWatched):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && connect.CodeOf(err) != connect.CodeUnavailable:
			return err
		}
		select {
		case <-time.After(rewatchPause):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := untilAnswered(ctx, w.says, w.open); err != nil {
			return err
		}
	}
}

// connectionText describes the error of a call that found no manager.
func connectionText(err error) string {
	var ce *connect.Error
	errors.As(err, &ce)
	return errorText(err, ce)
}

// untilAnswered calls a function that calls the manager, again and again while the manager
// does not answer (UNAVAILABLE), as one that starts again, for rewatchTime at most.
func untilAnswered(ctx context.Context, says *notices, do func(context.Context) error) error {
	begun := time.Now()
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := do(ctx)
		if err != nil && connect.CodeOf(err) != connect.CodeUnavailable {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(rewatchTime), backoff.WithBackOff(&backoff.ExponentialBackOff{
		InitialInterval: rewatchPause, MaxInterval: time.Second, Multiplier: 2, RandomizationFactor: 0.5,
	}), backoff.WithNotify(func(err error, next time.Duration) {
		if time.Since(begun)+next > rewatchSilence {
			says.told(connectionText(err))
		}
	}))
	if err == nil {
		says.told("")
	}
	return err
}

package vfiouser

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff says how long Redial waits between attempts: Min at first, twice as
// long after each failure, up to Max, each time up to half as much more.
type Backoff struct {
	Min, Max time.Duration // 0 means 50 ms and 5 s
}

// Redial dials until it works, calls session with the client, and begins again
// when the connection breaks. It returns what session returned once that ended
// by itself, or ctx's error. The context given to session ends with the
// connection; the client is closed when session returns.
func Redial(ctx context.Context, path string, cfg ClientConfig, b Backoff, session func(context.Context, *Client) error) error {
	b.Min, b.Max = orDefault(b.Min, 50*time.Millisecond), orDefault(b.Max, 5*time.Second)
	for wait := b.Min; ; {
		c, err := Dial(ctx, path, cfg)
		if err == nil {
			broken, err := runSession(ctx, c, session)
			if !broken || ctx.Err() != nil {
				return err
			}
			wait = b.Min
		} else if cfg.Logger != nil {
			cfg.Logger.Debug("vfio-user dial failed", "path", path, "err", err)
		}
		pause(ctx, wait+rand.N(wait/2+1))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		wait = min(2*wait, b.Max)
	}
}

// runSession reports whether the connection broke before the session ended.
func runSession(ctx context.Context, c *Client, session func(context.Context, *Client) error) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := make(chan struct{})
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		select {
		case <-c.Done():
			cancel(c.Err())
		case <-stop:
		}
	}()
	err := session(ctx, c)
	broken := c.Err() != nil
	close(stop)
	<-watch
	_ = c.Close()
	return broken, err
}

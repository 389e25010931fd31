package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/agent/simulated"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// poolClient makes the calls of the users of the pool.
type poolClient struct {
	url  string
	http *http.Client
	api  dxpuv1connect.PoolServiceClient
}

func newPoolClient(url string, atOnce int) *poolClient {
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce}}
	return &poolClient{url, c, dxpuv1connect.NewPoolServiceClient(c, url)}
}

// whole returns a function that reports whether every node is connected and the
// number of attached leases is as given.
func (s *Spec) whole(leases int) func(*dxpuv1.Pool) bool {
	return func(p *dxpuv1.Pool) bool {
		return int(p.HostsConnected) == s.Hosts && int(p.BoxesConnected) == s.Boxes && int(p.Gpus) == s.gpus() &&
			int(p.GpusBound) == leases && int(p.GpusFree) == s.gpus()-leases
	}
}

// await polls the pool until wanted returns true.
func (c *poolClient) await(ctx context.Context, wanted func(*dxpuv1.Pool) bool) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	var last *dxpuv1.Pool
	for {
		res, err := c.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		if err == nil {
			if last = res.Msg.Pool; wanted(last) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the last answer: %v, %v", context.Cause(ctx), last, err)
		case <-again.C:
		}
	}
}

// lease makes a lease of one GPU of a model.
func (c *poolClient) lease(ctx context.Context, model string) (string, error) {
	res, err := c.api.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{
		Spec: &dxpuv1.LeaseSpec{Count: 1, Model: model},
	}))
	if err != nil {
		return "", err
	}
	return res.Msg.Lease.Id, nil
}

// watched counts the leases that reach a state.
type watched struct {
	mu     sync.Mutex
	count  int
	failed error
	news   chan struct{} // closed and replaced
}

// watch counts until ctx ends. No event after its return is missed.
func (c *poolClient) watch(ctx context.Context, state dxpuv1.EventType) (*watched, error) {
	stream, err := c.api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{Filter: &dxpuv1.EventFilter{
		Types: []dxpuv1.EventType{state, dxpuv1.EventType_EVENT_TYPE_LEASE_FAILED},
	}}))
	if err != nil {
		return nil, err
	}
	if !stream.Receive() { // the first message: the watch has begun
		return nil, errors.Join(stream.Err(), stream.Close())
	}
	w := &watched{news: make(chan struct{})}
	go func() { // ends with ctx
		for stream.Receive() {
			if e := stream.Msg().Event; e != nil && e.Type == state {
				w.add(1, nil)
			} else if e != nil {
				w.add(0, errors.New(e.Message))
			}
		}
		w.add(0, errors.Join(errors.New("the watch of events ended"), stream.Err()))
		_ = stream.Close()
	}()
	return w, nil
}

func (w *watched) add(n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count += n
	if w.failed == nil {
		w.failed = err
	}
	close(w.news)
	w.news = make(chan struct{})
}

func (w *watched) await(ctx context.Context, want int) error {
	for {
		w.mu.Lock()
		count, failed, news := w.count, w.failed, w.news
		w.mu.Unlock()
		if count >= want || failed != nil {
			return failed
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d: %w", count, want, context.Cause(ctx))
		case <-news:
		}
	}
}

// each calls do for every number below n, Spec.AtOnce at a time.
func (c *run) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for k := range c.spec.AtOnce {
		g.Go(func() error {
			for i := k; i < n; i += c.spec.AtOnce {
				if err := do(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (c *run) attach(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.pool.watch(ctx, dxpuv1.EventType_EVENT_TYPE_LEASE_ACTIVE)
	if err != nil {
		return err
	}
	c.leases = make([]string, c.spec.Leases)
	took := make([]time.Duration, c.spec.Leases)
	err = c.work(c.spec.Leases, &c.report.Attach, func() error {
		err := c.work(c.spec.Leases, &c.report.Create, func() error {
			return c.each(ctx, c.spec.Leases, func(ctx context.Context, i int) (err error) {
				at := time.Now()
				c.leases[i], err = c.pool.lease(ctx, simulated.Model(c.spec.Boxes, i))
				took[i] = time.Since(at)
				c.spec.Progress("attach: %d of %d leases", i, c.spec.Leases)
				return err
			})
		})
		if err != nil {
			return err
		}
		return w.await(ctx, c.spec.Leases)
	})
	c.latency(fmt.Sprintf("CreateLease, %d callers at the same time", c.spec.AtOnce), took)
	return err
}

func (c *run) detach(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.pool.watch(ctx, dxpuv1.EventType_EVENT_TYPE_LEASE_RELEASED)
	if err != nil {
		return err
	}
	going := c.leases[:len(c.leases)-c.spec.stay()]
	return c.work(len(going), &c.report.Detach, func() error {
		err := c.each(ctx, len(going), func(ctx context.Context, i int) error {
			_, err := c.pool.api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: going[i]}))
			return err
		})
		if err != nil {
			return err
		}
		return w.await(ctx, len(going))
	})
}

func (c *run) latency(name string, took []time.Duration) {
	c.report.Calls = append(c.report.Calls, Latency{name, len(took), quantile.Of(took, 0.5), quantile.Of(took, 0.99)})
}

// calls measures sequential calls.
func (c *run) calls(ctx context.Context) error {
	count := min(200, c.spec.Leases)
	var made []string
	for _, call := range []struct {
		name string
		do   func() error
	}{
		{"CreateLease, one after the other", func() error {
			id, err := c.pool.lease(ctx, simulated.Model(c.spec.Boxes, len(made)))
			made = append(made, id)
			return err
		}},
		{"ExplainLease of a request", func() error {
			_, err := c.pool.api.ExplainLease(ctx, connect.NewRequest(&dxpuv1.ExplainLeaseRequest{
				What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: &dxpuv1.LeaseSpec{Count: 8, SameBox: dxpuv1.Preference_PREFERENCE_REQUIRED}},
			}))
			return err
		}},
		{"ListHosts, 100 of a page", pages(ctx, func(ctx context.Context, token string) (string, error) {
			r, err := c.pool.api.ListHosts(ctx, connect.NewRequest(&dxpuv1.ListHostsRequest{PageToken: token}))
			return r.Msg.GetNextPageToken(), err
		})},
		{"ListBoxes, 100 of a page", pages(ctx, func(ctx context.Context, token string) (string, error) {
			r, err := c.pool.api.ListBoxes(ctx, connect.NewRequest(&dxpuv1.ListBoxesRequest{PageToken: token}))
			return r.Msg.GetNextPageToken(), err
		})},
		{"ListGPUs, 100 of a page", pages(ctx, func(ctx context.Context, token string) (string, error) {
			r, err := c.pool.api.ListGPUs(ctx, connect.NewRequest(&dxpuv1.ListGPUsRequest{PageToken: token}))
			return r.Msg.GetNextPageToken(), err
		})},
		{"ListLeases, 100 of a page", pages(ctx, func(ctx context.Context, token string) (string, error) {
			r, err := c.pool.api.ListLeases(ctx, connect.NewRequest(&dxpuv1.ListLeasesRequest{PageToken: token}))
			return r.Msg.GetNextPageToken(), err
		})},
		{"ListEvents, 100 newest", func() error {
			_, err := c.pool.api.ListEvents(ctx, connect.NewRequest(&dxpuv1.ListEventsRequest{NewestFirst: true}))
			return err
		}},
		{"GetPool", func() error {
			_, err := c.pool.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
			return err
		}},
		{"GET /metrics", func() error { return c.pool.get(ctx, "/metrics") }},
		{"DeleteLease, one after the other", func() error {
			id := made[0]
			made = made[1:]
			_, err := c.pool.api.DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id}))
			return err
		}},
	} {
		took := make([]time.Duration, count)
		for i := range took {
			at := time.Now()
			if err := call.do(); err != nil {
				return fmt.Errorf("%s: %w", call.name, err)
			}
			took[i] = time.Since(at)
			c.spec.Progress("calls: %s: %d of %d", call.name, i, count)
		}
		c.latency(call.name, took)
	}
	return c.pool.await(ctx, c.spec.whole(0))
}

// pages returns a function that gets the next page of a list, and the first one after
// the last.
func pages(ctx context.Context, list func(context.Context, string) (next string, err error)) func() error {
	token := ""
	return func() (err error) {
		token, err = list(ctx, token)
		return err
	}
}

func (c *poolClient) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		return errors.Join(fmt.Errorf("%s: %s", path, res.Status), err)
	}
	return nil
}

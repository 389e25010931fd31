package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// startingPool is a pool whose manager starts at a moment, and refuses watches before. A
// watch stays open.
type startingPool struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
	starts time.Time
	reads  time.Time // when the manager answers for leases
}

// errStarting is what the manager answers before it has started.
var errStarting = connect.NewError(connect.CodeUnavailable, errors.New("the manager starts"))

func (p *startingPool) WatchEvents(ctx context.Context, _ *connect.Request[dxpuv1.WatchEventsRequest], s *connect.ServerStream[dxpuv1.WatchEventsResponse]) error {
	if time.Now().Before(p.starts) {
		return errStarting
	}
	err := s.Send(&dxpuv1.WatchEventsResponse{Revision: 7})
	<-ctx.Done()
	return err
}

func (p *startingPool) GetLease(context.Context, *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	if time.Now().Before(p.reads) {
		return nil, errStarting
	}
	return connect.NewResponse(&dxpuv1.GetLeaseResponse{Lease: &dxpuv1.Lease{Id: "l-1", State: dxpuv1.LeaseState_LEASE_STATE_ACTIVE}}), nil
}

// api returns the pool without a network, for which the clock of synctest would not wait.
func (p *startingPool) api() poolAPI {
	_, h := dxpuv1connect.NewPoolServiceHandler(p)
	return dxpuv1connect.NewPoolServiceClient(&http.Client{Transport: inProcess{h}}, "http://pool")
}

// inProcess sends requests to a handler.
type inProcess struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (h inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	body, w := io.Pipe()
	a := &answer{header: http.Header{}, body: w, begun: make(chan int, 1)}
	go func() {
		h.ServeHTTP(a, r.WithContext(ctx))
		a.WriteHeader(http.StatusOK)
		_ = w.Close()
	}()
	return &http.Response{StatusCode: <-a.begun, Header: a.header, Body: closed{body, cancel}, ProtoMajor: 1, ProtoMinor: 1, Request: r}, nil
}

// closed is a body whose handler ends when the caller reads no more.
type closed struct {
	*io.PipeReader
	end func()
}

func (c closed) Close() error {
	c.end()
	return c.PipeReader.Close()
}

// answer is an http.ResponseWriter.
type answer struct {
	header http.Header
	body   io.Writer
	begun  chan int // has the status
	once   sync.Once
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) { a.once.Do(func() { a.begun <- status }) }

func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

func (a *answer) Write(p []byte) (int, error) {
	a.Flush()
	return a.body.Write(p)
}

// The lease of a wait exists: a manager that is away when the watch begins is waited for,
// like one that leaves later.
func TestWaitBeginsWithoutAManager(t *testing.T) {
	for _, c := range []struct {
		away time.Duration
		says string
	}{
		{rewatchPause, ""},
		{20 * time.Second, "waiting: the manager is unavailable: the manager starts\nthe manager answers\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			p := &startingPool{starts: time.Now().Add(c.away)}
			w := &leaseWait{
				api: p.api(), says: &notices{out: &out}, out: &strings.Builder{}, limit: time.Hour,
				done: hasState(dxpuv1.LeaseState_LEASE_STATE_ACTIVE),
			}
			l, err := w.run(t.Context(), &dxpuv1.Lease{Id: "l-1"})
			if err != nil || l.GetState() != dxpuv1.LeaseState_LEASE_STATE_ACTIVE || out.String() != c.says {
				t.Errorf("away for %s: %v, %v, printed %q", c.away, l, err, out.String())
			}
		})
	}
}

// A wait whose lease cannot be read, although its watch is open, says that it waits.
func TestWaitSaysThatTheLeaseCannotBeRead(t *testing.T) {
	for _, c := range []struct {
		limit time.Duration
		err   string
		says  string
	}{
		{time.Hour, "", "waiting: the manager is unavailable: the manager starts\nthe manager answers\n"},
		{10 * time.Second, "timeout: after 10s there is no answer: the manager is unavailable: the manager starts", "waiting: the manager is unavailable: the manager starts\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			p := &startingPool{reads: time.Now().Add(20 * time.Second)}
			w := &leaseWait{
				api: p.api(), says: &notices{out: &out}, out: &strings.Builder{}, limit: c.limit,
				done: hasState(dxpuv1.LeaseState_LEASE_STATE_ACTIVE),
			}
			_, err := w.run(t.Context(), &dxpuv1.Lease{Id: "l-1"})
			if err == nil && c.err != "" || err != nil && err.Error() != c.err || out.String() != c.says {
				t.Errorf("limit %s: %v, printed %q", c.limit, err, out.String())
			}
		})
	}
}

// A manager that stays away ends the wait after a minute, and a limit ends it before.
func TestWaitEndsWhenTheManagerStaysAway(t *testing.T) {
	for _, c := range []struct {
		limit time.Duration
		code  int
		says  string
	}{
		{time.Hour, exitFailure, "the manager starts"},
		{10 * time.Second, exitTimeout, "after 10s there is no answer: the manager is unavailable: the manager starts"},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			p := &startingPool{starts: begun.Add(time.Hour)}
			w := &leaseWait{api: p.api(), says: &notices{out: &strings.Builder{}}, out: &strings.Builder{}, limit: c.limit}
			_, err := w.run(t.Context(), &dxpuv1.Lease{Id: "l-1"})
			if exitCode(err) != c.code || !strings.Contains(err.Error(), c.says) || time.Since(begun) > min(c.limit, rewatchTime) {
				t.Errorf("limit %s: %v after %s", c.limit, err, time.Since(begun))
			}
		})
	}
}

// A list that cannot be fetched after a change is fetched as soon as the manager answers,
// although the watch goes on, and the command says that it waits.
func TestOnChangeFetchesAgain(t *testing.T) {
	for _, c := range []struct {
		away time.Duration
		says string
	}{
		{rewatchPause, ""},
		{20 * time.Second, "waiting: the manager is unavailable: the manager starts\nthe manager answers\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			begun, looks := time.Now(), 0
			err := onChange(ctx, (&startingPool{}).api(), &notices{out: &out}, func(context.Context) error {
				looks++
				if time.Since(begun) < c.away {
					return errStarting
				}
				stop()
				return nil
			})
			if !errors.Is(err, context.Canceled) || looks < 2 || time.Since(begun) > c.away+2*time.Second || out.String() != c.says {
				t.Errorf("away for %s: %d looks, %v after %s, printed %q", c.away, looks, err, time.Since(begun), out.String())
			}
		})
	}
}

// A list that stays away ends the command with the reason.
func TestOnChangeEndsWithoutAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := onChange(t.Context(), (&startingPool{}).api(), nil, func(context.Context) error { return errStarting })
		if connect.CodeOf(err) != connect.CodeUnavailable || time.Since(begun) > rewatchTime {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

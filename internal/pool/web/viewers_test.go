package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// livePage stands for a browser with a live page: it reads the event stream and, as
// the script does, fetches the page again after a change.
type livePage struct {
	header  http.Header
	begun   *sync.WaitGroup
	once    sync.Once
	changed chan string // revision of the newest change
}

func (p *livePage) Header() http.Header { return p.header }
func (p *livePage) WriteHeader(int)     {}
func (p *livePage) Flush()              {}

func (p *livePage) Write(b []byte) (int, error) {
	p.once.Do(p.begun.Done)
	if _, rest, ok := strings.Cut(string(b), "id: "); ok && strings.Contains(rest, "event: change") {
		revision, _, _ := strings.Cut(rest, "\n")
		select {
		case <-p.changed: // replaced by the newer one
		default:
		}
		p.changed <- revision
	}
	return len(b), nil
}

// discard is a ResponseWriter that drops the page.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) WriteHeader(int)             {}
func (d discard) Write(b []byte) (int, error) { return len(b), nil }

// follow reads the stream and fetches pages until ctx ends.
func (p *livePage) follow(ctx context.Context, h http.Handler, fetched *atomic.Int64, all *sync.WaitGroup) {
	request := func(path string) *http.Request {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
		r.RemoteAddr, r.Host = "127.0.0.1:9", "127.0.0.1"
		return r
	}
	all.Go(func() { h.ServeHTTP(p, request("/ui/stream")) })
	all.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case revision := <-p.changed:
				r := request("/")
				r.Header.Set(afterHeader, revision)
				h.ServeHTTP(discard{http.Header{}}, r)
				fetched.Add(1)
				wait(ctx, time.Second) // the script's own interval
			}
		}
	})
}

// BenchmarkCallsWithViewers measures calls that change the pool while viewers
// watch its page of 512 GPUs.
func BenchmarkCallsWithViewers(b *testing.B) {
	for _, viewers := range []int{0, 1, 1000} {
		b.Run(fmt.Sprint(viewers), func(b *testing.B) {
			w := idleWorld(b, 64, 22)
			ctx, cancel := context.WithCancel(b.Context())
			var all, begun sync.WaitGroup
			var fetched atomic.Int64
			for range viewers {
				begun.Add(1)
				p := &livePage{header: http.Header{}, begun: &begun, changed: make(chan string, 1)}
				p.follow(ctx, w.pages, &fetched, &all)
			}
			begun.Wait()
			target := &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "box-01/0"}}
			for b.Loop() {
				w.cordon(target, "test")
				if _, err := w.pool.Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: target})); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(fetched.Load())/b.Elapsed().Seconds(), "pages/s")
			cancel()
			all.Wait()
		})
	}
}

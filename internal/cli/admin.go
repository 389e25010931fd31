//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/httpserver"
)

// adminOptions are the flags of a daemon's admin port.
type adminOptions struct {
	listen, urlFile string
	profiling       bool
}

// register adds the flags; paths lists what the daemon serves there.
func (o *adminOptions) register(f *pflag.FlagSet, paths string) {
	f.StringVar(&o.listen, "admin-listen", "", "address of "+paths+" (default: none)")
	f.StringVar(&o.urlFile, "admin-url-file", "", "file to which the daemon writes the URL of --admin-listen when it serves")
	f.BoolVar(&o.profiling, "allow-profiling", false, "let programs on this machine read profiles of the daemon below /debug/pprof/ of --admin-listen")
}

// check checks the flags.
func (o *adminOptions) check() error {
	if o.listen == "" {
		return nil
	}
	return checkAddress("--admin-listen", o.listen)
}

// open opens the listener, so that an error appears at the start, and returns a function
// that serves on it until its context ends. Without --admin-listen it does nothing.
//
// The server has the bounds of the manager's, for its callers need no credential either.
func (o *adminOptions) open(ctx context.Context, mux *http.ServeMux, log *slog.Logger) (func(context.Context) error, error) {
	if o.listen == "" {
		if o.profiling {
			return nil, usage(withHint(errors.New("--allow-profiling needs --admin-listen"), "profiles are at that address, for example 127.0.0.1:9100"))
		}
		return func(context.Context) error { return nil }, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return nil, withHint(fmt.Errorf("--admin-listen: %w", err), "choose another address, or port 0 for any free port")
	}
	if o.urlFile != "" {
		if err := atomicfile.Output(o.urlFile, []byte("http://"+l.Addr().String()+"\n"), 0o644); err != nil {
			return nil, errors.Join(fmt.Errorf("--admin-url-file: %w", err), l.Close())
		}
	}
	mux.Handle("GET /debug/pprof/", agent.LocalHandler(o.profiling,
		"a profile shows what the daemon does and slows it down: start it with --allow-profiling to allow it", profile))
	srv := httpserver.New(http.NewCrossOriginProtection().Handler(mux), httpserver.Admin, log)
	l = httpserver.Bound(l, httpserver.Admin, log)
	return func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error {
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("admin: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			return srv.Close()
		})
		return g.Wait()
	}, nil
}

// profile serves the profiles of the Go runtime. The command line is not among them: a
// wrapper may have put a secret there.
func profile(w http.ResponseWriter, r *http.Request) {
	switch strings.TrimPrefix(r.URL.Path, "/debug/pprof/") {
	case "profile":
		pprof.Profile(w, r)
	case "trace":
		pprof.Trace(w, r)
	case "cmdline", "symbol":
		http.NotFound(w, r)
	default:
		pprof.Index(w, r)
	}
}

// buildInfo is the metric with the version of this program.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dxpu_build_info", Help: "1; the labels have the version of this program.",
		ConstLabels: prometheus.Labels{"version": version(), "goversion": runtime.Version()},
	})
	g.Set(1)
	return g
}

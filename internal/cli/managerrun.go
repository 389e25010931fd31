//go:build linux

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/httpserver"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// managerRun is what a manager's process has open.
type managerRun struct {
	*managerOptions
	out      io.Writer
	config   manager.Config // of which managerOptions.cfg is the part that flags set
	newToken bool           // the join token is new and has to be printed

	listener net.Listener
	url      string
	tls      *tls.Config
	manager  *manager.Manager
	api      http.Handler
	status   func(context.Context) error // serves --admin-listen until its context ends
	leads    chan struct{}               // closed when the manager may serve
	closers  []io.Closer                 // the last one is closed first
}

func (o *managerOptions) run(cmd *cobra.Command) (err error) {
	if err := o.check(); err != nil {
		return usage(err)
	}
	r := &managerRun{managerOptions: o, out: cmd.OutOrStdout(), leads: make(chan struct{})}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.configure(cmd); err != nil {
		return err
	}
	if err := r.open(cmd.Context()); err != nil {
		return err
	}
	return withTracing(cmd.Context(), "dxpu-manager", r.url, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return r.serve(ctx) })
		g.Go(func() error { return r.status(ctx) })
		g.Go(func() error { return tryProvider(ctx, r.config.SignIn, r.config.Log) })
		return g.Wait()
	})
}

// configure makes the configuration of the manager from the flags.
func (r *managerRun) configure(cmd *cobra.Command) (err error) {
	cfg := r.cfg
	cfg.Reserve = r.reserve
	if cfg.CallRate == 0 {
		cfg.CallRate = -1 // no limit; 0 would be the default
	}
	if cfg.HostTimeout == 0 {
		cfg.HostTimeout = -1 // never; 0 would be the default
	}
	if err := r.signIn.apply(&cfg); err != nil {
		return usage(err)
	}
	cfg.Version = version()
	if r.interference != "" {
		if cfg.Interference, err = readInterference(r.interference); err != nil {
			return fmt.Errorf("--interference: %w", err)
		}
	}
	if r.testingClock != "" {
		cfg.Now = wrongClock(r.testingClock)
	}
	cfg.Log = r.log.logger(cmd)
	if r.dataDir != "" {
		if err := os.MkdirAll(r.dataDir, 0o700); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
	}
	if cfg.JoinToken, r.newToken, err = r.joinToken(cfg.Log); err != nil {
		return err
	}
	cfg.JoinTokens = r.joinTokens
	if cfg.Open, err = r.openness(cmd, r.listen); err != nil {
		return usage(err)
	}
	r.config = cfg
	return nil
}

// open opens the listeners and the store, and makes the manager.
func (r *managerRun) open(ctx context.Context) (err error) {
	if r.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", r.listen); err != nil {
		return withHint(fmt.Errorf("--listen: %w", err), "choose another address, or port 0 for any free port")
	}
	r.closers = append(r.closers, r.listener)
	r.url = r.scheme() + "://" + r.listener.Addr().String()
	echo, err := manager.NewEcho()
	if err != nil {
		return err
	}
	r.closers = append(r.closers, echo)
	r.config.Echo = echo.Send
	store, err := r.storeOptions.open(ctx, r.url, r.config.Log)
	if err != nil {
		return err
	}
	if store != nil {
		r.config.Store = store
		r.closers = append(r.closers, store)
	}
	r.watchLead()
	if r.manager, err = manager.New(ctx, r.config); err != nil {
		return err
	}
	if r.tls, err = r.tlsConfig(r.manager, r.listener.Addr()); err != nil {
		return err
	}
	r.api = r.manager.Handler()
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", r.manager.MetricsHandler())
	for _, path := range []string{"GET /healthz", "GET /readyz"} {
		mux.Handle(path, r.api)
	}
	r.status, err = r.admin.open(ctx, mux, r.config.Log)
	return err
}

// watchLead makes the manager serve once it leads, or at once if another one may lead.
func (r *managerRun) watchLead() {
	serves := sync.OnceFunc(func() { close(r.leads) })
	r.config.OnLead = func(ctx context.Context) error {
		if err := r.publish(ctx, r.out, r.manager, r.config.Open); err != nil {
			return err
		}
		serves()
		return nil
	}
	if r.https() && r.dataDir != "" {
		r.config.OnRotate = func(pem []byte) {
			if err := r.writeAuthority(pem); err != nil {
				r.config.Log.Error("the file of the authority stays as it was", "err", err)
			}
		}
	}
	if r.shared() {
		serves()
	}
}

// announce tells that the manager serves.
func (r *managerRun) announce() error {
	fmt.Fprintf(r.out, "The manager serves at %s\n", r.url)
	if r.newToken {
		fmt.Fprintf(r.out, "Join token for nodes: export DXPU_JOIN_TOKEN=%s\n", r.config.JoinToken)
	}
	notifyReady()
	if r.urlFile == "" {
		return nil
	}
	if err := atomicfile.Output(r.urlFile, []byte(r.url+"\n"), 0o644); err != nil {
		return fmt.Errorf("--url-file: %w", err)
	}
	return nil
}

// close closes what open has opened. The server has closed the listener before, if it served.
func (r *managerRun) close() (err error) {
	for ; len(r.closers) > 0; r.closers = r.closers[:len(r.closers)-1] {
		if failed := r.closers[len(r.closers)-1].Close(); !errors.Is(failed, net.ErrClosed) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// serve serves the manager until ctx ends: HTTP/1.1 and HTTP/2, with TLS if it is asked for.
// HTTP/2 works without TLS, too, for gRPC.
func (r *managerRun) serve(ctx context.Context) error {
	srv := httpserver.New(r.handler(r.api), httpserver.API, r.config.Log)
	srv.TLSConfig = r.tls
	l := httpserver.Bound(r.listener, httpserver.API, r.config.Log)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return endOf(r.manager.Run(ctx)) })
	g.Go(func() error {
		select {
		case <-r.leads:
			return r.announce()
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		var err error
		if r.tls != nil {
			err = srv.ServeTLS(l, "", "")
		} else {
			err = srv.Serve(l)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve: %w", err)
	})
	g.Go(func() error {
		<-ctx.Done()
		// Run closes the streams when ctx ends.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil {
			_ = srv.Close()
		}
		return nil
	})
	return g.Wait()
}

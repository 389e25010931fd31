package cli

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// proxyOptions are the flags that "dxpu host" and "dxpu box" have in common.
type proxyOptions struct {
	conn      *connection
	name      string
	tokenFile string
	caHash    string
	stateDir  string
	listen    []string
	faults    []string
	noOffload bool
	polling   reader.Polling
	rack      string
	labels    map[string]string
	admin     string
	adminFile string
	capture   bool
	logLevel  string
}

func (o *proxyOptions) register(cmd *cobra.Command) {
	o.conn.registerManager(cmd)
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the node in the pool (default: the host name)")
	f.StringVar(&o.tokenFile, "join-token-file", "", "file of the token to enrol with (default: $DXPU_JOIN_TOKEN)")
	f.StringVar(&o.caHash, "ca-hash", "", "hash of the manager's authority, as the manager prints it, instead of --ca-file")
	f.StringVar(&o.stateDir, "state-dir", "", "directory that keeps the node's identity and what it should have (default: nothing is kept)")
	f.StringArrayVar(&o.listen, "listen", []string{"127.0.0.1:0"}, "UDP address of a path; once for each network")
	f.StringArrayVar(&o.faults, "fault", nil, `for tests: what to do to outgoing datagrams of a path, like "loss=1%,delay=10us" (docs/faults.md); once for each --listen`)
	f.BoolVar(&o.noOffload, "no-offload", false, "do without UDP segmentation and receive offload")
	pollingFlags(f, &o.polling)
	f.StringVar(&o.rack, "rack", "", "where the node stands")
	f.StringToStringVar(&o.labels, "label", nil, "labels of the node, KEY=VALUE")
	f.StringVar(&o.admin, "admin-listen", "", "address of /metrics, /healthz, /readyz, /slots and /capture (default: none)")
	f.BoolVar(&o.capture, "allow-capture", false, `let "dxpu capture" on this machine see the TLPs of the bindings, decrypted`)
	f.StringVar(&o.adminFile, "admin-url-file", "", "write the URL of --admin-listen here once it serves")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
}

// pollingFlags are those of who waits for datagrams.
func pollingFlags(f *pflag.FlagSet, p *reader.Polling) {
	f.DurationVar(&p.Window, "poll", reader.DefaultWindow, "while register accesses follow each other, look so long for the next message before sleeping, unless others want the processor; 0: never")
	f.DurationVar(&p.Spin, "spin", 0, "look so long before each sleep, on processors that have nothing else to do (default: not at all)")
}

// proxy is a role that the common part runs.
type proxy interface {
	agent.Handler
	prometheus.Collector
	OnChange(func())
	Report() agent.Report
	Run(ctx context.Context) error
}

func (o *proxyOptions) logger(cmd *cobra.Command) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, withHint(fmt.Errorf("--log-level: %q is no level", o.logLevel), "debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level})), nil
}

// fabric opens the sockets of the paths.
func (o *proxyOptions) fabric(log *slog.Logger) (*netio.Fabric, error) {
	if len(o.faults) > len(o.listen) {
		return nil, withHint(errors.New("more --fault than --listen"), "the first --fault is for the first --listen")
	}
	cfg := netio.Config{UDP: udp.Options{NoOffload: o.noOffload}, Polling: o.polling, Logger: log, Restart: func() { restart(log) }}
	for i, addr := range o.listen {
		p := netio.PathConfig{Listen: addr, Seed: randomSeed()}
		if i < len(o.faults) {
			plan, err := fault.Parse(o.faults[i])
			if err != nil {
				return nil, fmt.Errorf("--fault: %w", err)
			}
			p.Fault = plan
		}
		cfg.Paths = append(cfg.Paths, p)
	}
	return netio.Open(cfg)
}

// restart puts a new process of the same command in this one's place, without
// a last word to anybody. Its fault plan begins anew.
func restart(log *slog.Logger) {
	self, err := os.Executable()
	if err == nil {
		log.Info("restarted by the fault plan")
		err = syscall.Exec(self, os.Args, os.Environ())
	}
	log.Error("restart by the fault plan", "err", err)
}

func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// client makes the side that talks to the manager.
func (o *proxyOptions) client(kind dxpuv1.NodeKind, p proxy, log *slog.Logger) (*agent.Agent, error) {
	url, err := o.conn.url()
	if err != nil {
		return nil, err
	}
	var ca []byte
	if o.conn.caFile != "" {
		if ca, err = os.ReadFile(o.conn.caFile); err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
	}
	token := os.Getenv("DXPU_JOIN_TOKEN")
	if o.tokenFile != "" {
		raw, err := os.ReadFile(o.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("--join-token-file: %w", err)
		}
		token = strings.TrimSpace(string(raw))
	}
	name := o.name
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return nil, withHint(fmt.Errorf("host name: %w", err), "give --name")
		}
	}
	return agent.New(agent.Config{
		Manager: url, JoinToken: token, Kind: kind, Name: name, Version: version(),
		StateDir: o.stateDir, CA: ca, CAHash: o.caHash, Log: log,
	}, p)
}

// run runs a proxy until ctx ends.
func (o *proxyOptions) run(ctx context.Context, kind dxpuv1.NodeKind, p proxy, f *netio.Fabric, extra map[string]http.Handler, log *slog.Logger) error {
	service := "dxpu-host"
	if kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		service = "dxpu-box"
	}
	return withTracing(ctx, service, o.name, func(ctx context.Context) error { return o.serve(ctx, kind, p, f, extra, log) })
}

// serve does the work of run. The network goes last: the others still have
// something to say when they end.
func (o *proxyOptions) serve(ctx context.Context, kind dxpuv1.NodeKind, p proxy, f *netio.Fabric, extra map[string]http.Handler, log *slog.Logger) error {
	client, err := o.client(kind, p, log)
	if err != nil {
		return err
	}
	p.OnChange(client.Changed)
	admin, err := o.adminServer(ctx, p, f, client, extra)
	if err != nil {
		return err
	}
	netCtx, stopNet := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNet()
	var network errgroup.Group
	network.Go(func() error { return f.Run(netCtx) })

	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return p.Run(workCtx) })
	work.Go(func() error { return client.Run(workCtx) })
	work.Go(func() error { return admin(workCtx) })
	notifyReady()
	err = work.Wait()
	stopNet()
	return errors.Join(err, network.Wait())
}

// adminServer opens the listener at once, so that a mistake shows at the
// start, and returns what serves on it.
func (o *proxyOptions) adminServer(ctx context.Context, p proxy, f *netio.Fabric, client *agent.Agent, extra map[string]http.Handler) (func(context.Context) error, error) {
	if o.admin == "" {
		return func(context.Context) error { return nil }, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.admin)
	if err != nil {
		return nil, fmt.Errorf("--admin-listen: %w", err)
	}
	if o.adminFile != "" {
		if err := os.WriteFile(o.adminFile, []byte("http://"+l.Addr().String()+"\n"), 0o644); err != nil {
			return nil, errors.Join(fmt.Errorf("--admin-url-file: %w", err), l.Close())
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(p, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !client.Connected() {
			http.Error(w, "no conversation with the manager", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /slots", agent.SlotsHandler(p.Report))
	mux.Handle("GET /capture", agent.CaptureHandler(f, o.capture, "dxpu "+version(), o.name))
	for pattern, h := range extra {
		mux.Handle(pattern, h)
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
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

package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
	"github.com/dxpu-project/dxpu/internal/pool/web"
)

// managerOptions are the flags of "dxpu manager".
type managerOptions struct {
	listen, tokenFile, urlFile string
	logLevel                   string
	testingClock               string
	reserve                    placement.Reserve
	securityOptions
	storeOptions
	cfg manager.Config
}

func newManagerCommand() *cobra.Command {
	o := &managerOptions{}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run the manager that owns the pool",
		Long: `Run the manager: it knows every GPU box and host, allocates GPUs to hosts,
attaches and detaches them, and replaces broken ones from the spares.

With --data-dir the state outlives the manager, in an etcd inside this process.
Without it a manager that restarts begins a new pool, in which nothing is attached.
While a manager is away, what is attached stays attached and works: the data path
does not need it.

Three managers survive the loss of one of them: each gets the same
--etcd-initial-cluster and its own --etcd-name and --data-dir, or all get the
--etcd-endpoints of an etcd cluster that exists. One leads; the others answer
UNAVAILABLE with its URL, and one takes over within seconds. Nodes and commands
get all URLs, --manager URL,URL,URL. All managers need the same join token.

Boxes and hosts enrol with a join token. It is read from --join-token-file,
which is made with a new token where there is none (default: join-token in the
data directory); else from $DXPU_JOIN_TOKEN; else it is made up and printed.

The API is on the listening address, for gRPC and for JSON over HTTP, and so are
/healthz, /readyz, /metrics and, at /, the pages for a browser.

People need no credential on a loopback address, where everybody on the machine
may do everything (--open). On any other address they need a token: with
--data-dir the first is written to admin-token in it, and "dxpu token create"
makes others. Tokens must not cross a network in the clear, so there the manager
wants --tls, or --insecure-open, which lets everybody who reaches it do everything.
With --tls it has a certificate of the pool's own authority, ca.crt in the data
directory, and nodes get one of theirs: they have --ca-file or --ca-hash.` + tracingHelp,
		Example: `  dxpu manager --data-dir /var/lib/dxpu --spares 2
  curl -H 'Content-Type: application/json' -d '{}' http://127.0.0.1:7470/dxpu.v1.PoolService/GetPool`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "127.0.0.1:7470", "address of the API")
	o.storeOptions.register(f)
	f.StringVar(&o.tokenFile, "join-token-file", "", "file of the token with which nodes enrol")
	f.StringVar(&o.urlFile, "url-file", "", "write the URL here once the manager serves (for scripts with port 0)")
	o.securityOptions.register(f)
	f.DurationVar(&o.cfg.CertificateLife, "certificate-life", 30*24*time.Hour, "how long certificates of nodes and of the manager last")
	f.Float64Var(&o.cfg.CallRate, "call-rate", 500, "how many calls a second each person or program may make in the long run, with five seconds' worth at once; 0: any number")
	spareFlags(f, &o.reserve)
	f.DurationVar(&o.cfg.Heartbeat, "heartbeat", 250*time.Millisecond, "how often nodes report")
	f.IntVar(&o.cfg.ReportRate, "report-rate", 4_000, "reports a second that the manager takes; where there are more nodes, each reports less often")
	f.DurationVar(&o.cfg.LostAfter, "lost-after", time.Second, "silence after which a node counts as lost")
	f.DurationVar(&o.cfg.AttachTimeout, "attach-timeout", 20*time.Second, "longest time for each step of an attach")
	f.DurationVar(&o.cfg.UnplugTimeout, "unplug-timeout", 5*time.Second, "longest wait for a guest to let go of a GPU")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.testingClock, "testing-clock", "", "file of nanoseconds by which this manager's clock is off (for tests)")
	_ = f.MarkHidden("testing-clock") // it is there: no error
	cmd.AddCommand(newBackupCommand(), newRestoreCommand())
	return cmd
}

func (o *managerOptions) run(cmd *cobra.Command) error {
	if err := o.check(); err != nil {
		return &usageError{err}
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return withHint(fmt.Errorf("--log-level: %q is no level", o.logLevel), "debug, info, warn or error")
	}
	cfg := o.cfg
	cfg.Reserve = o.reserve
	if cfg.CallRate == 0 {
		cfg.CallRate = -1 // a Config's zero is its default
	}
	cfg.Version = version()
	if o.testingClock != "" {
		cfg.Now = wrongClock(o.testingClock)
	}
	cfg.Log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	if o.dataDir != "" {
		if err := os.MkdirAll(o.dataDir, 0o700); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
	}
	token, made, err := o.joinToken()
	if err != nil {
		return err
	}
	cfg.JoinToken = token
	if cfg.Open, err = o.openness(cmd, o.listen); err != nil {
		return &usageError{err}
	}
	l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", o.listen)
	if err != nil {
		return withHint(fmt.Errorf("--listen: %w", err), "choose another address, or port 0 for any")
	}
	url := o.scheme() + "://" + l.Addr().String()
	store, err := o.storeOptions.open(cmd.Context(), url, cfg.Log)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if store != nil {
		cfg.Store = store
	}
	var m *manager.Manager
	leads := make(chan struct{})
	started := sync.OnceFunc(func() { close(leads) })
	cfg.OnLead = func(ctx context.Context) error {
		if err := o.found(ctx, cmd.OutOrStdout(), m, cfg.Open); err != nil {
			return err
		}
		started()
		return nil
	}
	if o.shared() {
		started() // it serves while it follows, too
	}
	if m, err = manager.New(cmd.Context(), cfg); err != nil {
		return errors.Join(err, l.Close())
	}
	tlsConfig, err := o.tlsConfig(m, l.Addr())
	if err != nil {
		return errors.Join(err, l.Close())
	}
	announce := func() error {
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "The manager serves on %s\n", url)
		if made {
			_, _ = fmt.Fprintf(cmd.OutOrStdout(), "Nodes enrol with: export DXPU_JOIN_TOKEN=%s\n", token)
		}
		notifyReady()
		if o.urlFile == "" {
			return nil
		}
		if err := os.WriteFile(o.urlFile, []byte(url+"\n"), 0o644); err != nil {
			return fmt.Errorf("--url-file: %w", err)
		}
		return nil
	}
	err = withTracing(cmd.Context(), "dxpu-manager", url, func(ctx context.Context) error {
		return o.serve(ctx, m, l, tlsConfig, leads, announce)
	})
	if store != nil {
		err = errors.Join(err, store.Close())
	}
	return err
}

func (o *managerOptions) check() error {
	if err := checkSpares(&o.reserve); err != nil {
		return err
	}
	if err := o.storeOptions.check(); err != nil {
		return err
	}
	switch {
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case o.cfg.CallRate < 0 || o.cfg.CallRate > 0 && o.cfg.CallRate < 1 || o.cfg.CallRate > 1e6:
		return withHint(fmt.Errorf("--call-rate: %g is not 1 to 1000000, nor 0", o.cfg.CallRate), "500 is the default, 0 turns the limit off")
	case o.cfg.ReportRate < 1:
		return errors.New("--report-rate must be positive")
	case o.cfg.Heartbeat <= 0 || o.cfg.LostAfter < 2*o.cfg.Heartbeat:
		return withHint(errors.New("--lost-after must be at least twice --heartbeat, which must be positive"), "four times is usual")
	}
	return nil
}

// joinToken finds the token; made says that nobody knows it yet.
func (o *managerOptions) joinToken() (token string, made bool, err error) {
	file := o.tokenFile
	if file == "" && o.shared() && os.Getenv("DXPU_JOIN_TOKEN") == "" {
		return "", false, withHint(errors.New("managers that share their state need the same join token"),
			"give each of them the same --join-token-file or $DXPU_JOIN_TOKEN")
	}
	if file == "" && o.dataDir != "" && !o.shared() {
		file = filepath.Join(o.dataDir, "join-token")
	}
	if file == "" {
		if t := os.Getenv("DXPU_JOIN_TOKEN"); t != "" {
			return t, false, nil
		}
		return rand.Text(), true, nil
	}
	raw, err := os.ReadFile(file)
	if err == nil {
		return strings.TrimSpace(string(raw)), false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, fmt.Errorf("join token: %w", err)
	}
	token = rand.Text()
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return "", false, fmt.Errorf("join token: %w", err)
	}
	return token, false, nil
}

// serve serves a manager on a listener until ctx ends: HTTP/1.1 and HTTP/2, the
// latter without TLS too, for gRPC; over TLS where cfg is given. It announces
// itself once it leads.
func (o *managerOptions) serve(ctx context.Context, m *manager.Manager, l net.Listener, cfg *tls.Config, leads <-chan struct{}, announce func() error) error {
	srv := newServer(web.Handler(m.Handler()))
	srv.TLSConfig = cfg
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.Run(ctx) })
	g.Go(func() error {
		select {
		case <-leads:
			return announce()
		case <-ctx.Done():
			return nil
		}
	})
	g.Go(func() error {
		var err error
		if cfg != nil {
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
		// Run has closed the streams by now or does so at once.
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil {
			_ = srv.Close()
		}
		return nil
	})
	return g.Wait()
}

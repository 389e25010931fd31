//go:build linux

package cli

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"golang.org/x/sync/errgroup"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/dirlock"
	"github.com/dxpu-project/dxpu/internal/fdstore"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/loglimit"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// proxyOptions are the flags that "dxpu host" and "dxpu box" share.
type proxyOptions struct {
	conn      *connection
	name      string
	tokenFile string
	caHash    string
	stateDir  string
	listen    []string
	faults    []string
	noOffload bool
	ecn       bool
	polling   reader.Polling
	rack      string
	labels    map[string]string
	admin     adminOptions
	capture   bool
	log       logOptions
}

func (o *proxyOptions) register(cmd *cobra.Command) {
	o.conn.registerManager(cmd)
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the node in the pool (default: the host name)")
	f.StringVar(&o.tokenFile, "join-token-file", "", "file with the join token, which the node waits for (default $DXPU_JOIN_TOKEN)")
	f.StringVar(&o.caHash, "ca-hash", "", "hash of that authority, as the manager prints it, instead of --ca-file")
	f.StringVar(&o.stateDir, "state-dir", "", "directory for the node's identity and its desired state (default: neither is kept)")
	f.StringArrayVar(&o.listen, "listen", []string{"127.0.0.1:0"}, "UDP `address` of a path; repeat the flag for each network")
	f.StringArrayVar(&o.faults, "fault", nil, "fault `plan` for the outgoing datagrams of a path, such as \"loss=1%,delay=10us\" (see docs/faults.md), for tests; repeat the flag for each --listen")
	f.BoolVar(&o.ecn, "ecn", false, "let switches mark datagrams (ECN) when a queue begins, instead of dropping them; for networks where all traffic of the queue has ECN")
	f.BoolVar(&o.noOffload, "no-offload", false, "do not use UDP segmentation and receive offload")
	pollingFlags(f, &o.polling)
	f.StringVar(&o.rack, "rack", "", "location of the node")
	labelsVar(f, &o.labels, "label", "label of the node, `KEY=VALUE`; repeatable")
	o.admin.register(f, "/metrics, /healthz, /readyz, /slots and /capture, of a box also /faults")
	f.BoolVar(&o.capture, "allow-capture", false, `allow "dxpu capture" on this machine to read the decrypted TLPs of the bindings`)
	o.log.register(f)
}

// newProxyLogger returns the logger of a daemon with a limit for each cause and slot, for what guests,
// peers and devices cause.
func newProxyLogger(cmd *cobra.Command, o *logOptions) *slog.Logger {
	return slog.New(loglimit.New(o.logger(cmd).Handler()))
}

// pollingFlags adds the flags for polling of sockets.
func pollingFlags(f *pflag.FlagSet, p *reader.Polling) {
	durationVar(f, &p.Window, "poll", reader.DefaultWindow, "while register accesses or the packets of a copy follow each other, poll this long for the next message before sleeping; other threads that need the processor go first; 0: do not poll")
	durationVar(f, &p.Spin, "spin", 0, "poll this long before every sleep, for processors with no other work (default: do not)")
}

// proxy is a host proxy or a box proxy.
type proxy interface {
	agent.Handler
	prometheus.Collector
	OnChange(func())
	Report() agent.Report
	Run(ctx context.Context) error
}

// fabric opens the sockets of the paths.
func (o *proxyOptions) fabric(log *slog.Logger) (*netio.Fabric, error) {
	if len(o.faults) > len(o.listen) {
		return nil, usage(withHint(errors.New("more --fault than --listen"), "the first --fault applies to the first --listen"))
	}
	for _, addr := range o.listen {
		if err := checkAddress("--listen", addr); err != nil {
			return nil, err
		}
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	cfg := netio.Config{UDP: udp.Options{NoOffload: o.noOffload}, ECN: o.ecn, Polling: o.polling, Logger: log, Restart: func() { restart(log) }}
	for i, addr := range o.listen {
		p := netio.PathConfig{Listen: addr, Seed: randomSeed()}
		if i < len(o.faults) {
			plan, err := fault.Parse(o.faults[i])
			if err != nil {
				return nil, usagef("--fault: %w", err)
			}
			p.Fault = plan
		}
		cfg.Paths = append(cfg.Paths, p)
	}
	reader.ReserveProcessors()
	f, err := netio.Open(cfg)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return f, nil
}

// nodeName matches the names that a manager accepts for nodes.
var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// check checks the flags before the proxy opens anything, so that a wrong one does not
// appear as a refusal of the manager, which the proxy would ask again and again.
func (o *proxyOptions) check() error {
	if err := o.admin.check(); err != nil {
		return err
	}
	if o.caHash != "" {
		if err := auth.CheckHash(o.caHash); err != nil {
			return usagef("--ca-hash: %w", err)
		}
	}
	name := o.name
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return withHint(fmt.Errorf("host name: %w", err), "name the node with --name")
		}
	}
	if !nodeName.MatchString(name) {
		return usage(withHint(fmt.Errorf("--name: %.80q is not a name", name), "a name is 1 to 63 of a-z, 0-9, '-' and '.', and begins with a letter or digit"))
	}
	return nil
}

// restart replaces this process by a new one with the same command line, without
// any orderly end. The fault plan starts from its beginning.
func restart(log *slog.Logger) {
	self, err := os.Executable()
	if err == nil {
		log.Info("restart by the fault plan")
		err = syscall.Exec(self, os.Args, os.Environ())
	}
	log.Error("restart failed", "err", err)
}

func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// agent returns the part that talks to the manager.
func (o *proxyOptions) agent(ctx context.Context, kind dxpuv1.NodeKind, p proxy, log *slog.Logger) (*agent.Agent, error) {
	url, err := o.conn.url()
	if err != nil {
		return nil, err
	}
	ca, err := readAuthority(o.conn.caFile)
	if err != nil {
		return nil, err
	}
	token, err := nodeToken(ctx, o.tokenFile, agent.Enrolled(o.stateDir), log)
	if err != nil {
		return nil, err
	}
	name := o.name
	if name == "" {
		if name, err = os.Hostname(); err != nil {
			return nil, withHint(fmt.Errorf("host name: %w", err), "name the node with --name")
		}
	}
	if token == "" && !agent.Enrolled(o.stateDir) {
		return nil, usage(withHint(errors.New("the join token is missing"), `--join-token-file or DXPU_JOIN_TOKEN names it; "dxpu manager --join-token-file" writes it`))
	}
	a, err := agent.New(agent.Config{
		Manager: url, JoinToken: token, Kind: kind, Name: name, NameGiven: o.name != "", Version: version(),
		StateDir: o.stateDir, CA: ca, CAHash: o.caHash, Log: log,
	}, p)
	return a, stateDirError(err)
}

// stateDirError adds the flag and the remedy to an error about the directory of a node.
func stateDirError(err error) error {
	var other *agent.OtherNodeError
	var held *dirlock.HeldError
	switch {
	case errors.As(err, &other):
		return usage(withHint(fmt.Errorf("--state-dir: %w", other), "each node has a directory of its own, whose content goes with it; a new node begins with an empty one"))
	case errors.As(err, &held):
		return withHint(fmt.Errorf("--state-dir: %w", held), "each node has a directory of its own; stop the other process, or name another directory")
	}
	return err
}

// run runs a proxy until ctx ends.
func (o *proxyOptions) run(ctx context.Context, kind dxpuv1.NodeKind, p proxy, f *netio.Fabric, extra map[string]http.Handler, log *slog.Logger) error {
	service := "dxpu-host"
	if kind == dxpuv1.NodeKind_NODE_KIND_BOX {
		service = "dxpu-box"
	}
	return withTracing(ctx, service, o.name, func(ctx context.Context) error { return o.serve(ctx, kind, p, f, extra, log) })
}

// serve does the work of run. The network ends last, because the proxy and the
// agent send messages when they end.
func (o *proxyOptions) serve(ctx context.Context, kind dxpuv1.NodeKind, p proxy, f *netio.Fabric, extra map[string]http.Handler, log *slog.Logger) error {
	a, err := o.agent(ctx, kind, p, log)
	if err != nil {
		return err
	}
	p.OnChange(a.Changed)
	admin, err := o.adminServer(ctx, p, f, a, extra, log)
	if err != nil {
		return err
	}
	netCtx, stopNet := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNet()
	var network errgroup.Group
	network.Go(func() error { return f.Run(netCtx) })

	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return p.Run(workCtx) })
	work.Go(func() error { return a.Run(workCtx) })
	work.Go(func() error { return admin(workCtx) })
	notifyReady()
	err = work.Wait()
	stopNet()
	return errors.Join(err, network.Wait())
}

// adminServer opens the admin listener, so that an error appears at the start, and
// returns a function that serves on it.
func (o *proxyOptions) adminServer(ctx context.Context, p proxy, f *netio.Fabric, a *agent.Agent, extra map[string]http.Handler, log *slog.Logger) (func(context.Context) error, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(p, buildInfo(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if h, ok := log.Handler().(*loglimit.Handler); ok {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "dxpu_log_suppressed_total", Help: "Lines beyond the limit of their cause and slot that the log does not have.",
		}, func() float64 { return float64(h.Suppressed()) }))
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !a.Connected() {
			http.Error(w, "no connection to the manager", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /slots", agent.SlotsHandler(p.Report))
	mux.Handle("GET /capture", agent.CaptureHandler(f, o.capture, "dxpu "+version(), o.name))
	for pattern, h := range extra {
		mux.Handle(pattern, h)
	}
	return o.admin.open(ctx, mux, log)
}

// hostOptions are the flags of "dxpu host".
type hostOptions struct {
	proxyOptions
	slots  int
	domain string
	vm     hostproxy.VM
	host   hostproxy.Config
}

func newHostCommand(conn *connection) *cobra.Command {
	o := &hostOptions{proxyOptions: proxyOptions{conn: conn}}
	cmd := &cobra.Command{
		Use: "host", Short: "Run the proxy of a host", Args: cobra.NoArgs,
		Long: `Run the proxy of a host. It is a PCIe virtual switch; the GPUs that the manager
attaches appear in its slots.

Each slot with a device has a vfio-user socket for the VMM, slotN.sock in
--socket-dir. With --qmp the proxy also plugs the device into that QEMU and unplugs
it. The VM then needs a root port for each slot, with the ID of --root-port, and
shared memory (memory-backend-memfd,share=on), or the attach fails with that reason.
Without --qmp the operator of the VMM plugs the device in when "dxpu describe host"
shows it; a GPU cannot use memory that the VMM does not share.

Attached GPUs work while the manager is away.` + tracingHelp,
		Example: `  qemu-system-x86_64 -M q35 -m 2G -qmp unix:/run/vm1/qmp.sock,server=on,wait=off \
    -object memory-backend-memfd,id=mem,size=2G,share=on -machine memory-backend=mem \
    -device pcie-root-port,id=rp0,chassis=1,slot=1 -device pcie-root-port,id=rp1,chassis=2,slot=2 ...
  dxpu host --name h1 --slots 2 --socket-dir /run/vm1 --qmp /run/vm1/qmp.sock \
    --join-token-file /etc/dxpu/join-token`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	o.register(cmd)
	f := cmd.Flags()
	f.IntVar(&o.slots, "slots", 4, "slots of the virtual switch, 1 to 32")
	f.StringVar(&o.domain, "domain", "vm0", "name of the virtual switch; its devices can reach each other")
	f.StringVar(&o.vm.SocketDir, "socket-dir", "", "directory for the vfio-user sockets (required)")
	f.StringVar(&o.vm.QMP, "qmp", "", "QMP socket of the VM, for hot-plug")
	f.StringVar(&o.vm.RootPort, "root-port", "rp%d", "ID of a slot's root port in the VM; %d stands for the slot")
	f.BoolVar(&o.vm.MessageDMA, "message-dma", false, "serve a VM that does not share its memory, by messages: slow, and drivers may read stale data")
	durationVar(f, &o.vm.AccessTimeout, "access-timeout", 0, "answer an access of the VM with all ones after this time (default 4s, less than QEMU's x-msg-timeout)")
	durationVar(f, &o.host.CompletionTimeout, "completion-timeout", 0, "longest time that a device may take to answer a request; a slow link extends it to at most 4s (default 800ms with --qmp, or 1s)")
	return cmd
}

// lockSocketDir keeps other host proxies from a directory: a second one would take
// the devices of the first for left-overs, and remove them.
func lockSocketDir(dir string) (io.Closer, error) {
	lock, err := fileutil.TryLockFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return nil, withHint(fmt.Errorf("another host proxy uses --socket-dir %s", dir), "give each host proxy a directory of its own, or stop the other one")
	}
	var path *fs.PathError // without the words of the library
	if errors.As(err, &path) {
		err = path
	}
	if err != nil {
		return nil, fmt.Errorf("--socket-dir: %w", err)
	}
	return lock, nil
}

func (o *hostOptions) run(cmd *cobra.Command) error {
	if o.vm.SocketDir == "" {
		return usage(withHint(errors.New("--socket-dir is missing"), "name a directory such as /run/dxpu; the VMM connects to sockets in it"))
	}
	if err := inRange("--slots", 1, hostproxy.MaxSlots, o.slots); err != nil {
		return err
	}
	if o.slots > 1 && !strings.Contains(o.vm.RootPort, "%d") {
		return usage(withHint(fmt.Errorf("--root-port: %q is the same for all %d slots", o.vm.RootPort, o.slots), "write %%d for the number of the slot, such as rp%%d"))
	}
	if err := os.MkdirAll(o.vm.SocketDir, 0o700); err != nil {
		return fmt.Errorf("--socket-dir: %w", err)
	}
	lock, err := lockSocketDir(o.vm.SocketDir)
	if err != nil {
		return err
	}
	defer lock.Close()
	log := newProxyLogger(cmd, &o.log)
	f, err := o.fabric(log)
	if err != nil {
		return err
	}
	o.vm.Logger, o.vm.Polling = log, o.polling
	cfg := o.host
	cfg.Slots, cfg.Front, cfg.Fabric, cfg.Domain = o.slots, &o.vm, f, o.domain
	cfg.Rack, cfg.Labels, cfg.Logger = o.rack, o.labels, log
	store, err := fdstore.Open()
	if err != nil {
		return err
	}
	if store != nil {
		defer store.Close()
		o.vm.Keeper, o.vm.Kept = store, fdstore.Inherited()
	}
	h, err := hostproxy.New(cfg)
	if err != nil {
		return err
	}
	return o.proxyOptions.run(cmd.Context(), dxpuv1.NodeKind_NODE_KIND_HOST, h, f, nil, log)
}

//go:build linux

package cli

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/cohdi"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
	"github.com/dxpu-project/dxpu/internal/pool/web"
)

// managerOptions are the flags of "dxpu manager".
type managerOptions struct {
	listen, tokenFile, urlFile string
	testingClock, interference string
	cohdi                      bool
	log                        logOptions
	admin                      adminOptions
	reserve                    placement.Reserve
	securityOptions
	signIn signInOptions
	storeOptions
	cfg        manager.Config
	joinTokens func() []string // those of the file; nil: there is none
}

func newManagerCommand() *cobra.Command {
	o := &managerOptions{}
	cmd := &cobra.Command{
		Use: "manager", Short: "Run the manager that owns the pool", Args: cobra.NoArgs,
		Long: `Run the manager. It knows every GPU box and host, allocates GPUs to hosts, attaches
and detaches them, and replaces failed GPUs by spares.

With --data-dir an etcd inside this process keeps the state. Without it the state is
in memory, and a restarted manager begins a new, empty pool. Attached GPUs work while
no manager runs, because the data path does not need one.

A pool with three managers survives the loss of one. Give each the same
--etcd-initial-cluster and its own --etcd-name and --data-dir, or give all the
--etcd-endpoints of an existing etcd cluster. One manager leads; the others answer
UNAVAILABLE with its URL, and one of them takes over within seconds. Pass all URLs to
nodes and commands: --manager URL,URL,URL. All managers need the same join token.

Boxes and hosts enrol with a join token. The manager reads it from --join-token-file
(default: join-token in the data directory) and creates that file with a new token if
it does not exist. A file with several lines has several tokens, the current one
first, and the manager reads it again when it changes. Without a file it uses $DXPU_JOIN_TOKEN, or creates a token and
prints it.

The listening address serves the API, for gRPC and for JSON over HTTP, as well as
/healthz, /readyz, /metrics and, at /, the pages for a browser.

On a loopback address, callers need no token and every user of the machine may do
everything (--open). On any other address callers need a token. With --data-dir the
manager writes the first one to the file admin-token there; "dxpu token create"
creates others. Tokens must not cross a network in cleartext: on such an address the
manager requires --tls, or --insecure-open, which allows everything to every caller.
With --tls the pool's own authority signs the manager's certificate. The certificate
of the authority is the file ca.crt in the data directory. Nodes verify the manager
with --ca-file or --ca-hash, and get certificates of the same authority.

With --cohdi the manager also serves the REST interface of a fabric manager that the
components of CoHDI use in Kubernetes, below /id_manager/ and /fabric_manager/. Their
password is a token of the pool.` + tracingHelp,
		Example: `  dxpu manager --data-dir /var/lib/dxpu --spares 2
  curl -H 'Content-Type: application/json' -d '{}' http://127.0.0.1:7470/dxpu.v1.PoolService/GetPool`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", defaultListen, "address of the API")
	o.storeOptions.register(f)
	f.StringVar(&o.tokenFile, "join-token-file", "", "file with the join token of nodes")
	f.StringVar(&o.urlFile, "url-file", "", "file to which the manager writes its URL when it serves (for scripts that use port 0)")
	o.securityOptions.register(f)
	o.signIn.register(f)
	positiveDurationVar(f, &o.cfg.CertificateLife, "certificate-life", 30*24*time.Hour, "lifetime of the certificates of nodes and of the manager")
	f.Float64Var(&o.cfg.CallRate, "call-rate", 500, "limit of calls per second for each caller, on average; bursts may reach five seconds' worth; 0: no limit")
	spareFlags(f, &o.reserve)
	f.IntVar(&o.cfg.RackUplink, "rack-uplink-gpus", 0, "`number` of GPUs that the uplink of a rack serves at full bandwidth; leases beyond it avoid the uplink where they can; 0: not known")
	f.StringVar(&o.interference, "interference", "", "`file` with the measured slow-down of programs that share a GPU: lines of PROGRAM,BESIDE,SLOWDOWN such as \"bert,resnet,12.5%\"; parts avoid such neighbours where they can")
	positiveDurationVar(f, &o.cfg.Heartbeat, "heartbeat", 250*time.Millisecond, "interval between two reports of a node")
	f.IntVar(&o.cfg.ReportRate, "report-rate", 4_000, "limit of reports per second from all nodes; with more nodes each reports less often")
	positiveDurationVar(f, &o.cfg.LostAfter, "lost-after", time.Second, "silence after which a node counts as lost")
	durationVar(f, &o.cfg.HostTimeout, "host-timeout", 10*time.Minute, "silence of a host after which its leases, if their GPUs do not work, return to the queue or end; 0: never")
	positiveDurationVar(f, &o.cfg.AttachTimeout, "attach-timeout", 20*time.Second, "longest duration of each step of an attach")
	positiveDurationVar(f, &o.cfg.UnplugTimeout, "unplug-timeout", 15*time.Second, "longest wait for a guest to release a GPU; native PCIe hot-plug takes 7s")
	f.BoolVar(&o.cohdi, "cohdi", false, "serve the interface of a fabric manager for the components of CoHDI (docs/kubernetes.md)")
	o.log.register(f)
	o.admin.register(f, "/metrics, /healthz and /readyz")
	f.StringVar(&o.testingClock, "testing-clock", "", "file with the error of this manager's clock in nanoseconds (for tests)")
	_ = f.MarkHidden("testing-clock") // fails only for an unknown flag
	cmd.AddCommand(newBackupCommand(), newRestoreCommand(), newReplaceMemberCommand())
	return cmd
}

func (o *managerOptions) check() error {
	if err := cmp.Or(checkAddress("--listen", o.listen), o.admin.check(), checkSpares(&o.reserve), o.storeOptions.check()); err != nil {
		return err
	}
	switch {
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return errors.New("--tls-cert and --tls-key go together")
	case o.cfg.CallRate < 0 || o.cfg.CallRate > 0 && o.cfg.CallRate < 1 || o.cfg.CallRate > 1e6:
		return withHint(fmt.Errorf("--call-rate: %g is neither 0 nor 1 to 1000000", o.cfg.CallRate), "the default is 500; 0 means no limit")
	case o.cfg.HostTimeout < 0 || o.cfg.HostTimeout > 0 && o.cfg.HostTimeout < o.cfg.LostAfter:
		return withHint(errors.New("--host-timeout must be 0 or at least --lost-after"), "0 means that leases wait for their host without limit")
	case o.cfg.RackUplink < 0:
		return errors.New("--rack-uplink-gpus must not be negative; 0 means that it is not known")
	case o.cfg.ReportRate < 1:
		return errors.New("--report-rate must be positive")
	case o.cfg.Heartbeat <= 0 || o.cfg.LostAfter < 2*o.cfg.Heartbeat:
		return withHint(errors.New("--lost-after must be at least twice --heartbeat, which must be positive"), "four times --heartbeat is usual")
	}
	return nil
}

// joinToken returns the join token. made reports that the token is new and has to
// be printed.
func (o *managerOptions) joinToken(log *slog.Logger) (token string, made bool, err error) {
	file := o.tokenFile
	if file == "" && o.shared() && os.Getenv("DXPU_JOIN_TOKEN") == "" {
		return "", false, usage(withHint(errors.New("managers that share their state need the same join token"),
			"pass the same --join-token-file or $DXPU_JOIN_TOKEN to each of them"))
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
	o.joinTokens, err = watchJoinTokens(file)
	if errors.Is(err, fs.ErrNotExist) {
		if err = atomicfile.Write(file, []byte(rand.Text()+"\n")); err == nil {
			o.joinTokens, err = watchJoinTokens(file)
		}
	}
	if err != nil {
		return "", false, fmt.Errorf("--join-token-file: %w", err)
	}
	if t := os.Getenv("DXPU_JOIN_TOKEN"); t != "" && !slices.Contains(o.joinTokens(), t) {
		log.Warn("$DXPU_JOIN_TOKEN is not valid in this pool: its join token is in the file", "file", file)
	}
	return o.joinTokens()[0], false, nil
}

// handler returns what the listening address serves.
func (o *managerOptions) handler(api http.Handler) http.Handler {
	pages := web.Handler(api)
	if !o.cohdi {
		return pages
	}
	fabric := cohdi.Handler(cohdi.Config{Client: web.LocalClient(api)})
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.Handle("/id_manager/", fabric)
	mux.Handle("/fabric_manager/", fabric)
	return mux
}

// spareFlags adds the flags for the number of spares of a pool: a number, a fraction,
// or a number computed from the failure rate. The largest applies.
func spareFlags(f *pflag.FlagSet, r *placement.Reserve) {
	f.IntVar(&r.Count, "spares", 0, "GPUs of each model held back to replace failed ones")
	f.Float64Var(&r.Fraction, "spare-fraction", 0, "spares as a fraction of the healthy GPUs, 0 to 1; the largest of the three numbers applies")
	f.Float64Var(&r.Policy.FailureRate, "spare-failure-rate", 0,
		"failures of one GPU in a year, such as 0.09, from which the number of spares is computed")
	positiveDurationVar(f, &r.Policy.RepairTime, "spare-repair-time", 7*24*time.Hour, "mean time until a failed GPU is back")
	f.Float64Var(&r.Policy.Stockout, "spare-stockout", 0.001, "accepted fraction of time with too few spares, between 0 and 1")
}

// checkSpares checks the flags, and clears the policy if no failure rate is given.
func checkSpares(r *placement.Reserve) error {
	switch {
	case r.Count < 0:
		return withHint(fmt.Errorf("--spares: %d is negative", r.Count), "0 holds back no spares")
	case !(r.Fraction >= 0 && r.Fraction <= 1):
		return withHint(fmt.Errorf("--spare-fraction: %g is not 0 to 1", r.Fraction), "0.02 holds back 2 of 100")
	case r.Policy.FailureRate == 0:
		r.Policy = placement.SparePolicy{}
	}
	if err := r.Policy.Check(); err != nil {
		return withHint(fmt.Errorf("--spare-failure-rate, --spare-repair-time, --spare-stockout: %w", err),
			"0.09 failures a year, 168h of repair and a fraction of 0.001 hold back 5 of 512")
	}
	return nil
}

// wrongClock returns a clock that is wrong by the number of nanoseconds in a file, and
// correct while the file does not exist. It serves tests of a manager whose
// machine's clock jumps.
func wrongClock(file string) func() time.Time {
	return func() time.Time {
		now := time.Now().Round(0) // a clock that jumps is not monotonic
		raw, err := os.ReadFile(file)
		if err != nil {
			return now
		}
		off, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		if err != nil {
			fmt.Fprintf(os.Stderr, "dxpu: %s: %v\n", file, err)
			return now
		}
		return now.Add(time.Duration(off))
	}
}

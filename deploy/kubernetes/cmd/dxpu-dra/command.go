package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a mistake in the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run runs the command and returns its exit code.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	cmd := newRoot()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := cmd.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0
	}
	fmt.Fprintf(errs, "dxpu-dra: error: %v\n", err)
	if errors.As(err, &usageError{}) {
		fmt.Fprintln(errs, `dxpu-dra: "dxpu-dra COMMAND --help" lists the flags`)
		return exitUsage
	}
	return exitFailure
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use: "dxpu-dra", Short: "Give GPUs of a DxPU pool to pods, by Dynamic Resource Allocation",
		Long: `Give GPUs of a DxPU pool to pods of Kubernetes, by Dynamic Resource Allocation.

The controller runs once in a cluster. It publishes the GPUs of the pool as devices,
leases those that the scheduler allocates, and attaches them to the node of the pod.
The plugin runs on each node and gives the devices to containers. kubevirt-hook gives them to
VMs of KubeVirt.`,
		Example: `  dxpu-dra controller --manager https://manager:7470 --ca-hash sha256:... --token-file /etc/dxpu/token
  dxpu-dra plugin --node-name n1 --socket-dir /run/dxpu`,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q: want controller, plugin or kubevirt-hook", args[0])
			}
			return usagef("a command is missing: controller, plugin or kubevirt-hook")
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(newControllerCommand(), newPluginCommand(), newKubeVirtCommand())
	return root
}

// common are the flags of both commands.
type common struct {
	kubeconfig string
	metrics    string
	qps        float32
	verbosity  int
}

func (o *common) register(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the access to the cluster (default: that of the pod)")
	f.StringVar(&o.metrics, "metrics-listen", "", "`address` that serves /metrics and /healthz (default: none)")
	f.Float32Var(&o.qps, "kube-qps", 100, "largest `rate` of requests to the API server, per second")
	f.IntVarP(&o.verbosity, "verbosity", "v", 1, "how much to log, a `level` from 0 to 6")
}

// context returns a context that logs at the level of the flags.
func (o *common) context(ctx context.Context) (context.Context, error) {
	var level klog.Level
	if err := level.Set(fmt.Sprint(o.verbosity)); err != nil {
		return nil, usagef("--verbosity: %v", err)
	}
	return klog.NewContext(ctx, klog.Background()), nil
}

func (o *common) kube() (kubernetes.Interface, error) {
	var cfg *rest.Config
	var err error
	if o.kubeconfig != "" {
		if cfg, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
	} else if cfg, err = rest.InClusterConfig(); err != nil {
		return nil, usagef("this is not a pod of a cluster (%v): name the access to it with --kubeconfig", err)
	}
	cfg.UserAgent, cfg.QPS, cfg.Burst = "dxpu-dra", o.qps, int(2*o.qps)
	return kubernetes.NewForConfig(cfg)
}

// serve serves metrics and health until ctx ends. It returns when the address listens.
func (o *common) serve(ctx context.Context, r *prometheus.Registry, failed func(error)) (stop func(), err error) {
	if o.metrics == "" {
		return func() {}, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.metrics)
	if err != nil {
		return nil, fmt.Errorf("--metrics-listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() { // stop waits for it
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("serve metrics: %w", err))
		}
	}()
	return func() {
		_ = s.Close()
		<-done
	}, nil
}

// readSecret returns the contents of a file without the space around them.
func readSecret(flag, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return strings.TrimSpace(string(raw)), nil
}

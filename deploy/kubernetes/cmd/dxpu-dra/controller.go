package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/dxpu-project/dxpu/client"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/controller"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/performance"
)

type controllerOptions struct {
	common
	managers, caHash, caFile, tokenFile string
	performance                         string // file
	cleartext                           bool
	tenant, tenantPrefix                string
	queueTimeout                        time.Duration
	workers                             int
	namespace                           string
	elect, wholeGPUs                    bool
	leaseDuration                       time.Duration // after it another replica takes over from one that is gone
}

func newControllerCommand() *cobra.Command {
	o := &controllerOptions{leaseDuration: 15 * time.Second}
	cmd := &cobra.Command{
		Use: "controller", Short: "Publish the pool's GPUs as devices, and lease those that are allocated", Args: noArgs,
		Long: `Publish the GPUs of the pool as devices of the cluster, and lease those that the scheduler
allocates. Several replicas may run with --leader-elect; one of them works.

The leases belong to the tenant of the claim's namespace: the namespace's name after
--tenant-prefix, or --tenant for all of them. The quota of the tenant holds.`,
		Example: `  dxpu-dra controller --manager https://m1:7470,https://m2:7470 --ca-hash sha256:... --token-file /etc/dxpu/token
  dxpu-dra controller --kubeconfig ~/.kube/config --manager http://127.0.0.1:7470`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	f := cmd.Flags()
	o.register(f)
	f.StringVar(&o.managers, "manager", os.Getenv("DXPU_MANAGER"), "`URLs` of the pool's managers, with commas between them (default $DXPU_MANAGER)")
	f.StringVar(&o.caHash, "ca-hash", "", "`hash` of the managers' authority, as the manager prints it")
	f.StringVar(&o.caFile, "ca-file", "", "`file` with the managers' authority")
	f.StringVar(&o.tokenFile, "token-file", "", "`file` with a token of the role operator")
	f.BoolVar(&o.cleartext, "allow-cleartext", false, "send the token without TLS")
	f.StringVar(&o.tenant, "tenant", "", "`tenant` of all leases (default: that of the claim's namespace)")
	f.StringVar(&o.tenantPrefix, "tenant-prefix", "", "`text` before the namespace in the name of a tenant")
	f.DurationVar(&o.queueTimeout, "queue-timeout", 5*time.Minute, "longest `time` in the queue of the pool, below the scheduler's bindingTimeout of 10m")
	f.IntVar(&o.workers, "workers", 8, "`number` of claims handled at a time")
	f.BoolVar(&o.wholeGPUs, "whole-gpus", false, "offer no parts of GPUs: for clusters without the feature gate DRAConsumableCapacity")
	f.StringVar(&o.performance, "performance", "", "`file` with the output of \"dxpu model predict --json\", for the attributes performance.dxpu.dev/WORKLOAD of the devices; without the file there are none")
	f.StringVar(&o.namespace, "namespace", envOr("POD_NAMESPACE", "dxpu-system"), "`namespace` of the lease for the election")
	f.BoolVar(&o.elect, "leader-elect", false, "work only while elected")
	return cmd
}

func envOr(name, value string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return value
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q", args[0])
	}
	return nil
}

// tenantName is the manager's pattern for the names of tenants. A prefix leaves room for a namespace.
var (
	tenantName   = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	tenantPrefix = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,61}$`)
)

// bindingTimeout is how long the scheduler waits for binding conditions, unless the arguments of
// its plugin DynamicResources say otherwise.
const bindingTimeout = 10 * time.Minute

func (o *controllerOptions) check() error {
	switch {
	case o.managers == "":
		return usagef("--manager is missing: the URL of the pool's manager")
	case o.workers < 1 || o.workers > 1000:
		return usagef("--workers: %d is not 1 to 1000", o.workers)
	case o.queueTimeout <= 0:
		return usagef("--queue-timeout: %v is not above 0", o.queueTimeout)
	case o.tenant != "" && o.tenantPrefix != "":
		return usagef("want either --tenant, for all leases, or --tenant-prefix")
	case o.tenant != "" && !tenantName.MatchString(o.tenant):
		return usagef("--tenant: %q is not 1 to 63 of a-z, 0-9, '.', '_' and '-'", o.tenant)
	case o.tenantPrefix != "" && !tenantPrefix.MatchString(o.tenantPrefix):
		return usagef("--tenant-prefix: %q is not 1 to 62 of a-z, 0-9, '.', '_' and '-'", o.tenantPrefix)
	}
	return nil
}

func (o *controllerOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	ctx, err := o.context(ctx)
	if err != nil {
		return err
	}
	if o.queueTimeout >= bindingTimeout {
		klog.FromContext(ctx).Info("--queue-timeout is not below the bindingTimeout that the scheduler has by default, after which it gives claims back: raise that, too",
			"queueTimeout", o.queueTimeout, "bindingTimeout", bindingTimeout)
	}
	pool, err := o.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	kube, err := o.kube()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	registry := prometheus.NewRegistry()
	cfg := controller.Config{
		Kube: kube, Pool: pool.Pool, Managers: o.managers, Workers: o.workers, WholeGPUs: o.wholeGPUs, Metrics: controller.NewMetrics(registry),
		Policy: claims.Policy{Tenant: o.tenantOf, QueueTimeout: o.queueTimeout},
	}
	if cfg.Performance, err = o.predictions(ctx); err != nil {
		return err
	}
	stop, err := o.serve(ctx, registry, cancel)
	if err != nil {
		return err
	}
	defer stop()
	if o.elect {
		return o.elected(ctx, kube, func(ctx context.Context) error { return controller.Run(ctx, cfg) })
	}
	if err := controller.Run(ctx, cfg); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (o *controllerOptions) predictions(ctx context.Context) (t performance.Table, err error) {
	if o.performance == "" {
		return t, nil
	}
	f, err := os.Open(o.performance)
	if errors.Is(err, fs.ErrNotExist) {
		klog.FromContext(ctx).Info("There are no predictions of performance", "file", o.performance)
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("--performance: %w", err)
	}
	defer f.Close()
	if t, err = performance.Read(f); err != nil {
		return t, fmt.Errorf("--performance %s: %w", o.performance, err)
	}
	for _, doubt := range t.Doubts {
		klog.FromContext(ctx).Info("A prediction is in doubt, so the devices have no attribute of it", "file", o.performance, "doubt", doubt)
	}
	return t, nil
}

func (o *controllerOptions) tenantOf(namespace string) string {
	if o.tenant != "" {
		return o.tenant
	}
	return o.tenantPrefix + namespace
}

func (o *controllerOptions) pool() (*client.Client, error) {
	urls, err := client.ParseManagers(o.managers)
	if err != nil {
		return nil, usagef("--manager: %v", err)
	}
	cfg := client.Config{Managers: urls, CAHash: o.caHash, AllowCleartext: o.cleartext}
	if cfg.Token, err = readSecret("--token-file", o.tokenFile); err != nil {
		return nil, err
	}
	if o.caFile != "" {
		if cfg.CA, err = os.ReadFile(o.caFile); err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
	}
	c, err := client.New(cfg)
	if errors.Is(err, client.ErrCleartext) {
		return nil, usagef("%v; start the managers with --tls, or allow it by --allow-cleartext", err)
	}
	if err != nil {
		return nil, usagef("%v", err)
	}
	return c, nil
}

// errLost is why a replica ends that led and may lead no longer.
var errLost = errors.New("another replica may lead now: the lease could not be renewed in time")

// elected runs work while this replica holds the lease. It returns after work has.
func (o *controllerOptions) elected(ctx context.Context, kube kubernetes.Interface, work func(context.Context) error) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the name of this replica: %w", err)
	}
	var ended error
	leading := make(chan context.Context, 1) // the elector calls at most once
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: o.namespace, Name: "dxpu-dra"},
			Client:    kube.CoordinationV1(),
			// Two replicas on one machine have the same host name.
			LockConfig: resourcelock.ResourceLockConfig{Identity: strings.ToLower(name) + "_" + string(uuid.NewUUID())},
		},
		LeaseDuration: o.leaseDuration, RenewDeadline: o.leaseDuration * 2 / 3, RetryPeriod: o.leaseDuration * 2 / 15, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { leading <- ctx },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("the election: %w", err)
	}
	// The elector gives the lease back when the work has ended, and not before.
	electing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var worker sync.WaitGroup
	worker.Go(func() {
		defer cancel()
		select {
		case <-ctx.Done():
		case led := <-leading:
			led, stop := context.WithCancel(led)
			defer stop()
			defer context.AfterFunc(ctx, stop)()
			if ended = work(led); ended == nil && ctx.Err() == nil {
				ended = errLost
			}
		}
	})
	elector.Run(electing)
	worker.Wait()
	return cmp.Or(ended, context.Cause(ctx))
}

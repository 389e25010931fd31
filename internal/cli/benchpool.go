//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/bench"
	"github.com/dxpu-project/dxpu/internal/bench/capacity"
	"github.com/dxpu-project/dxpu/internal/bench/fleet"
	"github.com/dxpu-project/dxpu/internal/bench/store"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
)

// capacityOptions are the flags of "dxpu bench capacity" and "dxpu bench attach".
type capacityOptions struct {
	spec   capacity.Spec
	count  int
	memory bool
}

func newBenchCapacityCommand() *cobra.Command {
	o := &capacityOptions{}
	cmd := benchmark(&cobra.Command{
		Use: "capacity", Short: "Attach all GPUs of a large pool at the same time",
		Long: `Attach all GPUs of a large pool at the same time. The manager, the proxies of the
boxes, the embedded hosts, and a link over UDP on the loopback interface for each GPU
are all in this process. Each host then finds its GPUs, reads registers, copies data
by DMA in both directions, checks every byte, and releases the GPUs. Any error fails
the benchmark.

The command prints the durations, the parts of an attach, the memory of an attached
GPU, and the processor time of the idle pool.`,
		Example: `  dxpu bench capacity
  dxpu bench capacity --boxes 8 --hosts 4 --json`,
	}, func(ctx context.Context, progress func(string, ...any)) (r *capacity.Report, err error) {
		err = o.withStore(progress, func() error {
			r, err = capacity.Run(ctx, o.spec)
			return err
		})
		return r, err
	}, printCapacity)
	o.flags(cmd, 64, 8, 64)
	cmd.Flags().IntVar(&o.spec.AtOnce, "at-once", 16, "number of concurrent callers, 1 to 1024")
	positiveDurationVar(cmd.Flags(), &o.spec.Idle, "idle", 5*time.Second, "duration of each of the two measurements of the idle pool")
	return cmd
}

func newBenchAttachCommand() *cobra.Command {
	o := &capacityOptions{}
	cmd := benchmark(&cobra.Command{
		Use: "attach", Short: "Measure the duration of an attach",
		Long: `Measure the time from the call of CreateLease to a device that the host sees, in a
small pool in this process. The benchmark repeatedly attaches a GPU, uses it and
releases it. The parts are those of the binding's timeline.`,
		Example: `  dxpu bench attach
  dxpu bench attach --count 1000 --json`,
	}, func(ctx context.Context, progress func(string, ...any)) (r *capacity.AttachReport, err error) {
		if err := inRange("--count", 1, 100_000, o.count); err != nil {
			return nil, err
		}
		err = o.withStore(progress, func() error {
			r, err = capacity.Attach(ctx, o.spec, o.count)
			return err
		})
		return r, err
	}, func(w io.Writer, r *capacity.AttachReport) {
		fmt.Fprintf(w, "%d processors, %s; %d sequential attaches\n\n", r.Processors, r.Go, r.Count)
		printParts(w, append(r.Parts, r.Detach))
	})
	o.flags(cmd, 2, 4, 2)
	cmd.Flags().IntVar(&o.count, "count", 100, "number of attaches, 1 to 100000")
	return cmd
}

func (o *capacityOptions) flags(cmd *cobra.Command, boxes, gpus, hosts int) {
	f := cmd.Flags()
	f.IntVar(&o.spec.Boxes, "boxes", boxes, "number of GPU boxes, 1 to 1000")
	f.IntVar(&o.spec.GPUsPerBox, "gpus-per-box", gpus, "number of GPUs of each box")
	f.IntVar(&o.spec.Hosts, "hosts", hosts, "number of hosts, 1 to 1000; the GPUs are spread over them")
	positiveDurationVar(f, &o.spec.Heartbeat, "heartbeat", 250*time.Millisecond, "interval between two reports of a proxy")
	positiveDurationVar(f, &o.spec.Timeout, "timeout", 5*time.Minute, "longest duration of each part")
	f.BoolVar(&o.memory, "in-memory", false, "keep the manager's state in memory instead of on disk")
}

func (o *capacityOptions) check() error {
	s := &o.spec
	err := cmp.Or(
		inRange("--boxes", 1, 1000, s.Boxes),
		inRange("--hosts", 1, 1000, s.Hosts),
		inRange("--gpus-per-box", 1, boxproxy.MaxSlots, s.GPUsPerBox),
		inRange("--at-once", 0, 1024, s.AtOnce), // 0: "bench attach", without the flag
	)
	switch {
	case err != nil:
		return err
	case s.Heartbeat <= 0 || s.Timeout <= 0:
		return fmt.Errorf("--heartbeat %v, --timeout %v: want positive durations", s.Heartbeat, s.Timeout)
	}
	return nil
}

// withStore checks the flags and calls run, with a store in a temporary directory.
func (o *capacityOptions) withStore(progress func(string, ...any), run func() error) (err error) {
	if err := o.check(); err != nil {
		return usage(err)
	}
	if o.spec.Progress = progress; o.memory {
		return run()
	}
	dir, err := os.MkdirTemp("", "dxpu-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx := context.Background()
	store, err := etcdstore.Open(ctx, etcdstore.Options{Dir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Resign(ctx), store.Close()) }()
	if _, err := store.Campaign(ctx); err != nil {
		return err
	}
	o.spec.Store = store
	return run()
}

func printCapacity(w io.Writer, r *capacity.Report) {
	fmt.Fprintf(w, "%d processors, %s; %d GPUs in %d boxes, %d hosts, one process; %d concurrent callers\n\n",
		r.Processors, r.Go, r.GPUs, r.Boxes, r.Hosts, r.AtOnce)
	t := newTable(w, "MEASURED", "VALUE")
	t.row("start, until the manager knows all GPUs", duration(r.StartNS))
	t.row(fmt.Sprintf("attach all %d GPUs", r.GPUs), duration(r.AttachNS))
	t.row("use each GPU: driver, registers, verified DMA both ways", duration(r.DriveNS))
	t.row("release all GPUs, until they are scrubbed and free", duration(r.ReleaseNS))
	t.row("memory per attached GPU, both proxies and manager", fmt.Sprintf("%.1f KiB", r.MemoryPerGPU/1024))
	t.row("memory of the empty pool", size(r.MemoryEmpty))
	t.row("memory of the process, all attached (RSS)", size(r.RSS))
	t.row("idle, nothing attached", percentOfCore(r.IdleEmpty))
	t.row("idle, all attached", percentOfCore(r.IdleAttached))
	t.row("goroutines, all attached", fmt.Sprintf("%d, %.1f per GPU", r.Goroutines, r.PerAttachment))
	t.flush()
	fmt.Fprintln(w)
	printParts(w, r.Parts)
}

func percentOfCore(v float64) string { return fmt.Sprintf("%.1f %% of a processor", 100*v) }

func printParts(w io.Writer, parts []capacity.Part) {
	t := newTable(w, "PART OF AN ATTACH", "P50", "P99")
	for _, p := range parts {
		t.row(p.Name, duration(p.P50NS), duration(p.P99NS))
	}
	t.flush()
}

// fleetOptions are the flags of "dxpu bench manager".
type fleetOptions struct {
	spec fleet.Spec
	gpus int
	etcd bool
	out  *output
}

func newBenchManagerCommand() *cobra.Command {
	o := &fleetOptions{}
	cmd := &cobra.Command{
		Use: "manager", Short: "Measure the manager with many simulated nodes", Args: cobra.NoArgs,
		Long: `Measure the manager with many simulated nodes. The manager is a separate process. The
hosts and boxes are in this process and have no data plane: each talks to the manager
like a real one, over HTTP/2 on the loopback interface, and reports every attach and
detach as done at once. Several nodes share a connection, because a process cannot
open one for each node.

The benchmark enrols all nodes, creates and attaches leases of one GPU each, and
measures the idle manager with the reports of its nodes. Then it releases nine of ten
leases, ends the manager, and starts another one on the same state, which has to find
all nodes and all attached GPUs. A lost lease or node fails the benchmark.

Times are those of the callers, who share the processors with the nodes and the
manager. Processor time and memory are the manager's. With --etcd the state is in an
embedded etcd in a temporary directory, below $TMPDIR.`,
		Example: `  dxpu bench manager
  dxpu bench manager --etcd --json
  dxpu bench manager --hosts 100 --gpus 512 --leases 500`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.IntVar(&o.spec.Hosts, "hosts", 10_000, "number of hosts, 1 to 100000")
	f.IntVar(&o.spec.SlotsPerHost, "slots-per-host", 16, "number of slots of each host, 1 to 64")
	f.IntVar(&o.gpus, "gpus", 100_000, "number of GPUs, a multiple of --gpus-per-box, up to 1000000")
	f.IntVar(&o.spec.GPUsPerBox, "gpus-per-box", 8, "number of GPUs of each box, 1 to 64")
	f.IntVar(&o.spec.Leases, "leases", 10_000, "number of leases of one GPU each, at most the number of GPUs")
	f.IntVar(&o.spec.AtOnce, "at-once", 64, "number of concurrent callers, and of nodes that enrol concurrently, 1 to 1024")
	f.IntVar(&o.spec.NodesPerConnection, "nodes-per-connection", 4, "number of nodes that share a connection, 1 to 100")
	durationVar(f, &o.spec.Heartbeat, "heartbeat", 0, "interval between two reports of a node (default: the manager's interval)")
	positiveDurationVar(f, &o.spec.Idle, "idle", 20*time.Second, "duration of the measurement of the idle manager")
	positiveDurationVar(f, &o.spec.Timeout, "timeout", 5*time.Minute, "longest duration of each part")
	f.BoolVar(&o.etcd, "etcd", false, "keep the state in embedded etcd (default: memory)")
	f.StringVar(&o.spec.Profile, "profile", "", "prefix of files for profiles of the manager's processor time and heap in each part")
	o.out = jsonFlag(cmd)
	return cmd
}

func (o *fleetOptions) check() error {
	s := &o.spec
	err := cmp.Or(
		inRange("--hosts", 1, 100_000, s.Hosts),
		inRange("--slots-per-host", 1, 64, s.SlotsPerHost),
		inRange("--gpus", 1, 1_000_000, o.gpus),
		inRange("--gpus-per-box", 1, 64, s.GPUsPerBox),
		inRange("--leases", 1, min(o.gpus, s.Hosts*s.SlotsPerHost), s.Leases),
		inRange("--at-once", 1, 1024, s.AtOnce),
		inRange("--nodes-per-connection", 1, 100, s.NodesPerConnection), // HTTP/2 servers bound the calls of a connection
	)
	switch {
	case err != nil:
		return err
	case o.gpus%s.GPUsPerBox != 0:
		return fmt.Errorf("--gpus %d: want a multiple of --gpus-per-box %d", o.gpus, s.GPUsPerBox)
	case s.Heartbeat < 0 || s.Idle <= 0 || s.Timeout <= 0:
		return fmt.Errorf("--heartbeat %v, --idle %v, --timeout %v: want durations above zero", s.Heartbeat, s.Idle, s.Timeout)
	}
	s.Boxes = o.gpus / s.GPUsPerBox
	return nil
}

func (o *fleetOptions) run(cmd *cobra.Command) (err error) {
	if !cmd.Flags().Changed("leases") {
		o.spec.Leases = min(o.spec.Leases, o.gpus, o.spec.Hosts*o.spec.SlotsPerHost)
	}
	if err := o.check(); err != nil {
		return usage(err)
	}
	if o.etcd {
		if o.spec.Dir, err = os.MkdirTemp("", "dxpu-bench"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.spec.Dir)) }()
	}
	o.spec.Child = []string{os.Args[0], "bench", "serve", "--manager"}
	o.spec.Progress = progress(cmd.ErrOrStderr())
	r, err := fleet.Run(cmd.Context(), o.spec)
	if err != nil && (r == nil || r.Enroll.Count == 0) {
		return err
	}
	return errors.Join(err, printValue(cmd, o.out, r, printFleet)) // also the measurements before an error
}

func printFleet(w io.Writer, r *fleet.Report) {
	fmt.Fprintf(w, "%d processors, %s; %d hosts, %d boxes, %d GPUs; state in %s; %d nodes per connection, %d concurrent callers\n\n",
		r.Processors, r.Go, r.Hosts, r.Boxes, r.GPUs, r.Store, r.NodesPerConnection, r.AtOnce)
	t := newTable(w, "WORK", "COUNT", "TOOK", "PER SECOND", "PROCESSOR TIME EACH")
	for _, x := range []struct {
		name string
		fleet.Work
	}{
		{"nodes enrol, until all GPUs are free", r.Enroll},
		{"leases created", r.Create},
		{"leases created and attached", r.Attach},
		{"leases deleted and released", r.Detach},
		{"nodes reconnected after the end of the manager", r.Restart},
	} {
		if x.Count > 0 {
			t.row(x.name, x.Count, duration(x.TookNS), fmt.Sprintf("%.0f", x.PerSecond), duration(x.Processor))
		}
	}
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "CALL", "COUNT", "P50", "P99")
	for _, c := range r.Calls {
		t.row(c.Name, c.Count, duration(c.P50NS), duration(c.P99NS))
	}
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "MANAGER", "OBJECTS AND STACKS", "RSS", "GOROUTINES", "FILES")
	t.row("no node", size(r.Empty.Heap), size(r.Empty.RSS), r.Empty.Goroutines, r.Empty.Files)
	t.row("all nodes", size(r.Enrolled.Heap), size(r.Enrolled.RSS), r.Enrolled.Goroutines, r.Enrolled.Files)
	t.row("all nodes, all leases", size(r.Idle.Heap), size(r.Idle.RSS), r.Idle.Goroutines, r.Idle.Files)
	t.flush()
	fmt.Fprintf(w, "\nThe idle manager takes %s for %.0f reports per second.", percentOfCore(r.Idle.Share), r.IdleReports)
	if r.RestartServesNS > 0 {
		fmt.Fprintf(w, " After its end the next manager serves within %s.", duration(r.RestartServesNS))
	}
	fmt.Fprintln(w)
}

func newBenchStoreCommand() *cobra.Command {
	var spec store.Spec
	var dir string
	cmd := benchmark(&cobra.Command{
		Use: "store", Short: "Compare the rate of durable leases with that of bare etcd puts",
		Long: `Measure how many leases per second a manager stores durably in embedded etcd and, in
the same run, how many bare puts per second that etcd performs, with values of the
size that the manager stores for a lease. Leases and puts alternate; the rates are
the medians of the rounds.

The callers, the API, the manager and etcd are in one process. A lease counts when
its call has returned, at which point it is on disk. The nodes are simulated, and
nothing is attached. The manager stores leases in groups, so the ratio can be above
one.`,
		Example: `  dxpu bench store
  dxpu bench store --at-once 1 --dir /var/lib --json`,
	}, func(ctx context.Context, progress func(string, ...any)) (_ *store.Report, err error) {
		err = cmp.Or(inRange("--leases", 1, 100_000, spec.Leases), inRange("--at-once", 1, 1024, spec.AtOnce), inRange("--rounds", 1, 100, spec.Rounds))
		if err != nil {
			return nil, err
		}
		if spec.Dir, err = os.MkdirTemp(dir, "dxpu-bench"); err != nil {
			return nil, fmt.Errorf("--dir: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(spec.Dir)) }()
		spec.Progress = progress
		return store.Run(ctx, spec)
	}, printStoreBench)
	f := cmd.Flags()
	f.IntVar(&spec.Leases, "leases", 5000, "number of leases, and of puts, in each round, 1 to 100000")
	f.IntVar(&spec.AtOnce, "at-once", 64, "number of concurrent callers, 1 to 1024")
	f.IntVar(&spec.Rounds, "rounds", 3, "number of rounds, 1 to 100")
	f.StringVar(&dir, "dir", "", "directory for a temporary directory with the state (default $TMPDIR)")
	return cmd
}

func printStoreBench(w io.Writer, r *store.Report) {
	fmt.Fprintf(w, "%d processors, %s; %d concurrent callers, %d rounds\n\n", r.Processors, r.Go, r.AtOnce, r.Rounds)
	t := newTable(w, "CALL", "COUNT", "PER SECOND", "P50", "P99")
	t.row("durable leases", r.Leases.Count, fmt.Sprintf("%.0f", r.Leases.PerSecond), duration(r.Leases.P50NS), duration(r.Leases.P99NS))
	t.row(fmt.Sprintf("bare puts of %d bytes", r.PutBytes), r.Puts.Count, fmt.Sprintf("%.0f", r.Puts.PerSecond), duration(r.Puts.P50NS), duration(r.Puts.P99NS))
	t.flush()
	fmt.Fprintf(w, "\nThe ratio of leases to puts is %.2f; a transaction of etcd stores %.1f leases on average.\n", r.Ratio, r.LeasesPerWrite)
}

func newBenchPlacementCommand() *cobra.Command {
	var o bench.PlacementOptions
	cmd := benchmark(&cobra.Command{
		Use: "placement", Short: "Measure the duration of placement decisions",
		Long: `Measure how long the choice of GPUs and host slots for a lease takes: with the
manager's index and, for the same pool in the same run, with a plain scan over all
GPUs. The pools are 70 % full and change with each decision. A difference between the
two decisions fails the benchmark.`,
		Example: `  dxpu bench placement
  dxpu bench placement --gpus 512 --hosts 64 --json`,
	}, func(ctx context.Context, progress func(string, ...any)) (*bench.PlacementReport, error) {
		err := cmp.Or(
			inRange("--gpus", 64, 1_000_000, o.GPUs...), inRange("--hosts", 1, 100_000, o.Hosts...),
			inRange("--decisions", 1, 1_000_000, o.Decisions), inRange("--scans", 1, 1_000_000, o.Scans))
		if err != nil {
			return nil, err
		}
		o.Progress = progress
		return bench.Placement(ctx, o)
	}, printPlacement)
	f := cmd.Flags()
	f.IntSliceVar(&o.GPUs, "gpus", []int{512, 100_000}, "numbers of GPUs of the pools, each 64 to 1000000")
	f.IntSliceVar(&o.Hosts, "hosts", []int{64, 10_000}, "numbers of hosts of the pools, each 1 to 100000")
	f.IntVar(&o.Decisions, "decisions", 4000, "number of decisions for each request, 1 to 1000000")
	f.IntVar(&o.Scans, "scans", 200, "number of these decisions that the scan makes, too")
	return cmd
}

func printPlacement(w io.Writer, r *bench.PlacementReport) {
	fmt.Fprintf(w, "%d processors, %s\n\n", r.Processors, r.Go)
	t := newTable(w, "POOL", "REQUEST", "PLACED", "INDEX P50", "P99", "SCAN P50", "P99", "SCAN/INDEX")
	us := func(v float64) string {
		if v == 0 {
			return ""
		}
		return benchNumber(v, bench.Microseconds)
	}
	for _, row := range r.Rows {
		ratio, placed := "", ""
		if row.Ratio > 0 {
			ratio, placed = benchNumber(row.Ratio, ""), fmt.Sprintf("%.0f %%", 100*row.Placed)
		}
		t.row(row.Pool, row.Request, placed, us(row.IndexP50), us(row.IndexP99), us(row.ScanP50), us(row.ScanP99), ratio)
	}
	t.flush()
}

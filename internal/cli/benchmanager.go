package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/bench/fleet"
)

// fleetOptions are the flags of "dxpu bench manager".
type fleetOptions struct {
	spec fleet.Spec
	gpus int
	etcd bool
	json bool
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
	f.DurationVar(&o.spec.Heartbeat, "heartbeat", 0, "interval between two reports of a node (default: the manager's interval)")
	f.DurationVar(&o.spec.Idle, "idle", 20*time.Second, "duration of the measurement of the idle manager")
	f.DurationVar(&o.spec.Timeout, "timeout", 5*time.Minute, "longest duration of each part")
	f.BoolVar(&o.etcd, "etcd", false, "keep the state in embedded etcd (default: memory)")
	f.StringVar(&o.spec.Profile, "profile", "", "prefix of files for profiles of the manager's processor time and heap in each part")
	jsonFlag(cmd, &o.json)
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
	return errors.Join(err, printValue(cmd, o.json, r, printFleet)) // also the measurements before an error
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

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/bench/fleet"
)

// fleetOptions are the flags of bench manager.
type fleetOptions struct {
	spec fleet.Spec
	gpus int
	etcd bool
	json bool
}

func newBenchManagerCommand() *cobra.Command {
	o := &fleetOptions{}
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Measure the manager alone, with very many simulated nodes",
		Long: `Measure the manager alone, with very many simulated nodes. The manager is a
process of its own. The hosts and boxes are in this process, without a data plane:
each talks to the manager as a real one does, over HTTP/2 on the loopback interface,
and attaches or lets go at once, whatever it is told. Several share a connection,
because a process may not have as many as there are nodes.

All nodes enrol; leases of one GPU each are made and attached; the manager is left
alone with the reports of its nodes; nine of ten leases are released; the manager
ends and another one begins on the same state, until it knows of all nodes and of all
GPUs that are attached. A lease that is lost, or a node, fails the benchmark.

Times are those that the callers see, on processors that they, the nodes and the
manager share; processor time and memory are the manager's. With --etcd it keeps its
state in an embedded etcd in a temporary directory, which $TMPDIR puts elsewhere.`,
		Example: `  dxpu bench manager
  dxpu bench manager --etcd --json
  dxpu bench manager --hosts 100 --gpus 512 --leases 500`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.IntVar(&o.spec.Hosts, "hosts", 10_000, "hosts, 1 to 100000")
	f.IntVar(&o.spec.SlotsPerHost, "slots-per-host", 16, "slots of each host, 1 to 64")
	f.IntVar(&o.gpus, "gpus", 100_000, "GPUs, a multiple of --gpus-per-box, up to 1000000")
	f.IntVar(&o.spec.GPUsPerBox, "gpus-per-box", 8, "GPUs of each box, 1 to 64")
	f.IntVar(&o.spec.Leases, "leases", 10_000, "leases of one GPU each, as many as there are GPUs at the most")
	f.IntVar(&o.spec.AtOnce, "at-once", 64, "callers, and nodes that enrol, at the same time, 1 to 1024")
	f.IntVar(&o.spec.NodesPerConnection, "nodes-per-connection", 4, "nodes that share a connection, 1 to 100")
	f.DurationVar(&o.spec.Heartbeat, "heartbeat", 0, "how often each node reports (default: what the manager says)")
	f.DurationVar(&o.spec.Idle, "idle", 20*time.Second, "how long the idle manager is looked at")
	f.DurationVar(&o.spec.Timeout, "timeout", 5*time.Minute, "longest time for each part")
	f.BoolVar(&o.etcd, "etcd", false, "keep the state in embedded etcd (default: memory)")
	f.StringVar(&o.spec.Profile, "profile", "", "write profiles of the manager's processor time and heap to files that begin so, for each part")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *fleetOptions) check() error {
	s := &o.spec
	for _, n := range []struct {
		flag       string
		value, max int
	}{
		{"--hosts", s.Hosts, 100_000},
		{"--slots-per-host", s.SlotsPerHost, 64},
		{"--gpus", o.gpus, 1_000_000},
		{"--gpus-per-box", s.GPUsPerBox, 64},
		{"--leases", s.Leases, min(o.gpus, s.Hosts*s.SlotsPerHost)},
		{"--at-once", s.AtOnce, 1024},
		{"--nodes-per-connection", s.NodesPerConnection, 100}, // HTTP/2 servers bound the calls of a connection
	} {
		if n.value < 1 || n.value > n.max {
			return fmt.Errorf("%s %d: want 1 to %d", n.flag, n.value, n.max)
		}
	}
	switch {
	case o.gpus%s.GPUsPerBox != 0:
		return fmt.Errorf("--gpus %d: want a multiple of --gpus-per-box %d", o.gpus, s.GPUsPerBox)
	case s.Heartbeat < 0 || s.Idle <= 0 || s.Timeout <= 0:
		return fmt.Errorf("--heartbeat %v, --idle %v, --timeout %v: want some time", s.Heartbeat, s.Idle, s.Timeout)
	}
	s.Boxes = o.gpus / s.GPUsPerBox
	return nil
}

func (o *fleetOptions) run(cmd *cobra.Command) (err error) {
	if !cmd.Flags().Changed("leases") {
		o.spec.Leases = min(o.spec.Leases, o.gpus, o.spec.Hosts*o.spec.SlotsPerHost)
	}
	if err := o.check(); err != nil {
		return &usageError{err}
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
	switch {
	case err != nil && (r == nil || r.Enroll.Count == 0):
		return err
	case o.json:
		return errors.Join(err, writeJSON(cmd.OutOrStdout(), r))
	default: // what was measured until an error is worth something
		return errors.Join(err, printFleet(cmd.OutOrStdout(), r))
	}
}

func printFleet(w io.Writer, r *fleet.Report) error {
	_, _ = fmt.Fprintf(w, "%d processors, %s; %d hosts, %d boxes, %d GPUs; state in %s; %d nodes of a connection, %d callers at the same time\n\n",
		r.Processors, r.Go, r.Hosts, r.Boxes, r.GPUs, r.Store, r.NodesPerConnection, r.AtOnce)
	t := newTable(w, "WORK", "COUNT", "TOOK", "A SECOND", "PROCESSOR TIME EACH")
	for _, x := range []struct {
		name string
		fleet.Work
	}{
		{"nodes enrol, until all GPUs are free", r.Enroll},
		{"leases created", r.Create},
		{"leases created and attached", r.Attach},
		{"leases deleted and released", r.Detach},
		{"nodes back after the manager has ended", r.Restart},
	} {
		if x.Count == 0 {
			continue
		}
		t.row(x.name, x.Count, duration(x.TookNS), fmt.Sprintf("%.0f", x.PerSecond), duration(x.Processor))
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = newTable(w, "CALL", "COUNT", "P50", "P99")
	for _, c := range r.Calls {
		t.row(c.Name, c.Count, duration(c.P50NS), duration(c.P99NS))
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = newTable(w, "MANAGER", "OBJECTS AND STACKS", "RSS", "GOROUTINES", "FILES")
	t.row("no node", memory(r.Empty.Heap), memory(r.Empty.RSS), r.Empty.Goroutines, r.Empty.Files)
	t.row("all nodes", memory(r.Enrolled.Heap), memory(r.Enrolled.RSS), r.Enrolled.Goroutines, r.Enrolled.Files)
	t.row("all nodes, all leases", memory(r.Idle.Heap), memory(r.Idle.RSS), r.Idle.Goroutines, r.Idle.Files)
	if err := t.flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "\nIdle, it takes %s for %.0f reports a second.", percentOfCore(r.Idle.Share), r.IdleReports)
	if r.RestartServesNS > 0 {
		_, _ = fmt.Fprintf(w, " After its end the next one serves in %s.", duration(r.RestartServesNS))
	}
	_, err := fmt.Fprintln(w)
	return err
}

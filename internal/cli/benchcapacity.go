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

	"github.com/dxpu-project/dxpu/internal/bench/capacity"
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
	cmd.Flags().DurationVar(&o.spec.Idle, "idle", 5*time.Second, "duration of each of the two measurements of the idle pool")
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
	f.DurationVar(&o.spec.Heartbeat, "heartbeat", 250*time.Millisecond, "interval between two reports of a proxy")
	f.DurationVar(&o.spec.Timeout, "timeout", 5*time.Minute, "longest duration of each part")
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

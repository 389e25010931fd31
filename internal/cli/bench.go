//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/bench"
	"github.com/dxpu-project/dxpu/internal/bench/fleet"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/soak"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/share"
)

func newBenchCommand() *cobra.Command {
	var manager bool
	serve := &cobra.Command{
		Use: "serve", Hidden: true, Short: "Run the other process of a benchmark",
		Long:    `Run the other process of a benchmark. The benchmark that starts it sends requests on standard input and reads answers from standard output.`,
		Example: `  dxpu bench rtt`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if manager {
				return fleet.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return bench.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	serve.Flags().BoolVar(&manager, "manager", false, "run a manager instead of a proxy")
	return group("bench", "Compare the system's performance with the limits of this machine",
		`Measure the data plane and, in the same run, the bare limits of this machine: the
same work by sockets, cipher and checksum without proxies.

The host proxy, the box proxy and the far ends of the bare measurements are separate
processes. Measurements and limits alternate in short rounds, so that other load on
the machine affects both; a ratio is the median of the rounds. Every benchmark checks
the data that it moves and fails on a wrong byte.`,
		`  dxpu bench rtt
  dxpu bench dma --cipher none --rounds 9 --json`,
		benchCommand("rtt", "Measure the round trip of a register read", `Measure the round trip of a register read: from the embedded host and from a
vfio-user client to a GPU behind both proxies; from an embedded host to a GPU
directly below it; and bare ping-pongs with messages of the same sizes. The round
trip is split into the three parts of the DxPU paper. With --beside, another process
shares the processors with all of them, such as the idle guest that a host usually
has.`, bench.RTT),
		benchCommand("write", "Measure posted register writes", `Measure the rate of posted register writes over one binding, from the embedded host
and from a vfio-user client, and compare it with an embedded host whose GPU is
directly below it. The GPU counts all writes and checks their order.`, bench.Write),
		benchCommand("dma", "Measure copies between host memory and GPU", `Measure copies between host memory and GPU: by DMA in both directions and by posted
writes of the CPU, with Device Control set to 4096 bytes and to 128, as guests do:
both must give the same. The limits are UDP and TCP that move the same bytes with the
same cipher and checksum. The benchmark then repeats
both kinds of copy to the device over networks that add 0 to 100 µs per round trip.`, bench.DMA),
		benchCommand("convert", "Measure the conversion of packets", `Measure the conversion of a PCI Express packet to network packets and back, in this
process and without cipher. The limit is one copy and two checksums of its bytes.`, bench.Convert),
		benchCommand("scale", "Measure many bindings on one pair of proxies", `Measure the total bandwidth of 1, 8 and 64 concurrent bindings on one pair of
proxies, and the memory of an idle binding on each side.`, bench.Scale),
		benchCommand("slices", "Measure what two slices of one GPU feel of each other", `Divide a software GPU into two slices that are bound to two hosts. Measure the 99th
percentile of the requests of one slice, alone and while the other slice floods the GPU
with kernels and copies; and the shares of the GPU when both run as many kernels as they
can.`, bench.Slices),
		newBenchWorkloadCommand(), newBenchPlacementCommand(), newBenchCapacityCommand(), newBenchAttachCommand(),
		newBenchManagerCommand(), newBenchStoreCommand(),
		newBenchSoakCommand(),
		serve)
}

// benchOptions are the flags of a benchmark.
type benchOptions struct {
	bench.Options
	cipher, fault string
	oneProcess    bool
}

// benchmark completes a command that runs a benchmark and prints its report.
func benchmark[R any](
	cmd *cobra.Command, run func(ctx context.Context, progress func(string, ...any)) (R, error), text func(io.Writer, R),
) *cobra.Command {
	cmd.Args = cobra.NoArgs
	return valueCommand(cmd, func(cmd *cobra.Command, _ []string) (R, error) {
		return run(cmd.Context(), progress(cmd.ErrOrStderr()))
	}, text)
}

func benchCommand(name, short, long string, run func(context.Context, bench.Options) (*bench.Report, error)) *cobra.Command {
	o := &benchOptions{}
	cmd := benchmark(&cobra.Command{
		Use: name, Short: short, Long: long,
		Example: fmt.Sprintf("  dxpu bench %s\n  dxpu bench %s --cipher none --duration 1s --rounds 9 --json", name, name),
	}, func(ctx context.Context, progress func(string, ...any)) (*bench.Report, error) {
		if err := o.check(); err != nil {
			return nil, err
		}
		if o.Progress = progress; !o.oneProcess {
			o.Child = []string{os.Args[0], "bench", "serve"}
		}
		return beside(ctx, o.Busy, func(ctx context.Context) (*bench.Report, error) { return run(ctx, o.Options) })
	}, printReport)
	f := cmd.Flags()
	each := 200 * time.Millisecond
	if name == "slices" {
		each = 2 * time.Second // for a percentile of requests of some milliseconds
		f.StringVar(&o.Policy, "policy", defaultPolicy, `policy that shares the GPU, see "dxpu share policies"`)
	}
	positiveDurationVar(f, &o.Duration, "duration", each, "duration of each measurement in each round")
	f.IntVar(&o.Rounds, "rounds", 5, "number of rounds, 1 to 1000")
	f.StringVar(&o.cipher, "cipher", link.CipherAES256GCM.String(), "cipher of the bindings: aes-256-gcm or none")
	f.IntVar(&o.MTU, "mtu", 0, "largest datagram, in bytes of UDP payload (default: the limit of the loopback interface)")
	f.StringVar(&o.fault, "fault", "", `fault plan for the datagrams that the proxies send, such as "loss=1%,delay=10us" (see docs/faults.md)`)
	f.BoolVar(&o.oneProcess, "one-process", false, "run everything in this process")
	pollingFlags(f, &o.Polling)
	busyFlag(f, &o.Busy)
	f.StringVar(&o.Profile, "cpu-profile", "", "prefix of files to which the other processes write CPU profiles")
	if name == "dma" || name == "scale" {
		o.Size = 8 << 20
		sizeVar(f, &o.Size, "size", "size of one copy, such as 64KiB or 8MiB")
	}
	if name == "rtt" {
		f.StringVar(&o.Beside, "beside", "", "neighbour that measurements and limits share the processors with: guest (an idle guest in QEMU) or busy (a busy loop)")
	}
	if name == "scale" {
		f.IntSliceVar(&o.Bindings, "bindings", []int{1, 8, 64}, "numbers of concurrent bindings, each 1 to 256")
	}
	return cmd
}

// busyFlag adds the number of neighbours.
func busyFlag(f *pflag.FlagSet, n *int) {
	f.IntVar(n, "busy", 0, "number of processes beside the benchmark that keep a processor busy each")
}

// beside runs a benchmark beside busy processes.
func beside[R any](ctx context.Context, busy int, run func(context.Context) (R, error)) (R, error) {
	return bench.BesideLoops(ctx, busy, []string{os.Args[0], "bench", "serve"}, run)
}

// check checks and parses the flags.
func (o *benchOptions) check() (err error) {
	if o.Cipher, err = parseCipher(o.cipher); err != nil {
		return err
	}
	if o.Fault, err = fault.Parse(o.fault); err != nil {
		return usagef("--fault: %w", err)
	}
	if _, err := share.Find(o.Policy); o.Policy != "" && err != nil {
		return usagef("--policy %s: \"dxpu share policies\" lists the policies", o.Policy)
	}
	switch {
	case o.Rounds < 1 || o.Rounds > 1000:
		return usagef("--rounds %d: want 1 to 1000", o.Rounds)
	case o.MTU != 0 && (o.MTU < frame.MinMTU || o.MTU > frame.MaxDatagram):
		return usagef("--mtu %d: want %d to %d", o.MTU, frame.MinMTU, frame.MaxDatagram)
	case o.Size != 0 && (o.Size < frame.MaxPayload || o.Size > maxBenchSize || o.Size%frame.MaxPayload != 0):
		return usagef("--size: want a multiple of %d bytes up to %s", frame.MaxPayload, size(maxBenchSize))
	}
	switch o.Beside {
	case "", bench.BesideBusy:
	case bench.BesideGuest:
		install, err := qemu.Locate()
		if err != nil {
			return fmt.Errorf("--beside guest: %w", err)
		}
		o.Guest = &install
	default:
		return usagef("--beside: %q is not one of guest, busy", o.Beside)
	}
	if err := inRange("--busy", 0, bench.MaxBusy, o.Busy); err != nil {
		return err
	}
	return inRange("--bindings", 1, boxproxy.MaxSlots, o.Bindings...)
}

// maxBenchSize fits into the memory of an embedded host and the aperture of its GPU.
const maxBenchSize = 32 << 20

func parseCipher(s string) (link.Cipher, error) {
	for _, c := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		if s == c.String() {
			return c, nil
		}
	}
	return 0, usagef("--cipher: %q is not one of aes-256-gcm, none", s)
}

// printSetup prints the conditions of the measurements.
func printSetup(w io.Writer, r *bench.Report) {
	where := "all in one process"
	if r.Setup.Processes {
		where = "each proxy in its own process"
	}
	if r.Setup.Busy > 0 {
		where += fmt.Sprintf(", --busy %d", r.Setup.Busy)
	}
	if r.Setup.MTU == 0 { // no network
		fmt.Fprintf(w, "%d processors, %s; %d rounds of %v\n\n", r.Setup.Processors, r.Setup.Go, r.Setup.Rounds, time.Duration(r.Setup.DurationNS))
		return
	}
	if r.Setup.Beside != "" {
		where += ", beside " + map[string]string{bench.BesideGuest: "an idle guest in QEMU", bench.BesideBusy: "a busy loop"}[r.Setup.Beside]
	}
	fmt.Fprintf(w, "%d processors, %s; cipher %s, datagrams of up to %d bytes, faults %s; %d rounds of %v; %s\n\n",
		r.Setup.Processors, r.Setup.Go, r.Setup.Cipher, r.Setup.MTU, r.Setup.Fault, r.Setup.Rounds, time.Duration(r.Setup.DurationNS), where)
}

func printReport(w io.Writer, r *bench.Report) {
	printSetup(w, r)
	t := newTable(w, "MEASURED", "MEDIAN", "P90", "P99", "ROUNDS", "BARE LIMIT", "", "RATIO")
	for i := range r.Figures {
		f := &r.Figures[i]
		row := []any{f.Name, benchNumber(f.Value, f.Unit), "", "", benchNumber(f.Low, "") + " to " + benchNumber(f.High, f.Unit), "", "", ""}
		if f.P90 > 0 {
			row[2], row[3] = benchNumber(f.P90, f.Unit), benchNumber(f.P99, f.Unit)
		}
		if f.Bare != "" {
			row[5], row[6], row[7] = f.Bare, benchNumber(f.BareValue, f.Unit), fmt.Sprintf("%.2f", f.Ratio)
		}
		if f.Allocs != nil {
			row[0] = fmt.Sprintf("%s (%.0f allocations)", f.Name, *f.Allocs)
		}
		t.row(row...)
	}
	t.flush()
	if r.Split != nil {
		fmt.Fprintln(w)
		printSplit(w, r.Split)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "\n%s\n", n)
	}
}

func printSplit(w io.Writer, s *bench.Split) {
	t := newTable(w, "PART OF THE ROUND TRIP", "HERE", "", "PAPER", "", "MEASUREMENT")
	row := func(name string, here, paper float64, what string) {
		t.row(name, benchNumber(here, bench.Microseconds), fmt.Sprintf("%.1f %%", 100*here/s.Total),
			benchNumber(paper, bench.Microseconds), fmt.Sprintf("%.1f %%", 100*paper/s.Paper.Total), what)
	}
	row("original time latency", s.Original, s.Paper.Original, "the read with the GPU directly below the embedded host")
	row("network transmission", s.Network, s.Paper.Network, "bare UDP ping-pong of the same sizes, with ends that never sleep")
	row("packet conversion", s.Conversion, s.Paper.Conversion, "the rest: conversion, protocol, cipher, wake-ups of threads")
	row("round trip", s.Total, s.Paper.Total, "embedded host, remote GPU")
	t.flush()
}

// benchNumber prints a value with three digits and its unit.
func benchNumber(v float64, unit string) string {
	text := fmt.Sprintf("%.3g", v)
	switch {
	case unit == bench.PerSecond && v >= 1e6:
		return fmt.Sprintf("%.2f M/s", v/1e6)
	case v >= 1000:
		text = fmt.Sprintf("%.0f", v)
	}
	if unit == "" {
		return text
	}
	return text + " " + unit
}

func newBenchSoakCommand() *cobra.Command {
	var o soak.Options
	var out *output
	cmd := &cobra.Command{
		Use: "soak", Short: "Run a host and a box under random faults for a long time", Args: cobra.NoArgs,
		Long: `Run a host proxy and two box proxies with several bindings over two paths of the
loopback interface, under random faults: loss, duplication, reordering, corruption,
delay, a bottleneck, a smaller MTU, a path cut in one or both directions, all paths
cut, a jumping clock, a proxy or a device server that is killed and restarted, and a
device server that stands still.

Meanwhile the benchmark attaches, uses and detaches devices, three quarters of them
software GPUs and one quarter device servers: copies in both directions, copies between
two GPUs of one box and of two boxes, numbered posted writes and register accesses, all
verified. With --busy, other processes use the processors too. Each of these is a
violation: a wrong byte; a posted write that does not arrive exactly once and in
order; an operation that fails without a fault that can end a binding; an operation
that neither completes nor fails; the two ends of a link counting different TLPs; and
more memory, goroutines or file descriptors at the end than after the warm-up.

The exit code is 1 after a violation. The command prints the seed that repeats the
run.`,
		Example: `  dxpu bench soak --duration 5m
  dxpu bench soak --duration 1h --seed 7 --json
  dxpu bench soak --duration 1h --bindings 34 --busy 16`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := inRange("--bindings", soak.MinBindings, soak.MaxBindings, o.Bindings); err != nil {
				return err
			}
			o.Progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			if err := inRange("--busy", 0, bench.MaxBusy, o.Busy); err != nil {
				return err
			}
			rep, err := beside(cmd.Context(), o.Busy, func(ctx context.Context) (*soak.Report, error) { return soak.Run(ctx, o) })
			if err != nil {
				return err
			}
			err = printValue(cmd, out, rep, printSoak)
			if err == nil && !rep.OK {
				err = withHint(fmt.Errorf("%d violations", len(rep.Violations)), "repeat the run with --seed %d", rep.Seed)
			}
			return err
		},
	}
	f := cmd.Flags()
	positiveDurationVar(f, &o.Duration, "duration", time.Hour, "duration of the run")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the faults and of the hosts' operations (default: random, and printed)")
	f.IntVar(&o.Bindings, "bindings", soak.MinBindings, "number of devices, half on an embedded host and half on vfio-user clients")
	busyFlag(f, &o.Busy)
	positiveDurationVar(f, &o.Every, "every", 10*time.Second, "interval between two progress reports")
	out = jsonFlag(cmd)
	return cmd
}

func printSoak(w io.Writer, r *soak.Report) {
	a := r.Account
	busy := ""
	if r.Busy > 0 {
		busy = fmt.Sprintf(", --busy %d", r.Busy)
	}
	fmt.Fprintf(w, "%v with %d bindings%s, seed %d\n\n", time.Duration(r.DurationNS).Round(time.Second), r.Bindings, busy, r.Seed)
	t := newTable(w, "ACCOUNT", "AMOUNT", "DETAIL")
	t.row("bytes requested", a.Asked, "")
	t.row("bytes transferred and verified", a.Done, "")
	t.row("bytes reported lost", a.Lost, fmt.Sprintf("%d of %d operations", a.LostOperations, a.Operations))
	t.row("of them between GPUs of one box", a.PeerBytes-a.FarPeerBytes, "")
	t.row("of them between GPUs of two boxes", a.FarPeerBytes, "")
	t.row("of them moved by device servers", a.ServerBytes, "")
	t.row("posted writes, exactly once and in order", a.PostedWrites, "")
	t.row("bindings", a.Sessions, fmt.Sprintf("%d ended with a reported loss, %d did not come up", a.LostSessions, a.FailedAttaches))
	t.row("bindings with equal TLP counts at both ends", a.BalancedSessions, "")
	t.row("time in which losses are allowed", time.Duration(r.ExcusedNS).Round(time.Second), fmt.Sprintf("%d stalls of the machine, up to %v", r.Stalls, time.Duration(r.LongestStall).Round(time.Millisecond)))
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "FAULT", "COUNT")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		t.row(kind, r.Faults[kind])
	}
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "AT REST AFTER", "HEAP", "SHARED MEMORY", "GOROUTINES", "FILE DESCRIPTORS")
	for _, s := range r.Samples {
		t.row(time.Duration(s.AtNS).Round(time.Second), fmt.Sprintf("%.2f MiB", float64(s.Heap)/(1<<20)), fmt.Sprintf("%.2f MiB", float64(s.Shared)/(1<<20)), s.Goroutines, s.FDs)
	}
	t.flush()
	for _, v := range r.Violations {
		fmt.Fprintf(w, "\nVIOLATION after %s", v)
	}
	if r.Goroutines != "" {
		fmt.Fprintf(w, "\n\n%s", r.Goroutines)
	}
	verdict := "no violations"
	if !r.OK {
		verdict = fmt.Sprintf("%d violations", len(r.Violations))
	}
	fmt.Fprintf(w, "\n%s\n", verdict)
}

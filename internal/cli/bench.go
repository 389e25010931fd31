package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/bench"
	"github.com/dxpu-project/dxpu/internal/bench/fleet"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/link"
)

func newBenchCommand() *cobra.Command {
	var manager bool
	serve := &cobra.Command{
		Use: "serve", Hidden: true, Short: "The other process of a benchmark",
		Long:    `The other process of a benchmark: requests and answers on standard input and output, which the benchmark that starts it knows.`,
		Example: `  dxpu bench rtt`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if manager {
				return fleet.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
			}
			return bench.Serve(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	serve.Flags().BoolVar(&manager, "manager", false, "be a manager, not a proxy")
	return group("bench", "Measure the data plane beside the limits of this machine",
		`Measure the data plane beside the bare limits of the machine it runs on, in the
same run: what the sockets, the cipher and the checksum take without proxies.

Host proxy, box proxy and the far ends of the bare measurements are processes of
their own. The measurements of a run alternate with their limits in short rounds;
a ratio is the median of those of the rounds, so that whatever else the machine
does hits both. Every benchmark checks the data it moves and fails on a wrong byte.`,
		`  dxpu bench rtt
  dxpu bench dma --cipher none --rounds 9 --json`,
		benchCommand("rtt", "Measure the round trip of a register read", `Measure the round trip of a register read: from the embedded host and from a
vfio-user client, to a GPU behind both proxies and back; from an embedded host
with the GPU right below it; and the bare ping-pongs of messages of the same
sizes. The round trip is split into the three parts of the DxPU paper.`, bench.RTT),
		benchCommand("write", "Measure posted register writes", `Measure how many posted register writes a second one binding takes, from the
embedded host and from a vfio-user client, beside an embedded host with the GPU
right below it. All writes are counted where they arrive, and their order checked.`, bench.Write),
		benchCommand("dma", "Measure copies between host memory and GPU", `Measure copies between host memory and GPU: by DMA, both ways, with large and
small packets, and by posted writes of the CPU; beside UDP that moves the same
bytes with the same cipher and checksum and does nothing else, and beside TCP. Then
both ways to the device over networks that add 0 to 100 µs to a round trip.`, bench.DMA),
		benchCommand("convert", "Measure the conversion of packets", `Measure the conversion of a PCI Express packet to network packets and back, in
this process and without cipher, beside one copy and two checksums of its bytes.`, bench.Convert),
		benchCommand("scale", "Measure many bindings on one pair of proxies", `Measure the total bandwidth of 1, 8 and 64 bindings at once on one pair of
proxies, and the memory that an idle binding takes on each side.`, bench.Scale),
		newBenchWorkloadCommand(), newBenchPlacementCommand(), newBenchCapacityCommand(), newBenchAttachCommand(),
		newBenchManagerCommand(), newBenchStoreCommand(),
		newBenchSoakCommand(),
		serve)
}

// benchOptions are the flags of a benchmark.
type benchOptions struct {
	bench.Options
	cipher, fault, size string
	oneProcess          bool
	json                bool
}

func benchCommand(name, short, long string, run func(context.Context, bench.Options) (*bench.Report, error)) *cobra.Command {
	o := &benchOptions{}
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long, Args: cobra.NoArgs,
		Example: fmt.Sprintf("  dxpu bench %s\n  dxpu bench %s --cipher none --duration 1s --rounds 9 --json", name, name),
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd, run) },
	}
	f := cmd.Flags()
	f.DurationVar(&o.Duration, "duration", 200*time.Millisecond, "how long each measurement takes in each round")
	f.IntVar(&o.Rounds, "rounds", 5, "rounds, 1 to 1000")
	f.StringVar(&o.cipher, "cipher", link.CipherAES256GCM.String(), "cipher of the bindings: aes-256-gcm or none")
	f.IntVar(&o.MTU, "mtu", 0, "largest datagram in bytes of UDP payload (default: what the loopback interface takes)")
	f.StringVar(&o.fault, "fault", "", `what the proxies do to the datagrams they send, like "loss=1%,delay=10us"`)
	f.BoolVar(&o.oneProcess, "one-process", false, "run everything in this process")
	pollingFlags(f, &o.Polling)
	f.StringVar(&o.Profile, "cpu-profile", "", "write CPU profiles of the other processes to files that begin so")
	if name == "dma" || name == "scale" {
		f.StringVar(&o.size, "size", "8MiB", "bytes of one copy, with KiB or MiB")
	}
	if name == "scale" {
		f.IntSliceVar(&o.Bindings, "bindings", []int{1, 8, 64}, "how many bindings at once, each 1 to 256")
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

// check reads what the flags say.
func (o *benchOptions) check() (err error) {
	if o.Cipher, err = parseCipher(o.cipher); err != nil {
		return err
	}
	if o.Fault, err = fault.Parse(o.fault); err != nil {
		return &usageError{fmt.Errorf("--fault: %w", err)}
	}
	if o.Rounds < 1 || o.Rounds > 1000 || o.Duration <= 0 {
		return &usageError{fmt.Errorf("--rounds %d, --duration %v: want 1 to 1000 rounds of some time", o.Rounds, o.Duration)}
	}
	if o.MTU != 0 && (o.MTU < frame.MinMTU || o.MTU > frame.MaxDatagram) {
		return &usageError{fmt.Errorf("--mtu %d: want %d to %d", o.MTU, frame.MinMTU, frame.MaxDatagram)}
	}
	for _, n := range o.Bindings {
		if n < 1 || n > boxproxy.MaxSlots {
			return &usageError{fmt.Errorf("--bindings: %d: want 1 to %d", n, boxproxy.MaxSlots)}
		}
	}
	if o.size == "" {
		return nil
	}
	if o.Size, err = parseSize(o.size); err != nil {
		return &usageError{fmt.Errorf("--size: %w", err)}
	}
	if o.Size < frame.MaxPayload || o.Size > maxBenchSize || o.Size%frame.MaxPayload != 0 {
		return &usageError{fmt.Errorf("--size %s: want a multiple of %d bytes up to %d MiB", o.size, frame.MaxPayload, maxBenchSize>>20)}
	}
	return nil
}

// maxBenchSize fits the memory of an embedded host and the GPU's aperture.
const maxBenchSize = 32 << 20

func (o *benchOptions) run(cmd *cobra.Command, run func(context.Context, bench.Options) (*bench.Report, error)) error {
	if err := o.check(); err != nil {
		return err
	}
	if !o.oneProcess {
		o.Child = []string{os.Args[0], "bench", "serve"}
	}
	o.Progress = progress(cmd.ErrOrStderr())
	report, err := run(cmd.Context(), o.Options)
	if err != nil {
		return err
	}
	if o.json {
		return writeJSON(cmd.OutOrStdout(), report)
	}
	return printReport(cmd.OutOrStdout(), report)
}

func parseCipher(s string) (link.Cipher, error) {
	for _, c := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		if s == c.String() {
			return c, nil
		}
	}
	return 0, &usageError{fmt.Errorf("--cipher: %q is not one of aes-256-gcm, none", s)}
}

// progress prints what is being done, every two seconds.
func progress(w io.Writer) func(format string, args ...any) {
	const every = 2 * time.Second
	start, next := time.Now(), every
	return func(format string, args ...any) {
		if took := time.Since(start); took >= next {
			next = took + every
			_, _ = fmt.Fprintf(w, "%5.1fs  %s\n", took.Seconds(), fmt.Sprintf(format, args...))
		}
	}
}

// printSetup says what was measured with.
func printSetup(w io.Writer, r *bench.Report) {
	where := "all in one process"
	if r.Setup.Processes {
		where = "each proxy in a process of its own"
	}
	if r.Setup.MTU == 0 { // no network
		_, _ = fmt.Fprintf(w, "%d processors, %s; %d rounds of %v\n\n", r.Setup.Processors, r.Setup.Go, r.Setup.Rounds, time.Duration(r.Setup.DurationNS))
		return
	}
	_, _ = fmt.Fprintf(w, "%d processors, %s; cipher %s, datagrams of up to %d bytes, faults %s; %d rounds of %v; %s\n\n",
		r.Setup.Processors, r.Setup.Go, r.Setup.Cipher, r.Setup.MTU, r.Setup.Fault, r.Setup.Rounds, time.Duration(r.Setup.DurationNS), where)
}

func printReport(w io.Writer, r *bench.Report) error {
	printSetup(w, r)
	t := newTable(w, "MEASURED", "MEDIAN", "P90", "P99", "ROUNDS", "BARE LIMIT", "", "RATIO")
	for i := range r.Figures {
		f := &r.Figures[i]
		row := []any{f.Name, benchNumber(f.Value, f.Unit), "", "", "", "", "", ""}
		if f.P90 > 0 {
			row[2], row[3] = benchNumber(f.P90, f.Unit), benchNumber(f.P99, f.Unit)
		}
		row[4] = benchNumber(f.Low, "") + " to " + benchNumber(f.High, f.Unit)
		if f.Bare != "" {
			row[5], row[6], row[7] = f.Bare, benchNumber(f.BareValue, f.Unit), fmt.Sprintf("%.2f", f.Ratio)
		}
		if f.Allocs != nil {
			row[0] = fmt.Sprintf("%s (%.0f allocations)", f.Name, *f.Allocs)
		}
		t.row(row...)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if r.Split != nil {
		_, _ = fmt.Fprintln(w)
		if err := printSplit(w, r.Split); err != nil {
			return err
		}
	}
	for _, n := range r.Notes {
		_, _ = fmt.Fprintf(w, "\n%s\n", n)
	}
	return nil
}

func printSplit(w io.Writer, s *bench.Split) error {
	t := newTable(w, "PART OF THE ROUND TRIP", "HERE", "", "PAPER", "", "WHAT IT IS")
	row := func(name string, here, paper float64, what string) {
		t.row(name, benchNumber(here, bench.Microseconds), fmt.Sprintf("%.1f %%", 100*here/s.Total),
			benchNumber(paper, bench.Microseconds), fmt.Sprintf("%.1f %%", 100*paper/s.Paper.Total), what)
	}
	row("original time latency", s.Original, s.Paper.Original, "the read with the GPU right below the embedded host")
	row("network transmission", s.Network, s.Paper.Network, "bare UDP ping-pong of the same sizes, ends that never sleep")
	row("packet conversion", s.Conversion, s.Paper.Conversion, "the rest: conversion, protocol, cipher, and waking up who sleeps")
	row("round trip", s.Total, s.Paper.Total, "embedded host, remote GPU")
	return t.flush()
}

// benchNumber prints three digits and the unit.
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

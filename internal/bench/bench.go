// Package bench measures the data plane beside the bare limits of the machine: the
// time of the sockets, the cipher and the checksum alone, in the same run. "dxpu
// bench" prints the reports.
//
// The machine may be loaded, so each measurement alternates with its limit in
// short rounds, and a ratio is the median of the ratios of the rounds. Every
// benchmark checks the data that it moves: a wrong byte is an error.
package bench

import (
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/quantile"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
	"github.com/dxpu-project/dxpu/link"
)

// Options of a run. Zero values stand for the defaults.
type Options struct {
	Duration time.Duration // of one measurement in one round; default 200 ms
	Rounds   int           // default 5
	Cipher   link.Cipher   // of the bindings, and of bare limits that have one
	MTU      int           // bytes of UDP payload; 0: that of the loopback interface
	Fault    fault.Plan    // faults of the datagrams that both proxies send
	// Polling is the polling of the proxies; its Spin applies to drivers too.
	Polling reader.Polling
	// Child is the command of a process that runs Serve on its standard input and
	// output. Each proxy and the far end of each ping-pong then has its own process;
	// without Child, all are goroutines of this process.
	Child []string
	// Size is the size of one copy by DMA in bytes; default 8 MiB.
	Size int
	// Bindings are the numbers of concurrent bindings that Scale measures, rising;
	// default 1, 8, 64.
	Bindings []int
	// Beside is a neighbour on the same processors, BesideGuest or BesideBusy, for RTT;
	// "": none.
	Beside string
	// Guest is the installation for BesideGuest.
	Guest *qemu.Install
	// Busy is the number of processes beside the benchmark that keep a processor busy
	// each. The caller starts them: see BesideLoops.
	Busy int
	// Profile, if set, is the beginning of the file names of the child processes' CPU
	// profiles: the kind of proxy and ".pprof" follow.
	Profile string
	// Policy shares the GPU of Slices; "": mps.
	Policy string
	// Progress, if set, gets a line at the start of each measurement.
	Progress func(format string, args ...any)
}

// driverPolling returns the polling of a driver that is a vfio-user client: none, as
// in QEMU, unless it has a dedicated processor.
func (o *Options) driverPolling() reader.Polling { return reader.Polling{Spin: o.Polling.Spin} }

func (o Options) withDefaults() Options {
	if o.Duration == 0 {
		o.Duration = 200 * time.Millisecond
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Size == 0 {
		o.Size = defaultSize
	}
	if len(o.Bindings) == 0 {
		o.Bindings = []int{1, 8, 64}
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	return o
}

// Report is the result of one benchmark.
type Report struct {
	Bench   string   `json:"bench"`
	Setup   Setup    `json:"setup"`
	Figures []Figure `json:"figures"`
	Split   *Split   `json:"split,omitempty"` // of "rtt"
	Notes   []string `json:"notes,omitempty"`
}

// Setup is the environment of a measurement.
type Setup struct {
	Processors int    `json:"processors"`
	Go         string `json:"go"`
	Cipher     string `json:"cipher"`
	MTU        int    `json:"mtu"` // bytes of UDP payload
	Fault      string `json:"fault"`
	PollNS     int64  `json:"poll_ns,omitempty"`
	SpinNS     int64  `json:"spin_ns,omitempty"`
	Rounds     int    `json:"rounds"`
	DurationNS int64  `json:"duration_ns"`
	Beside     string `json:"beside,omitempty"`
	Busy       int    `json:"busy,omitempty"` // processes beside the benchmark
	// Processes reports whether each proxy had its own process.
	Processes bool `json:"processes"`
}

func (o *Options) report(bench string, mtu int) *Report {
	return &Report{Bench: bench, Setup: Setup{
		Processors: runtime.NumCPU(), Go: runtime.Version(), Cipher: o.Cipher.String(), MTU: mtu, Fault: o.Fault.String(), Beside: o.Beside,
		PollNS: o.Polling.Window.Nanoseconds(), SpinNS: o.Polling.Spin.Nanoseconds(), Rounds: o.Rounds, DurationNS: o.Duration.Nanoseconds(), Busy: o.Busy, Processes: len(o.Child) > 0,
	}}
}

// Figure is one measured number and, if it has one, its bare limit in the same run.
type Figure struct {
	Name  string  `json:"name"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"` // the median
	// P90 and P99 are set for round trips.
	P90 float64 `json:"p90,omitempty"`
	P99 float64 `json:"p99,omitempty"`
	// Low and High are the smallest and largest values of the rounds.
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Bare names the limit, BareValue is its median. Ratio is the median over the
	// rounds of Value divided by BareValue.
	Bare      string  `json:"bare,omitempty"`
	BareValue float64 `json:"bare_value,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
	// Allocs is the number of allocations per operation; nil: not counted.
	Allocs *float64 `json:"allocs,omitempty"`
}

// Units of figures.
const (
	Microseconds    = "µs"
	Nanoseconds     = "ns"
	GigabytesSecond = "GB/s"
	PerSecond       = "/s"
	Bytes           = "B"
	Percent         = "%"
)

func median(v []float64) float64 { return quantile.Of(v, 0.5) }

// figure makes a Figure from one value per round.
func figure(name, unit string, perRound []float64) Figure {
	return Figure{
		Name: name, Unit: unit, Value: median(perRound),
		Low: slices.Min(perRound), High: slices.Max(perRound),
	}
}

// beside adds a limit, with values of the same rounds, to a figure.
func (f Figure) beside(name string, measured, bare []float64) Figure {
	f.Bare, f.BareValue, f.Ratio = name, median(bare), ratio(measured, bare)
	return f
}

// ratio returns the median of the rounds' ratios.
func ratio(measured, bare []float64) float64 {
	ratios := make([]float64, len(measured))
	for i := range ratios {
		ratios[i] = measured[i] / bare[i]
	}
	return median(ratios)
}

// probe is a measurement of every round: run measures for about a duration and
// returns one value.
type probe struct {
	name string
	run  func(d time.Duration) (float64, error)
}

// alternate runs all probes in each round, and returns the values by probe.
func (o *Options) alternate(probes []probe) ([][]float64, error) {
	out := make([][]float64, len(probes))
	for round := range o.Rounds {
		for i, p := range probes {
			o.Progress("round %d of %d: %s", round+1, o.Rounds, p.name)
			v, err := p.run(o.Duration)
			if err != nil {
				return nil, fmt.Errorf("bench: %s: %w", p.name, err)
			}
			out[i] = append(out[i], v)
		}
	}
	return out, nil
}

// perSecond repeats op for about a duration and returns the sum of its results per
// second.
func perSecond(d time.Duration, op func() (n int, err error)) (float64, error) {
	total := 0
	start := time.Now()
	for {
		n, err := op()
		if err != nil {
			return 0, err
		}
		total += n
		if took := time.Since(start); took >= d {
			return float64(total) / took.Seconds(), nil
		}
	}
}

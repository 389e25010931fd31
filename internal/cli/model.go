package cli

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/pcie"
)

func newModelCommand() *cobra.Command {
	cmd := group("model", "Predict what disaggregation costs a workload",
		`Predict what disaggregation costs a workload before moving it.

The commands use the model of section 3.4 of the DxPU paper and a replay of
recorded runs. docs/model.md has the equations and the fitted constants.`,
		`  dxpu model predict resnet50.pt.trace.json.gz --rtt 6.8us`)
	cmd.AddCommand(newModelThroughputCommand(), newModelExplainCommand(), newModelPredictCommand(), newModelFitCommand(), newModelPaperCommand())
	cmd.AddCommand(localModelCommands()...)
	return cmd
}

// maxShared bounds the GPUs and the proxies of "dxpu model throughput".
const maxShared = 100_000

// rttVar adds a flag for a round trip. Its default is *d.
func rttVar(f *pflag.FlagSet, d *time.Duration, name, help string) {
	f.Var(flagValue{typ: "duration", set: func(s string) (err error) {
		*d, err = perf.ParseRTT(s)
		return err
	}, text: func() string {
		if *d == 0 {
			return ""
		}
		return d.String()
	}}, name, help)
}

// pathFlags are the flags that describe a perf.Path.
type pathFlags struct {
	path       perf.Path
	gen, lanes int
	mps, mrrs  int
}

func (p *pathFlags) register(cmd *cobra.Command) {
	p.path.NativeRTT, p.path.RTT = perf.NativeRTT, paper.RTTLong
	f := cmd.Flags()
	rttVar(f, &p.path.RTT, "rtt", "round trip of a PCIe memory read with disaggregation")
	rttVar(f, &p.path.NativeRTT, "native-rtt", "round trip without disaggregation")
	f.IntVar(&p.path.Requester.Tags, "tags", perf.V100.Tags, "number of requests that the GPU keeps in flight")
	f.IntVar(&p.mrrs, "mrrs", int(perf.V100.MRRS), "Max_Read_Request_Size in bytes")
	f.IntVar(&p.gen, "gen", int(pcie.Gen3), "PCIe generation, 3 to 6")
	f.IntVar(&p.lanes, "lanes", perf.Gen3x16.Lanes, "number of lanes of the link")
	f.IntVar(&p.mps, "mps", int(perf.Gen3x16.MPS), "Max_Payload_Size in bytes")
}

// get checks the flags and returns the path.
func (p *pathFlags) get() (perf.Path, error) {
	p.path.Link = perf.Link{Gen: pcie.Generation(clamp(p.gen, 255)), Lanes: p.lanes, MPS: pcie.PayloadSize(clamp(p.mps, 65535))}
	p.path.Requester.MRRS = pcie.PayloadSize(clamp(p.mrrs, 65535))
	if err := p.path.Validate(); err != nil {
		return p.path, usage(err)
	}
	if tags, most := p.path.Requester.Tags, perf.MaxTags(p.path.Link.Gen); tags > most {
		return p.path, usagef("--tags %d: PCIe %d has at most %d: give a later generation with --gen", tags, p.path.Link.Gen, most)
	}
	return p.path, nil
}

// clamp limits v to 0..top, so that a conversion cannot wrap it into a valid value.
func clamp(v, top int) int { return min(max(v, 0), top) }

func newModelThroughputCommand() *cobra.Command {
	var flags pathFlags
	var gpus, proxies int
	cmd := valueCommand(&cobra.Command{
		Use: "throughput", Short: "Print the rate of copies over a round trip (Equation 1)", Args: cobra.NoArgs,
		Long: `Print the rate of copies over a round trip.

Copies to the device are reads by the GPU. It keeps --tags requests of --mrrs
bytes in flight, so Equation 1 bounds their rate: tags x MRRS / RTT. Copies to
the host, and copies to the device that the host writes itself, are posted: only
the link bounds them.

--gpus adds the total rate of several GPUs behind --proxies proxies of the
paper's capacity, and the rates between two GPUs.`,
		Example: `  dxpu model throughput --tags 140 --mrrs 128 --rtt 6.8us
  dxpu model throughput --gen 5 --tags 768 --mrrs 512 --rtt 4us --json`,
	}, func(*cobra.Command, []string) (throughputJSON, error) {
		p, err := flags.get()
		if err == nil {
			err = cmp.Or(inRange("--gpus", 1, maxShared, gpus), inRange("--proxies", 1, maxShared, proxies))
		}
		if err != nil {
			return throughputJSON{}, err
		}
		return throughputReport(p, gpus, proxies), nil
	}, func(w io.Writer, r throughputJSON) { printThroughput(w, flags.path, r) })
	flags.register(cmd)
	cmd.Flags().IntVar(&gpus, "gpus", 1, "number of GPUs that copy at the same time")
	cmd.Flags().IntVar(&proxies, "proxies", 1, "number of proxies that they share")
	cmd.Flags().Lookup("json").Usage = "print JSON, rates in bytes per second"
	return cmd
}

type throughputJSON struct {
	RTT          int64   `json:"rtt_ns"`
	NativeRTT    int64   `json:"native_rtt_ns"`
	Equation1    float64 `json:"equation1"`
	Native1      float64 `json:"native_equation1"`
	Link         float64 `json:"link_raw"`
	HtoD         float64 `json:"host_to_device"`
	HtoDNative   float64 `json:"native_host_to_device"`
	HtoDPosted   float64 `json:"host_to_device_posted"`
	DtoH         float64 `json:"device_to_host"`
	TagsToFill   int     `json:"tags_to_fill_link"`
	TagsPossible int     `json:"tags_of_generation"`
	GPUs         int     `json:"gpus"`
	Proxies      int     `json:"proxies"`
	AllToGPUs    float64 `json:"all_host_to_device"`
	AllToHost    float64 `json:"all_device_to_host"`
	ProxiesFull  int     `json:"proxies_for_full_rate"`
	PeerNVLink   float64 `json:"peer_nvlink"`
	PeerSame     float64 `json:"peer_same_proxy"`
	PeerAcross   float64 `json:"peer_across_proxies"`
}

func throughputReport(p perf.Path, gpus, proxies int) throughputJSON {
	toGPU, toHost := p.Throughput(perf.HtoDByRead), p.Throughput(perf.DtoHByWrite)
	return throughputJSON{
		GPUs: gpus, Proxies: proxies,
		AllToGPUs: float64(perf.Share(perf.PaperProxy.HostToGPU, proxies, gpus, toGPU)),
		AllToHost: float64(perf.Share(perf.PaperProxy.GPUToHost, proxies, gpus, toHost)),
		// One GPU, with no other beside it, reached GPUToHost: it needs no second proxy.
		ProxiesFull: perf.PaperProxy.ProxiesFor(gpus, toGPU, min(toHost, perf.PaperProxy.GPUToHost)),
		PeerNVLink:  float64(p.PeerThroughput(perf.PeerNVLink, true)), PeerSame: float64(p.PeerThroughput(perf.PeerSameProxy, true)),
		PeerAcross: float64(p.PeerThroughput(perf.PeerAcrossProxy, true)),
		RTT:        p.RTT.Nanoseconds(), NativeRTT: p.NativeRTT.Nanoseconds(),
		Equation1: float64(p.Requester.ReadThroughput(p.RTT)), Native1: float64(p.Requester.ReadThroughput(p.NativeRTT)),
		Link: float64(p.Link.Raw()), HtoD: float64(p.Throughput(perf.HtoDByRead)), HtoDNative: float64(p.NativeThroughput(perf.HtoDByRead)),
		HtoDPosted: float64(p.Throughput(perf.HtoDByWrite)), DtoH: float64(p.Throughput(perf.DtoHByWrite)),
		TagsToFill: perf.TagsFor(p.Link.Read(), p.Requester.MRRS, p.RTT), TagsPossible: perf.MaxTags(p.Link.Gen),
	}
}

func printThroughput(out io.Writer, p perf.Path, r throughputJSON) {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "Equation 1\t%v\t%d tags x %d bytes / %v\n", perf.BytesPerSecond(r.Equation1), p.Requester.Tags, p.Requester.MRRS, p.RTT)
	fmt.Fprintf(w, "host to device, DMA read\t%v\tnative %v at %v\n", perf.BytesPerSecond(r.HtoD), perf.BytesPerSecond(r.HtoDNative), p.NativeRTT)
	fmt.Fprintf(w, "host to device, posted write\t%v\tbound by the link\n", perf.BytesPerSecond(r.HtoDPosted))
	fmt.Fprintf(w, "device to host, DMA write\t%v\tposted: independent of the round trip\n", perf.BytesPerSecond(r.DtoH))
	fmt.Fprintf(w, "link\t%v\tPCIe %d x%d, Max_Payload_Size %d\n", perf.BytesPerSecond(r.Link), p.Link.Gen, p.Link.Lanes, p.Link.MPS)
	fmt.Fprintf(w, "tags to fill the link\t%d\tthe generation has %d\n", r.TagsToFill, r.TagsPossible)
	if r.GPUs > 1 {
		fmt.Fprintf(w, "%d GPUs, %d proxies, to the GPUs\t%v\ta proxy carries %v\n", r.GPUs, r.Proxies, perf.BytesPerSecond(r.AllToGPUs), perf.PaperProxy.HostToGPU)
		fmt.Fprintf(w, "%d GPUs, %d proxies, to the host\t%v\ta proxy carries at least %v\n", r.GPUs, r.Proxies, perf.BytesPerSecond(r.AllToHost), perf.PaperProxy.GPUToHost)
		fmt.Fprintf(w, "proxies for all at full rate\t%d\tor fewer: a proxy may carry more to the host\n", r.ProxiesFull)
		fmt.Fprintf(w, "GPU to GPU, posted, NVLink\t%v\tbypasses the proxies\n", perf.BytesPerSecond(r.PeerNVLink))
		fmt.Fprintf(w, "GPU to GPU, posted, one proxy\t%v\t\n", perf.BytesPerSecond(r.PeerSame))
		fmt.Fprintf(w, "GPU to GPU, posted, two proxies\t%v\t%.0f %% (Figure 7)\n", perf.BytesPerSecond(r.PeerAcross), 100*perf.AcrossProxies)
	}
	w.Flush()
}

func newModelExplainCommand() *cobra.Command {
	var flags pathFlags
	cmd := &cobra.Command{
		Use: "explain", Short: "Explain the model with the numbers of a round trip", Args: cobra.NoArgs,
		Long: `Explain the model with the numbers of a round trip: the added cost of each kind of
operation, by the paper's model and by the one fitted to its hardware.`,
		Example: `  dxpu model explain --rtt 6.8us`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := flags.get()
			if err != nil {
				return err
			}
			return printText(cmd.OutOrStdout(), false, func(w io.Writer) { explain(w, p) })
		},
	}
	flags.register(cmd)
	return cmd
}

func explain(out io.Writer, p perf.Path) {
	d := p.Delta()
	fmt.Fprintf(out, `A GPU behind proxies answers a PCIe memory read after %v instead of %v: dRTT = %v.

Reads wait for completions, so the added time has two effects. Every read is
later by dRTT (term 1). Large reads run out of tags (term 2): %d tags x %d bytes
= %v in flight per round trip give %v instead of %v.
Copies up to %v have term 1, larger ones term 2. Writes are posted: they are
later by half of dRTT and keep their rate.

Time added to one operation:
`, p.RTT, p.NativeRTT, d, p.Requester.Tags, p.Requester.MRRS, p.Requester.Window(),
		p.Throughput(perf.HtoDByRead), p.NativeThroughput(perf.HtoDByRead), p.Requester.Window())
	hw, sw := paper.HardwareCosts(), perf.PaperCosts()
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "\tpaper's model\thardware, fitted")
	for _, r := range []struct {
		what string
		a, b perf.Term
	}{
		{"kernel", sw.Kernel, hw.Kernel},
		{"kernel in a graph", sw.GraphNode, hw.GraphNode},
		{"memset", sw.Memset, hw.Memset},
		{"copy to the device", sw.HtoD, hw.HtoD},
		{"copy to the host", sw.DtoH, hw.DtoH},
		{"copy on the device", sw.OnDevice, hw.OnDevice},
		{"launch until start", sw.Launch, hw.Launch},
		{"graph launch until start", sw.GraphLaunch, hw.GraphLaunch},
		{"return of a wait", sw.Sync, hw.Sync},
	} {
		fmt.Fprintf(w, "  %s\t%v\t%v\n", r.what, round2(r.a.At(d)), round2(r.b.At(d)))
	}
	w.Flush()
	fmt.Fprintf(out, `
So kernels of 10us and of 100us without gaps between them run at %.0f %% and
%.0f %% of native. If the GPU waits for the host anyway, the gap absorbs the added
time: "dxpu model predict TRACE" replays a recorded run to measure this.

Between two GPUs, posted: %v over NVLink, %v under one proxy, %v across two.

Fitted: %s.
`, shareLeft(hw.Kernel, d, 10), shareLeft(hw.Kernel, d, 100),
		p.PeerThroughput(perf.PeerNVLink, true), p.PeerThroughput(perf.PeerSameProxy, true), p.PeerThroughput(perf.PeerAcrossProxy, true), hw.Source)
}

func round2(d time.Duration) time.Duration { return d.Round(10 * time.Nanosecond) }

// shareLeft returns the performance in per cent of back-to-back kernels of us
// microseconds.
func shareLeft(t perf.Term, delta time.Duration, us float64) float64 {
	return 100 * us / (us + float64(t.At(delta))/float64(time.Microsecond))
}

func newModelPaperCommand() *cobra.Command {
	var notes bool
	cmd := valueCommand(&cobra.Command{
		Use: "paper", Short: "Compare the model with every figure of the paper", Args: cobra.NoArgs,
		Long: `Compare the model with every figure of the paper that it can compute.

Each row gives the role of the figure: input (the model uses it), fitted (a
constant was chosen to meet it and others), checked (the model does not know it),
arithmetic (it follows from inputs and says nothing about the model), bound (the
model gives only an upper bound), or that the paper does not give enough input; such
rows and inputs have no model value. Deviations are in points for percentages and in
per cent of the paper's figure for other units.`,
		Example: `  dxpu model paper --json`,
	}, func(*cobra.Command, []string) (comparison, error) {
		return comparison{paper.Fitted(), paper.Compare()}, nil
	},
		func(w io.Writer, c comparison) { printPaper(w, c, notes) })
	cmd.Flags().BoolVar(&notes, "notes", true, "print how each value was obtained")
	return cmd
}

// comparison is the model beside the figures of the paper.
type comparison struct {
	Fit  paper.Fit   `json:"fit"`
	Rows []paper.Row `json:"rows"`
}

func printPaper(out io.Writer, c comparison, notes bool) {
	fmt.Fprintf(out, `Cost of one kernel in us = fixed part + %.3f x dRTT, with the fixed part
  %.2f  of the paper's software model: Figure 4 at 8 us and 19 us (fits the slope too)
  %.2f  of its hardware, synthetic input: Table 9, training, XLA off, batch 32 and 128
  %.2f  of its hardware, real input: the same rows of ImageNet
Table 4 does not name its input: its 89.56 %% agrees with Table 9's 89.4 %%
for ImageNet and not with 92.7 %% for synthetic input, so it is compared with the third part.

`, c.Fit.Slope, c.Fit.Model, c.Fit.Synthetic, c.Fit.Real)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	where := ""
	sums := map[paper.Use]int{}
	var deviation float64
	var points int
	for _, r := range c.Rows {
		if r.Where != where {
			where = r.Where
			fmt.Fprintf(w, "%s\tpaper\tmodel\tdeviation\tuse\n", where)
		}
		sums[r.Use]++
		model, dev := "-", "-"
		if r.HasModel() {
			model, dev = fmt.Sprintf("%.2f", r.Model), fmt.Sprintf("%+.2f", r.Deviation())
		}
		if r.Use == paper.Checked && r.Unit == "%" {
			deviation += math.Abs(r.Deviation())
			points++
		}
		note := ""
		if notes && r.Note != "" {
			note = ": " + r.Note
		}
		fmt.Fprintf(w, "  %s\t%.2f %s\t%s\t%s\t%s%s\n", r.What, r.Paper, r.Unit, model, dev, r.Use, note)
	}
	w.Flush()
	fmt.Fprintf(out, "\n%d figures: %d checked (mean deviation of the %d percentages %.2f points), %d fitted, %d arithmetic, %d bounds, %d inputs, %d without enough input\n",
		len(c.Rows), sums[paper.Checked], points, deviation/float64(max(points, 1)), sums[paper.FitUse], sums[paper.Derived], sums[paper.Bound], sums[paper.Input], sums[paper.Unknown])
}

package predict

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Verdict describes in words what a prediction means and what would help.
type Verdict struct {
	Summary string
	Advice  []string
	// Doubt is why the prediction may not hold for the run, or "".
	Doubt string
}

// Thresholds of the advice. The paper calls 90 % good (section 1) and finds
// trouble where more than half of the kernels are short (section 4.3.2).
const (
	good       = 0.90
	fair       = 0.80
	manyShort  = 0.50
	muchMemory = 0.05
	muchSync   = 0.10
	idleGPU    = 0.70
	smallCopy  = 64 << 10
	manyCopies = 100
	// Steps without GPU work that take a larger share of all steps' time on the host
	// show that the trace is incomplete. Profilers may add a short one at the end.
	idleSteps = 0.10
	// Back-to-back kernels that each take a tenth longer run at 91 %.
	costlyKernel = 10
)

// Judge draws conclusions from a run's statistics, its prediction and the quality
// of its trace. It gives no verdict on an incomplete trace.
func Judge(s *Stats, r *Result, g Range, trace *workload.Report, window perf.Bytes) Verdict {
	var v Verdict
	v.Summary, v.Doubt = summary(r, g, trace)
	add := func(format string, args ...any) { v.Advice = append(v.Advice, fmt.Sprintf(format, args...)) }
	kernelAdvice(s, r, add)
	memoryAdvice(s, window, add)
	waitAdvice(s, r, add)
	switch {
	case len(v.Advice) > 0:
	case r.Relative >= good:
		add("Nothing stands out: the kernels are long, copies and synchronisations few.")
	default:
		add("No single cause stands out: the added latency is spread over %d kernels and %d copies and memsets.", s.Kernels, s.others())
	}
	return v
}

// Suitability says in words what a performance relative to native means.
func Suitability(relative float64) string {
	switch {
	case relative >= good:
		return "well suited to disaggregation"
	case relative >= fair:
		return "usable, below the 90 % that the paper aims at"
	}
	return "not suited to disaggregation as it is"
}

func summary(r *Result, g Range, trace *workload.Report) (text, doubt string) {
	if r.Delta == 0 {
		return "No round trip is added: the replay shows the recorded run.", ""
	}
	suited, doubt := g.Suitability()
	switch {
	case r.idleShare() > idleSteps:
		doubt = fmt.Sprintf("%d of %d training steps contain no GPU work, so the trace is incomplete", r.Idle, len(r.Steps))
		suited = "no verdict, because " + doubt
	case trace.Incomplete:
		doubt = "the trace is incomplete: " + trace.Warning()
		suited = "no verdict, because the trace is incomplete"
	case trace.Warning() != "":
		doubt = trace.Warning()
		suited += ", but parts of the trace are damaged or doubtful"
	}
	absorbed := ""
	if r.Charged > 0 {
		share := 1 - min(max(float64(r.Exposed)/float64(r.Charged), 0), 1)
		absorbed = fmt.Sprintf("; idle time and parallel streams absorb %.0f %% of the added %v", 100*share, round(r.Charged))
	}
	figure := fmt.Sprintf("%.1f %%", 100*g.High)
	if g.Wide() {
		figure = fmt.Sprintf("%.1f to %.1f %%", 100*g.Low, 100*g.High)
	}
	return fmt.Sprintf("%s of native at a round trip of %v: %s%s.", figure, r.RTT, suited, absorbed), doubt
}

func kernelAdvice(s *Stats, r *Result, add func(string, ...any)) {
	if s.Kernels == 0 {
		return
	}
	graphs := 2*s.GraphKernels > s.Kernels
	small := r.Relative < good && s.MeanKernel() < costlyKernel*r.KernelCost
	switch {
	case graphs:
		add("%.0f %% of the kernels run in CUDA graphs, whose nodes do not wait for the host: only the launches of graphs cost latency. No figure of the paper tests this.", 100*ratio(s.GraphKernels, s.Kernels))
	case s.ShortShare() > manyShort:
		add("%.0f %% of the kernels are short (up to %v; mean %v): the added latency affects them most. Fuse kernels (torch.compile, XLA) or increase the batch size so that each does more.",
			100*s.ShortShare(), ShortKernel, round(s.MeanKernel()))
	case small:
		add("A kernel takes %v on average and becomes %v longer. Fuse kernels (torch.compile, XLA) or increase the batch size so that each does more.", round(s.MeanKernel()), round(r.KernelCost))
	}
	if s.GraphKernels == 0 && (s.ShortShare() > manyShort || small) {
		add("The run uses no CUDA graph: capturing a step into a graph replaces %d launches by a few.", s.Kernels)
	}
	if s.Utilisation() < idleGPU && r.Relative > good {
		add("The GPU is busy %.0f %% of the time: the host limits the run and hides the latency. A faster host or a larger batch would make the run faster and expose more latency.", 100*s.Utilisation())
	}
}

func memoryAdvice(s *Stats, window perf.Bytes, add func(string, ...any)) {
	to := s.Copies[ToDevice]
	if s.MemoryShare() > muchMemory {
		add("Copies and memsets take %.0f %% of the GPU's time. Keep parameters on the GPU, copy from pinned memory and in fewer pieces.", 100*s.MemoryShare())
	}
	if to.Large > 0 && to.Time*100 > s.GPUTime {
		add("%d copies to the device (%v) are larger than the %v that the GPU keeps in flight, so Equation 1 bounds them: overlap them with kernels, send less, or write from the host instead of reading from the GPU.",
			to.Large, to.Bytes, window)
	}
	if small := to.Count + s.Copies[ToHost].Count; small > manyCopies && int64(to.Bytes+s.Copies[ToHost].Bytes) < int64(small)*smallCopy {
		add("%d copies between host and GPU are small (mean %v): each pays a round trip. Batch them.", small, (to.Bytes+s.Copies[ToHost].Bytes)/perf.Bytes(small))
	}
}

func waitAdvice(s *Stats, r *Result, add func(string, ...any)) {
	whole := r.Whole.Recorded
	if s.Syncs > 1 && whole > 0 && float64(s.SyncWait) > muchSync*float64(whole) {
		add("%d synchronisations wait %v of %v%s: each exposes the latency that accumulated on the stream. Read results (.item(), .cpu(), print of a loss) less often.", s.Syncs, round(s.SyncWait), round(whole), together(s.SyncWait, whole))
	}
	if s.Blocked > 1 && whole > 0 && float64(s.BlockedWait) > muchSync*float64(whole) {
		add("%d calls that should only enqueue work wait for the GPU (%v): copies of pageable memory, allocations, or a full launch queue. Pinned memory and a caching allocator avoid the first two; the last is a sign of a busy GPU.", s.Blocked, round(s.BlockedWait))
	}
}

// together explains waits that sum up to more than the run.
func together(wait, whole time.Duration) string {
	if wait > whole {
		return " on several threads together"
	}
	return ""
}

// round keeps three or four digits of a duration.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); unit < time.Hour; unit *= 10 {
		if d < 10_000*unit {
			return d.Round(unit)
		}
	}
	return d
}

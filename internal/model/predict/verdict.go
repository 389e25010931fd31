package predict

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Verdict says in words what a prediction means and what would help.
type Verdict struct {
	Summary string
	Advice  []string
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
	// Where a kernel's cost is a tenth of it, back to back kernels run at 91 %.
	costlyKernel = 10
)

// Judge draws the conclusions from a run's statistics and its prediction.
func Judge(s *Stats, r *Result, window perf.Bytes) Verdict {
	v := Verdict{Summary: summary(r)}
	add := func(format string, args ...any) { v.Advice = append(v.Advice, fmt.Sprintf(format, args...)) }
	kernelAdvice(s, r, add)
	memoryAdvice(s, window, add)
	waitAdvice(s, r, add)
	switch {
	case len(v.Advice) > 0:
	case r.Relative >= good:
		add("Nothing stands out: long kernels, few copies, few synchronisations.")
	default:
		add("No single cause stands out: the added latency is spread over %d kernels and %d copies and memsets.", s.Kernels, s.others())
	}
	return v
}

func summary(r *Result) string {
	word := "not suited to disaggregation as it is"
	switch {
	case r.Delta == 0:
		return "No round trip is added; the replay shows the recorded run."
	case r.Relative >= good:
		word = "well suited to disaggregation"
	case r.Relative >= fair:
		word = "usable, below the 90 % that the paper aims at"
	}
	absorbed := ""
	if r.Charged > 0 {
		share := 1 - min(max(float64(r.Exposed)/float64(r.Charged), 0), 1)
		absorbed = fmt.Sprintf("; %.0f %% of the added %v is absorbed by idle time or runs in parallel", 100*share, round(r.Charged))
	}
	return fmt.Sprintf("%.1f %% of native at a round trip of %v: %s%s.", 100*r.Relative, r.RTT, word, absorbed)
}

func kernelAdvice(s *Stats, r *Result, add func(string, ...any)) {
	if s.Kernels == 0 {
		return
	}
	graphs := 2*s.GraphKernels > s.Kernels
	small := r.Relative < good && s.MeanKernel() < costlyKernel*r.KernelCost
	switch {
	case graphs:
		add("%.0f %% of the kernels run in CUDA graphs, between whose nodes nothing waits for the host: only launches of graphs are charged. No figure of the paper tests this.", 100*ratio(s.GraphKernels, s.Kernels))
	case s.ShortShare() > manyShort:
		add("%.0f %% of the kernels are short (up to %v; mean %v): the added latency weighs most on them. Fuse kernels (torch.compile, XLA) or raise the batch size so that each does more.",
			100*s.ShortShare(), ShortKernel, round(s.MeanKernel()))
	case small:
		add("A kernel takes %v on average and each is %v longer. Fuse kernels (torch.compile, XLA) or raise the batch size so that each does more.", round(s.MeanKernel()), round(r.KernelCost))
	}
	if s.GraphKernels == 0 && (s.ShortShare() > manyShort || small) {
		add("No CUDA graph is used: capturing a step into a graph replaces %d launches by a few.", s.Kernels)
	}
	if s.Utilisation() < idleGPU && r.Relative > good {
		add("The GPU is busy %.0f %% of the time: the host sets the pace and hides the latency. A faster host or a larger batch would make the run faster but show more of it.", 100*s.Utilisation())
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
		add("%d synchronisations wait %v of %v%s: each exposes what has gathered on the stream. Read results (.item(), .cpu(), print of a loss) less often.", s.Syncs, round(s.SyncWait), round(whole), together(s.SyncWait, whole))
	}
	if s.Blocked > 1 && whole > 0 && float64(s.BlockedWait) > muchSync*float64(whole) {
		add("%d calls that should only enqueue work wait for the GPU (%v): copies of pageable memory, allocations, or a full launch queue. Pinned memory and a caching allocator avoid the first two; the last is a sign of a busy GPU.", s.Blocked, round(s.BlockedWait))
	}
}

// together explains waits that add up to more than the run.
func together(wait, whole time.Duration) string {
	if wait > whole {
		return " on several threads together"
	}
	return ""
}

// round keeps three or so digits of a duration.
func round(d time.Duration) time.Duration {
	for unit := time.Duration(1); unit < time.Hour; unit *= 10 {
		if d < 10_000*unit {
			return d.Round(unit)
		}
	}
	return d
}

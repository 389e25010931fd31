package predict

import (
	"cmp"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// ShortKernel is the longest duration of a short kernel (paper, section 4.3.2).
const ShortKernel = 10 * time.Microsecond

// Stats breaks down the time of a recorded run.
type Stats struct {
	Kernels, ShortKernels, GraphKernels int
	WholeGraphs                         int           // of GraphKernels: graphs without their kernels
	KernelTime, GPUTime                 time.Duration // GPUTime: all operations
	Busy, Active                        time.Duration // sum over devices: a stream was busy; from first to last operation
	Copies                              [4]CopyStats  // HtoD, DtoH, DtoD, other
	Memsets                             CopyStats
	Syncs                               int
	SyncWait                            time.Duration // in calls whose purpose is to wait
	Blocked                             int
	BlockedWait                         time.Duration // in calls that normally only enqueue work
	ByName                              []NameStats   // kernels by name, in descending order of time
	Durations                           []CDFPoint    // of kernels, in ascending order
}

// CopyStats summarises the copies of one direction.
type CopyStats struct {
	Count int
	Bytes perf.Bytes
	Time  time.Duration
	Large int // copies larger than the window, which term ❷ bounds
}

// NameStats summarises the kernels of one name.
type NameStats struct {
	Name  string
	Count int
	Time  time.Duration
}

// Mean returns the average duration.
func (n NameStats) Mean() time.Duration { return n.Time / time.Duration(max(n.Count, 1)) }

// CDFPoint is one point of the cumulative distributions of kernel duration:
// the share of kernels, and of all kernels' time, in kernels up to Duration
// (Figures 5 and 6 of the paper).
type CDFPoint struct {
	Duration time.Duration `json:"duration_ns"`
	ByNumber float64       `json:"by_number"`
	ByTime   float64       `json:"by_time"`
}

// MeanKernel returns the average duration of a kernel.
func (s *Stats) MeanKernel() time.Duration { return s.KernelTime / time.Duration(max(s.Kernels, 1)) }

// ShortShare returns the share of kernels that are short.
func (s *Stats) ShortShare() float64 { return ratio(s.ShortKernels, s.Kernels) }

// Utilisation returns the share of the active time in which a stream was busy.
func (s *Stats) Utilisation() float64 { return ratio(s.Busy, s.Active) }

// MemoryShare returns the share of the GPU's time in copies and memsets.
func (s *Stats) MemoryShare() float64 { return ratio(s.GPUTime-s.KernelTime, s.GPUTime) }

// others returns the number of operations that are not kernels.
func (s *Stats) others() int {
	n := s.Memsets.Count
	for _, c := range s.Copies {
		n += c.Count
	}
	return n
}

func ratio[T ~int | ~int64](a, b T) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// Stats breaks down the workload. A copy of more than window bytes is large.
func (p *Plan) Stats(window perf.Bytes) Stats {
	var s Stats
	byName := map[uint32]*NameStats{}
	durs := make([]time.Duration, 0, len(p.w.Ops))
	for _, op := range p.w.Ops {
		s.GPUTime += op.Dur
		switch {
		case op.Kind.IsKernel():
			durs = append(durs, op.Dur)
			s.kernel(&op)
			n := byName[op.Name]
			if n == nil {
				n = &NameStats{Name: p.w.Names[op.Name]}
				byName[op.Name] = n
			}
			n.Count++
			n.Time += op.Dur
		case op.Kind == workload.Memset:
			s.Memsets.add(&op, window)
		default:
			s.Copies[direction(op.Kind)].add(&op, window)
		}
	}
	for _, n := range byName {
		s.ByName = append(s.ByName, *n)
	}
	slices.SortFunc(s.ByName, func(a, b NameStats) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.Name, b.Name))
	})
	s.Durations = distribution(durs)
	s.busy(p.w)
	p.waits(&s)
	return s
}

func (s *Stats) kernel(op *workload.Op) {
	s.Kernels++
	s.KernelTime += op.Dur
	if op.Dur <= ShortKernel {
		s.ShortKernels++
	}
	if op.Kind != workload.Kernel {
		s.GraphKernels++
	}
	if op.Kind == workload.WholeGraph {
		s.WholeGraphs++
	}
}

func (c *CopyStats) add(op *workload.Op, window perf.Bytes) {
	c.Count++
	c.Bytes += perf.Bytes(op.Bytes)
	c.Time += op.Dur
	if perf.Bytes(op.Bytes) > window {
		c.Large++
	}
}

// Directions of Stats.Copies.
const (
	ToDevice = iota
	ToHost
	OnDevice
	OtherCopy
)

func direction(k workload.OpKind) int {
	switch k { //nolint:exhaustive // callers pass copies only
	case workload.CopyHtoD:
		return ToDevice
	case workload.CopyDtoH:
		return ToHost
	case workload.CopyDtoD:
		return OnDevice
	}
	return OtherCopy
}

// busy sums up the time in which a device of a process had a busy stream.
func (s *Stats) busy(w *workload.Workload) {
	type gpu struct {
		process uint64
		device  int64
	}
	type window struct{ first, end, busy time.Duration }
	seen := map[gpu]*window{}
	for _, op := range w.Ops {
		st := w.Streams[op.Stream]
		g := gpu{st.Process, st.Device}
		win := seen[g]
		if win == nil {
			win = &window{first: op.Start, end: op.Start}
			seen[g] = win
		}
		if op.End() > win.end {
			win.busy += op.End() - max(op.Start, win.end)
			win.end = op.End()
		}
	}
	for _, win := range seen {
		s.Busy += win.busy
		s.Active += win.end - win.first
	}
}

// waits sums up the calls that waited for the GPU.
func (p *Plan) waits(s *Stats) {
	for i := range p.w.Calls {
		c, cp := &p.w.Calls[i], &p.calls[i]
		switch {
		case c.Kind.IsSync():
			s.Syncs++
			s.SyncWait += c.Dur
		case cp.waited:
			s.Blocked++
			s.BlockedWait += c.Dur
		}
	}
}

// maxPoints limits the points of a distribution to what a plot can show.
const maxPoints = 256

// distribution sorts durs and returns about maxPoints points of their distribution.
func distribution(durs []time.Duration) []CDFPoint {
	slices.Sort(durs)
	var total time.Duration
	for _, d := range durs {
		total += d
	}
	every := max(len(durs)/maxPoints, 1)
	var out []CDFPoint
	var sum time.Duration
	since := 0
	for i, d := range durs {
		sum += d
		since++
		last := i == len(durs)-1
		if !last && (durs[i+1] == d || since < every) {
			continue
		}
		since = 0
		out = append(out, CDFPoint{Duration: d, ByNumber: float64(i+1) / float64(len(durs)), ByTime: ratio(sum, total)})
	}
	return out
}

// At returns the distribution at d.
func At(points []CDFPoint, d time.Duration) CDFPoint {
	i, found := slices.BinarySearchFunc(points, d, func(p CDFPoint, d time.Duration) int { return cmp.Compare(p.Duration, d) })
	if found {
		return points[i]
	}
	if i == 0 {
		return CDFPoint{Duration: d}
	}
	return CDFPoint{Duration: d, ByNumber: points[i-1].ByNumber, ByTime: points[i-1].ByTime}
}

package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/quantile"
)

// Limits of a Builder, so that a hostile trace cannot exhaust memory. A 2 GB trace
// of PyTorch holds two to four million records, and a replay needs about 100 bytes
// for each.
const (
	MaxRecords   = 5_000_000
	MaxNameBytes = 64 << 20
	maxName      = 1024    // bytes of one name; more are template arguments
	maxItems     = 1 << 16 // streams, threads, devices, steps
)

// MaxTime bounds durations and distances from the median time: no profile is longer.
const MaxTime = 366 * 24 * time.Hour

// Builder collects a trace's events in any order.
type Builder struct {
	Format string
	Report Report

	names     map[string]uint32
	nameBytes int
	w         Workload
	streams   map[Stream]int32
	threads   map[Thread]int32
	steps     map[Step]bool
	marks     []mark
	events    []eventRecord
	waits     []Awaited
	queries   []query
	types     map[int32]StreamType // by index of stream
}

// NewBuilder returns a builder of an empty workload in a format.
func NewBuilder(format string) *Builder {
	return &Builder{
		Format: format, names: map[string]uint32{"": 0},
		streams: map[Stream]int32{}, threads: map[Thread]int32{}, steps: map[Step]bool{}, types: map[int32]StreamType{},
		w: Workload{Names: []string{""}, Rank: None},
	}
}

// AddDevice adds a GPU's name.
func (b *Builder) AddDevice(name string) {
	if len(b.w.Devices) < maxItems {
		b.w.Devices = append(b.w.Devices, clip(name))
	}
}

// SetRank tells the rank of the process in its distributed job.
func (b *Builder) SetRank(rank int32) { b.w.Rank = rank }

// SetScheduled tells that the times are not recorded.
func (b *Builder) SetScheduled() { b.w.Scheduled = true }

// SetWorld tells the number of ranks of the distributed job.
func (b *Builder) SetWorld(ranks int32) { b.w.World = ranks }

// Name interns a name and returns its index. It replaces invalid UTF-8, truncates
// long names, and does not keep name.
func (b *Builder) Name(name []byte) uint32 {
	if i, ok := b.names[string(name)]; ok {
		return i
	}
	if b.nameBytes+len(name) > MaxNameBytes {
		b.Report.Note("the names exceed %d MB: the rest are \"\"", MaxNameBytes>>20)
		return 0
	}
	s := clip(string(name))
	i, ok := b.names[s]
	if !ok {
		i = uint32(len(b.w.Names))
		b.w.Names = append(b.w.Names, s)
		b.names[s] = i
		b.nameBytes += len(s)
	}
	if s != string(name) && len(name) <= maxName {
		b.names[string(name)] = i
		b.nameBytes += len(name)
	}
	return i
}

func clip(s string) string {
	if len(s) > maxName {
		s = s[:maxName]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Stream returns the index of a stream, and adds the stream if it is new; ok is
// false if there are too many.
func (b *Builder) Stream(s Stream) (i int32, ok bool) { return intern(b.streams, &b.w.Streams, s) }

// Thread does the same for a thread.
func (b *Builder) Thread(t Thread) (i int32, ok bool) { return intern(b.threads, &b.w.Threads, t) }

func intern[T comparable](index map[T]int32, all *[]T, v T) (i int32, ok bool) {
	i, ok = index[v]
	if !ok && len(*all) < maxItems {
		i, ok = int32(len(*all)), true
		index[v] = i
		*all = append(*all, v)
	}
	return i, ok
}

// AddOp adds an operation with absolute times. where returns its file position.
func (b *Builder) AddOp(op Op, where func() string) {
	if b.room(op.Start, op.Dur, where) {
		op.Call = None
		b.w.Ops = append(b.w.Ops, op)
		b.Report.Used++
	}
}

// AddCall adds a call with absolute times.
func (b *Builder) AddCall(c Call, where func() string) {
	if b.room(c.Start, c.Dur, where) {
		c.Stream, c.Event, c.Latest, c.Record = None, None, None, None
		b.w.Calls = append(b.w.Calls, c)
		b.Report.Used++
	}
}

// AddStep adds a training step, once.
func (b *Builder) AddStep(s Step, where func() string) {
	s.Name = clip(s.Name)
	if b.steps[s] || len(b.w.Steps) >= maxItems || !b.room(s.Start, s.Dur, where) {
		return
	}
	b.steps[s] = true
	b.w.Steps = append(b.w.Steps, s)
	b.Report.Used++
}

// AddRange adds a part of the run with a name.
func (b *Builder) AddRange(r Range, where func() string) {
	if b.room(r.Start, r.Dur, where) {
		b.w.Ranges = append(b.w.Ranges, r)
	}
}

// AddOverhead adds time of a thread that the profiler spent for itself.
func (b *Builder) AddOverhead(o Overhead, where func() string) {
	if len(b.w.Overheads) < MaxRecords && b.room(o.Start, o.Dur, where) {
		b.w.Overheads = append(b.w.Overheads, o)
	}
}

// AddFunction adds a call of a function, whose kind follows from what it does.
func (b *Builder) AddFunction(f Function, c Call, where func() string) {
	switch f.role {
	case marks:
		b.AddMark(f.mark, c.Start, c.Corr, c.Thread, where)
	case asks:
		b.AddQuery(c, where)
	case calls:
		c.Kind = f.call
		b.AddCall(c, where)
	}
}

// AddMark adds a call that records an event or makes a stream wait for one.
func (b *Builder) AddMark(kind MarkKind, start time.Duration, corr uint32, thread int32, where func() string) {
	if b.room(start, 0, where) {
		b.marks = append(b.marks, mark{at: start, process: b.w.Threads[thread].Process, corr: corr, thread: thread, stream: None, kind: kind})
	}
}

// AddEvent tells on which stream the call with correlation corr recorded an event.
func (b *Builder) AddEvent(process uint64, corr uint32, stream int32) {
	if len(b.events) < MaxRecords {
		b.events = append(b.events, eventRecord{process, corr, stream})
	}
}

// AddAwaited tells what a call waits for.
func (b *Builder) AddAwaited(a Awaited) {
	if len(b.waits) < MaxRecords {
		b.waits = append(b.waits, a)
	}
}

func (b *Builder) room(start, dur time.Duration, where func() string) bool {
	switch {
	case dur < 0:
		b.Report.Drop("with a negative duration", where())
	case dur > MaxTime || start > math.MaxInt64-MaxTime || start < -(math.MaxInt64-MaxTime):
		b.Report.Drop("with an impossible time", where())
	case len(b.w.Ops)+len(b.w.Calls)+len(b.w.Steps)+len(b.w.Ranges)+len(b.marks)+len(b.queries) >= MaxRecords:
		b.Report.Drop(fmt.Sprintf("beyond the limit of %d", MaxRecords), where())
	default:
		return true
	}
	return false
}

// Build joins calls and operations and returns the workload. The builder must not
// be used afterwards. Build fails if the trace holds no operation of a GPU.
func (b *Builder) Build() (*Workload, error) {
	w := &b.w
	w.Format, w.Report = b.Format, b.Report
	if len(w.Ops) == 0 {
		err := fmt.Errorf("workload: the trace holds no kernel, copy or memset of a GPU (%d events read): was the GPU recorded (ProfilerActivity.CUDA, nsys --trace=cuda)?", b.Report.Events)
		if warn := b.Report.Warning(); warn != "" {
			err = fmt.Errorf("%w; %s", err, warn)
		}
		return nil, err
	}
	w.dropOutliers()
	slices.SortStableFunc(w.Ops, func(x, y Op) int { return cmp.Compare(x.Start, y.Start) })
	slices.SortStableFunc(w.Calls, func(x, y Call) int {
		return cmp.Or(cmp.Compare(x.Start, y.Start), cmp.Compare(y.Dur, x.Dur))
	})
	slices.SortStableFunc(w.Steps, func(x, y Step) int { return cmp.Compare(x.Start, y.Start) })
	w.joinOverheads()
	slices.SortStableFunc(w.Ranges, func(x, y Range) int {
		return cmp.Or(cmp.Compare(x.Thread, y.Thread), cmp.Compare(x.Start, y.Start), cmp.Compare(y.Dur, x.Dur))
	})
	base := w.rebase()
	outer := w.flatten()
	w.join(outer)
	w.dropDoubled()
	w.chooseSteps()
	w.align(b.waits, outer)
	base += w.rebase()
	newResolver(b, base, outer).resolve(b)
	if err := w.check(); err != nil {
		return nil, err
	}
	w.Calls, w.Ops = slices.Clip(w.Calls), slices.Clip(w.Ops)
	return w, nil
}

// dropOutliers removes events more than MaxTime from the median start: a flipped
// bit in one timestamp must not stretch the run over centuries.
func (w *Workload) dropOutliers() {
	starts := make([]time.Duration, len(w.Ops))
	for i := range w.Ops {
		starts[i] = w.Ops[i].Start
	}
	mid := quantile.Of(starts, 0.5)
	far := func(t time.Duration) bool { return math.Abs(float64(t)-float64(mid)) > float64(MaxTime) }
	n := len(w.Ops) + len(w.Calls) + len(w.Steps)
	w.Ops = slices.DeleteFunc(w.Ops, func(o Op) bool { return far(o.Start) })
	w.Calls = slices.DeleteFunc(w.Calls, func(c Call) bool { return far(c.Start) })
	w.Steps = slices.DeleteFunc(w.Steps, func(s Step) bool { return far(s.Start) })
	w.Ranges = slices.DeleteFunc(w.Ranges, func(r Range) bool { return far(r.Start) })
	if n -= len(w.Ops) + len(w.Calls) + len(w.Steps); n > 0 {
		w.Report.DropN("more than a year from the median time", "", int64(n))
		w.Report.Used -= int64(n)
	}
}

// rebase shifts all times so that the first start is zero, and returns by how much.
func (w *Workload) rebase() time.Duration {
	base := w.Ops[0].Start
	if len(w.Calls) > 0 {
		base = min(base, w.Calls[0].Start)
	}
	if len(w.Steps) > 0 {
		base = min(base, w.Steps[0].Start)
	}
	for i := range w.Ops {
		w.Ops[i].Start -= base
	}
	for i := range w.Calls {
		w.Calls[i].Start -= base
	}
	for i := range w.Steps {
		w.Steps[i].Start -= base
	}
	for i := range w.Overheads {
		w.Overheads[i].Start -= base
	}
	for i := range w.Ranges {
		w.Ranges[i].Start -= base
	}
	return base
}

// joinOverheads sorts the profiler's own time and joins what overlaps.
func (w *Workload) joinOverheads() {
	slices.SortFunc(w.Overheads, func(x, y Overhead) int {
		return cmp.Or(cmp.Compare(x.Thread, y.Thread), cmp.Compare(x.Start, y.Start), cmp.Compare(x.Dur, y.Dur))
	})
	kept := w.Overheads[:0]
	for _, o := range w.Overheads {
		if n := len(kept); n > 0 && kept[n-1].Thread == o.Thread && o.Start <= kept[n-1].End() {
			last := &kept[n-1]
			last.Dur = max(last.End(), o.End()) - last.Start
			continue
		}
		kept = append(kept, o)
	}
	w.Overheads = slices.Clip(kept)
}

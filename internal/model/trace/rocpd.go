package trace

import (
	"cmp"
	"strings"

	"github.com/dxpu-project/dxpu/internal/model/trace/sqlite"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Tables of rocpd, the databases of AMD's rocprofv3. The number of the run is behind each
// of the names.
const (
	rocpdKernel = "rocpd_kernel_dispatch"
	rocpdCopy   = "rocpd_memory_copy"
	rocpdRegion = "rocpd_region"
	rocpdEvent  = "rocpd_event"
	rocpdString = "rocpd_string"
	rocpdSymbol = "rocpd_info_kernel_symbol"
	rocpdAgent  = "rocpd_info_agent"
	// Of schema version 4 only.
	rocpdCategory  = "rocpd_info_category"
	rocpdTrack     = "rocpd_track"
	rocpdTimestamp = "rocpd_timestamp"
)

// rocpd reads one run.
type rocpd struct {
	tables
	run     string // the end of the names of tables
	steps   []byte // how the names of training steps begin
	gpus    map[int64]bool
	strings map[int64]string
	symbols map[int64]uint32 // names of kernels, as indexes into Workload.Names
	// events are ascending; an operation and the call that launched it have the same
	// stack.
	events []rocpdStack
	// markers are the categories of ROCTx, messages the texts of its ranges by event.
	markers  map[int64]bool
	messages map[int64]string
	tracks   map[int64]rocpdPlace
	stamps   rocpdStamps
}

type rocpdStack struct {
	id    int64
	stack uint32
}

func newRocpd(t tables, run string, steps []byte) *rocpd {
	return &rocpd{
		tables: t, run: run, steps: steps, gpus: map[int64]bool{}, strings: map[int64]string{}, symbols: map[int64]uint32{},
		markers: map[int64]bool{}, messages: map[int64]string{}, tracks: map[int64]rocpdPlace{},
	}
}

// rocpdRuns returns the ends of the names of the tables, one for each run.
func rocpdRuns(db *sqlite.DB) (runs []string) {
	for _, name := range db.Names() {
		if run, ok := strings.CutPrefix(name, rocpdKernel); ok {
			runs = append(runs, run)
		}
	}
	return runs
}

// read reads all tables.
func (r *rocpd) read(progress func(done, of int)) error {
	passes := []func() error{r.agents, r.names, r.categories, r.stacks, r.readTracks, r.readStamps, r.kernels, r.copies, r.regions}
	for i, pass := range passes {
		if err := pass(); err != nil {
			return err
		}
		progress(i+1, len(passes))
	}
	return nil
}

// maxAgents and maxStrings bound what a hostile file makes the reader remember.
const (
	maxAgents  = 1 << 12
	maxStrings = workload.MaxRecords / 8
)

func (r *rocpd) agents() error {
	return r.scan(rocpdAgent+r.run, []string{"id!", "type!", "product_name", "name"}, false, func(row *sqlite.Row, c []int, _ func() string) {
		id, ok := row.Int(c[0])
		if !ok || row.Text(c[1]) != "GPU" || len(r.gpus) >= maxAgents {
			return
		}
		r.gpus[id] = true
		r.b.AddDevice(cmp.Or(row.Text(c[2]), row.Text(c[3])))
	})
}

// names reads the names of calls and of kernels.
func (r *rocpd) names() error {
	err := r.scan(rocpdString+r.run, []string{"id!", "string!"}, false, func(row *sqlite.Row, c []int, _ func() string) {
		if id, ok := row.Int(c[0]); ok && len(r.strings) < maxStrings {
			switch text := row.Text(c[1]); {
			case len(text) >= 256:
			case strings.HasPrefix(text, "hip"):
				r.strings[id] = text
			case strings.HasPrefix(text, rocpdMarker):
				r.markers[id] = true
			}
		}
	})
	if err != nil {
		return err
	}
	return r.scan(rocpdSymbol+r.run, []string{"id!", "display_name", "kernel_name"}, false, func(row *sqlite.Row, c []int, _ func() string) {
		id, ok := row.Int(c[0])
		if !ok || len(r.symbols) >= maxStrings {
			return
		}
		r.symbols[id] = r.b.Name([]byte(cmp.Or(row.Text(c[1]), row.Text(c[2]))))
	})
}

// stacks reads the events of calls and operations.
func (r *rocpd) stacks() error {
	return r.scan(rocpdEvent+r.run, []string{"id!", "stack_id!", "category_id", "extdata"}, false, func(row *sqlite.Row, c []int, where func() string) {
		id, ok1 := row.Int(c[0])
		stack, ok2 := row.Int(c[1])
		switch n := len(r.events); {
		case !ok1 || !ok2:
		case n >= 2*workload.MaxRecords || n > 0 && id <= r.events[n-1].id:
			r.b.Report.Drop("that are events out of order or beyond the limit", where())
		default:
			r.events = append(r.events, rocpdStack{id, uint32(stack)})
			if category, ok := row.Int(c[2]); ok && r.markers[category] && len(r.messages) < maxStrings {
				if text := message(row.Text(c[3])); text != "" {
					r.messages[id] = text
				}
			}
		}
	})
}

// addOp adds an operation on a stream of a GPU.
func (r *rocpd) addOp(op workload.Op, s rocpdSpan, device int64, where func() string) {
	st, ok := r.b.Stream(workload.Stream{Process: s.process, Device: device, ID: uint64(s.stream)})
	if !ok {
		r.b.Report.Drop("on too many streams", where())
		return
	}
	op.Start, op.Dur, op.Corr, op.Stream = s.start, s.dur, s.corr, st
	r.b.AddOp(op, where)
}

func (r *rocpd) kernels() error {
	return r.spans(rocpdKernel, []string{"agent_id!", "stream_id!"}, []string{"kernel_id!"}, func(row *sqlite.Row, c []int, s rocpdSpan, where func() string) {
		kernel, _ := row.Int(c[0])
		r.addOp(workload.Op{Kind: workload.Kernel, Name: r.symbols[kernel]}, s, s.agent, where)
	})
}

func (r *rocpd) copies() error {
	own := []string{"src_agent_id!", "dst_agent_id!", "size!"}
	return r.spans(rocpdCopy, []string{"", "stream_id!"}, own, func(row *sqlite.Row, c []int, s rocpdSpan, where func() string) {
		src, _ := row.Int(c[0])
		dst, _ := row.Int(c[1])
		size, _ := row.Int(c[2])
		op := workload.Op{Bytes: max(size, 0)}
		device := dst
		switch from, to := r.gpus[src], r.gpus[dst]; {
		case from && to && src == dst:
			op.Kind = workload.CopyDtoD
		case from && to:
			op.Kind = workload.CopyPtoP
		case to:
			op.Kind = workload.CopyHtoD
		case from:
			op.Kind, device = workload.CopyDtoH, src
		default:
			return // from the host to the host
		}
		op.Name = r.b.Name([]byte(op.Kind.String()))
		r.addOp(op, s, device, where)
	})
}

// regions reads the calls of HIP and the ranges of ROCTx. The calls of HSA, which HIP makes,
// are left out.
func (r *rocpd) regions() error {
	return r.spans(rocpdRegion, []string{"", ""}, []string{"name_id!"}, func(row *sqlite.Row, c []int, s rocpdSpan, where func() string) {
		if text := r.messages[s.event]; text != "" {
			r.marker(text, s, where)
			return
		}
		id, _ := row.Int(c[0])
		name := r.strings[id]
		f, keep := workload.Classify(name)
		if name == "" || !keep {
			return
		}
		if th, ok := r.thread(s, where); ok {
			r.b.AddFunction(f, workload.Call{Start: s.start, Dur: s.dur, Corr: s.corr, Name: r.b.Name([]byte(name)), Thread: th}, where)
		}
	})
}

func (r *rocpd) thread(s rocpdSpan, where func() string) (int32, bool) {
	th, ok := r.b.Thread(workload.Thread{Process: s.process, ID: uint64(s.tid)})
	if !ok {
		r.b.Report.Drop("on too many threads", where())
	}
	return th, ok
}

// marker adds a range of the program. Some are training steps.
func (r *rocpd) marker(text string, s rocpdSpan, where func() string) {
	th, ok := r.thread(s, where)
	switch {
	case !ok:
	case strings.HasPrefix(text, string(r.steps)):
		r.b.AddStep(workload.Step{Name: text, Thread: th, Start: s.start, Dur: s.dur}, where)
	default:
		r.b.AddRange(workload.Range{Name: r.b.Name([]byte(withoutNumbers(text))), Thread: th, Start: s.start, Dur: s.dur}, where)
	}
}

package trace

import (
	"cmp"
	"slices"
	"strings"
	"time"

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
)

// rocpd reads one run.
type rocpd struct {
	tables
	run     string // the end of the names of tables
	gpus    map[int64]bool
	strings map[int64]string
	symbols map[int64]uint32 // names of kernels, as indexes into Workload.Names
	// events are ascending; an operation and the call that launched it have the same
	// stack.
	events []rocpdStack
}

type rocpdStack struct {
	id    int64
	stack uint32
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
	passes := []func() error{r.agents, r.names, r.stacks, r.kernels, r.copies, r.calls}
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
			if text := row.Text(c[1]); strings.HasPrefix(text, "hip") && len(text) < 256 {
				r.strings[id] = text
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
	return r.scan(rocpdEvent+r.run, []string{"id!", "stack_id!"}, false, func(row *sqlite.Row, c []int, where func() string) {
		id, ok1 := row.Int(c[0])
		stack, ok2 := row.Int(c[1])
		switch n := len(r.events); {
		case !ok1 || !ok2:
		case n >= 2*workload.MaxRecords || n > 0 && id <= r.events[n-1].id:
			r.b.Report.Drop("that are events out of order or beyond the limit", where())
		default:
			r.events = append(r.events, rocpdStack{id, uint32(stack)})
		}
	})
}

// corr returns the stack of an event, or 0.
func (r *rocpd) corr(event int64) uint32 {
	i, ok := slices.BinarySearchFunc(r.events, event, func(e rocpdStack, id int64) int {
		return cmp.Compare(e.id, id)
	})
	if !ok {
		return 0
	}
	return r.events[i].stack
}

// span is the columns that calls and operations share, and their number.
var span = []string{"start!", "end!", "pid!", "event_id!"}

const nSpan = 4

// rocpdSpan holds the values of these columns.
type rocpdSpan struct {
	start, dur time.Duration
	process    uint64
	corr       uint32
}

func (r *rocpd) span(row *sqlite.Row, c []int, where func() string) (s rocpdSpan, ok bool) {
	start, ok1 := row.Int(c[0])
	end, ok2 := row.Int(c[1])
	pid, ok3 := row.Int(c[2])
	if !ok1 || !ok2 || !ok3 {
		r.b.Report.Drop("without a readable start, end or process", where())
		return s, false
	}
	event, _ := row.Int(c[3])
	return rocpdSpan{time.Duration(start), time.Duration(end) - time.Duration(start), uint64(pid), r.corr(event)}, true
}

// addOp adds an operation on a stream of a GPU.
func (r *rocpd) addOp(op workload.Op, s rocpdSpan, device, stream int64, where func() string) {
	st, ok := r.b.Stream(workload.Stream{Process: s.process, Device: device, ID: uint64(stream)})
	if !ok {
		r.b.Report.Drop("on too many streams", where())
		return
	}
	op.Start, op.Dur, op.Corr, op.Stream = s.start, s.dur, s.corr, st
	r.b.AddOp(op, where)
}

func (r *rocpd) kernels() error {
	cols := slices.Concat(span, []string{"agent_id!", "stream_id!", "kernel_id!"})
	return r.scan(rocpdKernel+r.run, cols, true, func(row *sqlite.Row, c []int, where func() string) {
		s, ok := r.span(row, c, where)
		if !ok {
			return
		}
		agent, _ := row.Int(c[nSpan])
		stream, _ := row.Int(c[nSpan+1])
		kernel, _ := row.Int(c[nSpan+2])
		r.addOp(workload.Op{Kind: workload.Kernel, Name: r.symbols[kernel]}, s, agent, stream, where)
	})
}

func (r *rocpd) copies() error {
	cols := slices.Concat(span, []string{"src_agent_id!", "dst_agent_id!", "stream_id!", "size!"})
	return r.scan(rocpdCopy+r.run, cols, true, func(row *sqlite.Row, c []int, where func() string) {
		s, ok := r.span(row, c, where)
		if !ok {
			return
		}
		src, _ := row.Int(c[nSpan])
		dst, _ := row.Int(c[nSpan+1])
		stream, _ := row.Int(c[nSpan+2])
		size, _ := row.Int(c[nSpan+3])
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
		r.addOp(op, s, device, stream, where)
	})
}

// calls reads the calls of HIP. Those of HSA, which HIP makes, are left out.
func (r *rocpd) calls() error {
	cols := slices.Concat(span, []string{"tid!", "name_id!"})
	return r.scan(rocpdRegion+r.run, cols, true, func(row *sqlite.Row, c []int, where func() string) {
		id, _ := row.Int(c[nSpan+1])
		name := r.strings[id]
		kind, keep := workload.ClassifyCall(name)
		mark, isMark := workload.ClassifyMark(name)
		if name == "" || !keep && !isMark {
			return
		}
		s, ok := r.span(row, c, where)
		if !ok {
			return
		}
		tid, _ := row.Int(c[nSpan])
		th, ok := r.b.Thread(workload.Thread{Process: s.process, ID: uint64(tid)})
		switch {
		case !ok:
			r.b.Report.Drop("on too many threads", where())
		case isMark:
			r.b.AddMark(mark, s.start, s.corr, th, where)
		default:
			r.b.AddCall(workload.Call{Start: s.start, Dur: s.dur, Corr: s.corr, Name: r.b.Name([]byte(name)), Thread: th, Kind: kind}, where)
		}
	})
}

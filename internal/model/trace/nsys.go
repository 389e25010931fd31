package trace

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/trace/sqlite"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Tables that are read. An export contains only the tables that have rows.
const (
	tableStrings = "StringIds"
	tableKernel  = "CUPTI_ACTIVITY_KIND_KERNEL"
	tableMemcpy  = "CUPTI_ACTIVITY_KIND_MEMCPY"
	tableMemset  = "CUPTI_ACTIVITY_KIND_MEMSET"
	tableGraph   = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
	tableRuntime = "CUPTI_ACTIVITY_KIND_RUNTIME"
	tableDriver  = "CUPTI_ACTIVITY_KIND_DRIVER"
	tableSync    = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
	tableEvent   = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
	tableNVTX    = "NVTX_EVENTS"
	tableGPU     = "TARGET_INFO_GPU"
	tableStream  = "TARGET_INFO_CUDA_STREAM"
	// Time that the profiler itself, and the library below it, spent on a thread.
	tableOverhead      = "PROFILER_OVERHEAD"
	tableCUPTI         = "CUPTI_ACTIVITY_KIND_OVERHEAD"
	tableOverheadNames = "ENUM_CUPTI_OVERHEAD_TYPE"
)

// nsys reads one export.
type nsys struct {
	tables
	steps []byte
	// Strings by their id in the export: the names of kernels, calls and marks.
	names      map[int64]uint32 // index into Workload.Names
	nameText   map[int64]string
	referenced map[int64]bool
	events     []nsysEvent
	contexts   map[nsysContext]int64 // the devices of contexts
	migrations int                   // copies that move pages of unified memory
}

// read reads all tables.
func (n *nsys) read(progress func(done, of int)) error {
	passes := []func() error{
		n.findReferences, n.strings, n.devices, n.kernels, n.copies, n.memsets, n.graphs,
		func() error { return n.calls(tableRuntime) }, func() error { return n.calls(tableDriver) }, n.cudaEvents, n.syncs, n.streamTypes, n.marks,
		func() error { return n.overheads(tableOverhead) }, func() error { return n.overheads(tableCUPTI) },
	}
	for i, pass := range passes {
		if err := pass(); err != nil {
			return err
		}
		progress(i+1, len(passes))
	}
	return nil
}

// findReferences finds the few string ids that other tables refer to.
func (n *nsys) findReferences() error {
	var errs []error
	for _, t := range []struct{ table, column string }{
		{tableKernel, "demangledName"},
		{tableKernel, "shortName"},
		{tableRuntime, "nameId"},
		{tableDriver, "nameId"},
		{tableNVTX, "textId"},
	} {
		errs = append(errs, n.scan(t.table, []string{t.column}, false, func(r *sqlite.Row, c []int, _ func() string) {
			if id, ok := r.Int(c[0]); ok && len(n.referenced) < workload.MaxRecords/8 {
				n.referenced[id] = true
			}
		}))
	}
	// The scans that follow find, and count, the same damage again.
	n.b.Report.Drops, n.b.Report.Events = nil, 0
	return errors.Join(errs...)
}

func (n *nsys) strings() error {
	return n.scan(tableStrings, []string{"id!", "value!"}, false, func(r *sqlite.Row, c []int, _ func() string) {
		if id, ok := r.Int(c[0]); ok && n.referenced[id] {
			text := r.Text(c[1])
			n.names[id] = n.b.Name([]byte(text))
			if i := n.names[id]; i != 0 {
				n.nameText[id] = text[:min(len(text), 256)]
			}
		}
	})
}

func (n *nsys) devices() error {
	return n.scan(tableGPU, []string{"name"}, false, func(r *sqlite.Row, c []int, _ func() string) {
		if name := r.Text(c[0]); name != "" {
			n.b.AddDevice(name)
		}
	})
}

// opColumns are the columns that all tables of operations share, in this order.
var opColumns = []string{"start!", "end!", "deviceId!", "streamId!", "correlationId", "globalPid", "contextId"}

const nOpColumns = 7

// op reads the shared columns.
func (n *nsys) op(r *sqlite.Row, c []int, where func() string) (op workload.Op, ok bool) {
	start, ok1 := r.Int(c[0])
	end, ok2 := r.Int(c[1])
	device, ok3 := r.Int(c[2])
	stream, ok4 := r.Int(c[3])
	switch {
	case !ok1 || !ok2 || !ok3 || !ok4:
		n.b.Report.Drop("without a readable start, end, device or stream", where())
		return op, false
	case start == 0 && end == 0: // so CUPTI says it
		n.b.Report.Drop("whose time the profiler could not collect", where())
		return op, false
	}
	corr, _ := r.Int(c[4])
	pid, _ := r.Int(c[5])
	if context, ok := r.Int(c[6]); ok && len(n.contexts) < maxContexts {
		n.contexts[nsysContext{process(pid), context}] = device
	}
	op = workload.Op{Start: time.Duration(start), Dur: time.Duration(end) - time.Duration(start), Corr: uint32(corr)}
	if op.Stream, ok = n.b.Stream(workload.Stream{Process: process(pid), Device: device, ID: uint64(stream)}); !ok {
		n.b.Report.Drop("on too many streams", where())
	}
	return op, ok
}

// process removes the thread from a serialised GlobalId: the numbers of hardware,
// VM and process are above the lowest 24 bits.
func process(globalID int64) uint64 { return uint64(globalID) >> 24 }

func (n *nsys) kernels() error {
	cols := append(opColumns[:nOpColumns:nOpColumns], "demangledName", "shortName", "graphNodeId")
	return n.scan(tableKernel, cols, true, func(r *sqlite.Row, c []int, where func() string) {
		op, ok := n.op(r, c, where)
		if !ok {
			return
		}
		for _, i := range c[nOpColumns : nOpColumns+2] {
			if id, ok := r.Int(i); ok && op.Name == 0 {
				op.Name = n.names[id]
			}
		}
		if id, ok := r.Int(c[nOpColumns+2]); ok && id != 0 {
			op.Kind = workload.GraphKernel
		}
		n.b.AddOp(op, where)
	})
}

func (n *nsys) copies() error {
	cols := append(opColumns[:nOpColumns:nOpColumns], "bytes", "copyKind", "srcKind", "dstKind")
	err := n.scan(tableMemcpy, cols, true, func(r *sqlite.Row, c []int, where func() string) {
		op, ok := n.op(r, c, where)
		if !ok {
			return
		}
		c = c[nOpColumns:]
		op.Bytes, _ = r.Int(c[0])
		op.Bytes = max(op.Bytes, 0)
		kind, _ := r.Int(c[1])
		src, ok1 := r.Int(c[2])
		dst, ok2 := r.Int(c[3])
		op.Kind = copyKind(kind, src, dst)
		op.Pageable = ok1 && ok2 && (src == memPageable || dst == memPageable)
		op.Name = n.b.Name([]byte(op.Kind.String()))
		n.b.AddOp(op, where)
		if kind == operUVMHtoD || kind == operUVMDtoH || kind == operUVMDtoD {
			n.migrations++
		}
	})
	if n.migrations > 0 {
		n.b.Report.Doubt("%d copies move pages of unified memory: kernels wait for them, and the host, but the trace does not tell which, so the prediction is too good", n.migrations)
	}
	return err
}

// Values of ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND.
const (
	operHtoD, operDtoH, operHtoA, operAtoH = 1, 2, 3, 4
	operAtoA, operAtoD, operDtoA, operDtoD = 5, 6, 7, 8
	operPtoP, operUVMHtoD, operUVMDtoH     = 10, 11, 12
	operUVMDtoD                            = 13

	memPageable, memPinned, memDevice, memArray, memDeviceStatic = 0, 1, 2, 3, 5
)

// copyKind returns the direction of a copy from the kinds of memory and, where
// those do not decide it, from the kind of the copy: newer versions record some
// copies from the host as "device to device".
func copyKind(kind, src, dst int64) workload.OpKind {
	host := func(m int64) bool { return m == memPinned }
	device := func(m int64) bool { return m == memDevice || m == memArray || m == memDeviceStatic }
	switch {
	case host(src) && device(dst):
		return workload.CopyHtoD
	case device(src) && host(dst):
		return workload.CopyDtoH
	}
	switch kind {
	case operHtoD, operHtoA, operUVMHtoD:
		return workload.CopyHtoD
	case operDtoH, operAtoH, operUVMDtoH:
		return workload.CopyDtoH
	case operAtoA, operAtoD, operDtoA, operDtoD:
		return workload.CopyDtoD
	case operPtoP, operUVMDtoD:
		return workload.CopyPtoP
	}
	return workload.CopyOther
}

func (n *nsys) memsets() error {
	cols := append(opColumns[:nOpColumns:nOpColumns], "bytes")
	return n.scan(tableMemset, cols, true, func(r *sqlite.Row, c []int, where func() string) {
		if op, ok := n.op(r, c, where); ok {
			op.Kind = workload.Memset
			op.Bytes, _ = r.Int(c[nOpColumns])
			op.Bytes = max(op.Bytes, 0)
			n.b.AddOp(op, where)
		}
	})
}

// graphs reads graph launches that were traced as one operation each.
func (n *nsys) graphs() error {
	return n.scan(tableGraph, opColumns, true, func(r *sqlite.Row, c []int, where func() string) {
		if op, ok := n.op(r, c, where); ok {
			op.Kind = workload.WholeGraph
			op.Name = n.b.Name([]byte(op.Kind.String()))
			n.b.AddOp(op, where)
		}
	})
}

func (n *nsys) thread(gid int64) (int32, bool) {
	return n.b.Thread(workload.Thread{Process: process(gid), ID: uint64(gid)})
}

func (n *nsys) calls(table string) error {
	cols := []string{"start!", "end!", "globalTid!", "correlationId", "nameId!"}
	return n.scan(table, cols, true, func(r *sqlite.Row, c []int, where func() string) {
		start, ok1 := r.Int(c[0])
		end, ok2 := r.Int(c[1])
		gid, ok3 := r.Int(c[2])
		if !ok1 || !ok2 || !ok3 {
			n.b.Report.Drop("without a readable start, end or thread", where())
			return
		}
		corr, _ := r.Int(c[3])
		name, _ := r.Int(c[4])
		f, keep := workload.Classify(n.nameText[name])
		if !keep {
			return
		}
		th, ok := n.thread(gid)
		if !ok {
			n.b.Report.Drop("on too many threads", where())
			return
		}
		n.b.AddFunction(f, workload.Call{
			Start: time.Duration(start), Dur: time.Duration(end) - time.Duration(start),
			Corr: uint32(corr), Name: n.names[name], Thread: th,
		}, where)
	})
}

// ownOverheads returns the values of overheadType that are the profiler's own time: those
// that the export's table names so. The others (compilation, loading of modules and
// functions, a full queue of commands) a program has without a profiler, too. An export
// without names has the numbers of Nsight Systems 2024.
func (n *nsys) ownOverheads() (map[int64]bool, error) {
	const bufferFlush, instrumentation, resource = 3, 4, 5
	own, named := map[int64]bool{bufferFlush: true, instrumentation: true, resource: true}, map[int64]bool{}
	err := n.scan(tableOverheadNames, []string{"id!", "name", "label"}, false, func(r *sqlite.Row, c []int, _ func() string) {
		id, ok := r.Int(c[0])
		if ok && len(named) < maxOverheadTypes {
			named[id] = strings.Contains(r.Text(c[1]), "CUPTI") || strings.Contains(r.Text(c[2]), "(Profiler)")
		}
	})
	if len(named) > 0 {
		own = named
	}
	return own, err
}

// maxOverheadTypes bounds what a hostile file makes ownOverheads remember.
const maxOverheadTypes = 1000

// overheads reads the profiler's own time on threads that made calls.
func (n *nsys) overheads(table string) error {
	own, err := n.ownOverheads()
	if err != nil {
		return err
	}
	all := false // exports before 2024 have no types: this table has only the profiler's own time
	if in, ok := n.db.Table(table); ok && table == tableOverhead {
		column, err := in.Column("overheadType")
		all = err == nil && column < 0
	}
	return n.scan(table, []string{"start!", "end!", "globalTid", "overheadType"}, true, func(r *sqlite.Row, c []int, where func() string) {
		start, ok1 := r.Int(c[0])
		end, ok2 := r.Int(c[1])
		gid, ok3 := r.Int(c[2])
		if !ok1 || !ok2 || !ok3 {
			return // of no known thread
		}
		if kind, ok := r.Int(c[3]); !all && (!ok || !own[kind]) {
			return
		}
		if th, ok := n.thread(gid); ok {
			n.b.AddOverhead(workload.Overhead{Thread: th, Start: time.Duration(start), Dur: time.Duration(end) - time.Duration(start)}, where)
		}
	})
}

// withoutNumbers returns the name of a range without what PyTorch's emit_nvtx appends to that
// of an operator: the numbers of the call, which would make each call a range of its own.
func withoutNumbers(text string) string {
	for _, number := range []string{", seq = ", ", op_id = "} {
		text, _, _ = strings.Cut(text, number)
	}
	return text
}

// marks reads the NVTX ranges. Some are training steps.
func (n *nsys) marks() error {
	cols := []string{"start!", "end!", "text", "textId", "globalTid"}
	return n.scan(tableNVTX, cols, true, func(r *sqlite.Row, c []int, where func() string) {
		text := r.Text(c[2])
		if id, ok := r.Int(c[3]); ok && text == "" {
			text = n.nameText[id]
		}
		step := bytes.HasPrefix([]byte(text), n.steps)
		start, ok1 := r.Int(c[0])
		end, ok2 := r.Int(c[1])
		gid, _ := r.Int(c[4])
		switch {
		case !step && (text == "" || !ok1 || !ok2):
			return // a mark at a point of time, or the name of a thread
		case !ok1 || !ok2:
			n.b.Report.Drop("without a readable start or end", where())
			return
		}
		th, ok := n.thread(gid)
		switch {
		case !ok:
		case !step:
			n.b.AddRange(workload.Range{Name: n.b.Name([]byte(withoutNumbers(text))), Thread: th, Start: time.Duration(start), Dur: time.Duration(end) - time.Duration(start)}, where)
		default:
			n.b.AddStep(workload.Step{Name: text, Thread: th, Start: time.Duration(start), Dur: time.Duration(end) - time.Duration(start)}, where)
		}
	})
}

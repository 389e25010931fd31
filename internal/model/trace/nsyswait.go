package trace

import (
	"cmp"
	"slices"
	"sort"

	"github.com/dxpu-project/dxpu/internal/model/trace/sqlite"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// nsysEvent is one recording of a CUDA event. An event is recorded many times; the
// sync number, which exports have since 2024, names one recording.
type nsysEvent struct {
	process     uint64
	event, sync int64
	corr        uint32
}

// cudaEvents reads on which stream each event was recorded.
func (n *nsys) cudaEvents() error {
	cols := []string{"deviceId!", "streamId!", "correlationId", "globalPid", "eventId!", "eventSyncId"}
	err := n.scan(tableEvent, cols, true, func(r *sqlite.Row, c []int, _ func() string) {
		device, _ := r.Int(c[0])
		stream, _ := r.Int(c[1])
		corr, ok := r.Int(c[2])
		pid, _ := r.Int(c[3])
		e := nsysEvent{process: process(pid), corr: uint32(corr)}
		e.event, _ = r.Int(c[4])
		e.sync, _ = r.Int(c[5])
		st, known := n.b.Stream(workload.Stream{Process: e.process, Device: device, ID: uint64(stream)})
		if !ok || !known || len(n.events) >= workload.MaxRecords {
			return
		}
		n.b.AddEvent(e.process, e.corr, st)
		n.events = append(n.events, e)
	})
	slices.SortStableFunc(n.events, func(a, b nsysEvent) int {
		return cmp.Or(cmp.Compare(a.process, b.process), cmp.Compare(a.event, b.event), cmp.Compare(a.corr, b.corr))
	})
	return err
}

// recorded returns the correlation of the call that recorded an event for the wait
// with correlation corr, or 0: the recording with the same sync number, or the
// latest one before the wait. Correlation numbers rise with time.
func (n *nsys) recorded(process uint64, event, sync int64, corr uint32) uint32 {
	order := func(e *nsysEvent) int { return cmp.Or(cmp.Compare(e.process, process), cmp.Compare(e.event, event)) }
	from := sort.Search(len(n.events), func(i int) bool { return order(&n.events[i]) >= 0 })
	to := from + sort.Search(len(n.events)-from, func(i int) bool {
		e := &n.events[from+i]
		return order(e) > 0 || order(e) == 0 && e.corr >= corr
	})
	if to == from {
		return 0
	}
	// A wait may refer to an earlier recording than the latest only if the sync number says so.
	for i := to - 1; sync != 0 && i >= from && to-i <= maxRerecorded; i-- {
		if n.events[i].sync == sync {
			return n.events[i].corr
		}
	}
	return n.events[to-1].corr
}

// maxRerecorded bounds how far back the recording of a sync number is looked for.
const maxRerecorded = 16

// Values of ENUM_CUPTI_SYNC_TYPE; 4 waits for the context.
const (
	syncEvent      = 1
	syncStreamWait = 2
	syncStream     = 3
)

// syncs reads what each synchronisation and each cudaStreamWaitEvent waited for.
func (n *nsys) syncs() error {
	cols := []string{"deviceId!", "streamId!", "correlationId!", "globalPid", "syncType!", "eventId", "eventSyncId"}
	return n.scan(tableSync, cols, true, func(r *sqlite.Row, c []int, _ func() string) {
		device, _ := r.Int(c[0])
		stream, _ := r.Int(c[1])
		corr, _ := r.Int(c[2])
		pid, _ := r.Int(c[3])
		typ, _ := r.Int(c[4])
		event, _ := r.Int(c[5])
		sync, _ := r.Int(c[6])
		a := workload.Awaited{Process: process(pid), Corr: uint32(corr), Stream: workload.None, From: workload.None}
		if typ == syncStream || typ == syncStreamWait {
			if stream < 0 || stream >= noStream {
				return
			}
			st, ok := n.b.Stream(workload.Stream{Process: a.Process, Device: device, ID: uint64(stream)})
			if !ok {
				return
			}
			a.Stream = st
		}
		switch typ {
		case syncEvent, syncStreamWait:
			a.Event = n.recorded(a.Process, event, sync, a.Corr)
		case syncStream:
		default:
			return
		}
		n.b.AddAwaited(a)
	})
}

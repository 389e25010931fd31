// Package workload describes a recorded run of a GPU program: calls on host
// threads, operations on streams, which call launched which operation, and the
// training steps. Trace readers build a workload and the predictor replays it.
package workload

import (
	"fmt"
	"time"
)

// OpKind is the kind of an operation on a stream.
type OpKind uint8

// Kinds of operations.
const (
	Kernel OpKind = iota
	GraphKernel
	WholeGraph // a graph launch that was traced as one operation
	CopyHtoD
	CopyDtoH
	CopyDtoD
	CopyPtoP
	CopyOther
	Memset
	opKinds
)

// String names the kind.
func (k OpKind) String() string {
	if k >= opKinds {
		return fmt.Sprintf("OpKind(%d)", uint8(k))
	}
	return [...]string{
		"kernel", "graph kernel", "whole graph", "copy HtoD", "copy DtoH",
		"copy DtoD", "copy PtoP", "copy other", "memset",
	}[k]
}

// IsKernel reports whether the operation executes kernels.
func (k OpKind) IsKernel() bool { return k == Kernel || k == GraphKernel || k == WholeGraph }

// IsCopy reports whether the operation is a copy.
func (k OpKind) IsCopy() bool { return k >= CopyHtoD && k <= CopyOther }

// CallKind is the kind of a host call.
type CallKind uint8

// Kinds of calls.
const (
	Launch CallKind = iota
	GraphLaunch
	CopyCall
	SyncCopy // a copy call that also waits for the copy, unless both ends are on the device
	MemsetCall
	StreamSync // waits for one stream or event
	DeviceSync // waits for everything
	Memory     // cudaMalloc, cudaFree and similar calls, which may wait for the device
	Other
	callKinds
)

// String names the kind.
func (k CallKind) String() string {
	if k >= callKinds {
		return fmt.Sprintf("CallKind(%d)", uint8(k))
	}
	return [...]string{"launch", "graph launch", "copy", "synchronous copy", "memset", "stream sync", "device sync", "memory", "other"}[k]
}

// IsSync reports whether the purpose of the call is to wait.
func (k CallKind) IsSync() bool { return k == StreamSync || k == DeviceSync }

// IsCopy reports whether the call copies.
func (k CallKind) IsCopy() bool { return k == CopyCall || k == SyncCopy }

// None is the index of nothing.
const None int32 = -1

// Nothing is the Event of a call that waits for an event before which no operation is.
const Nothing int32 = -2

// Op is one operation on a stream. Times are relative to the workload's start.
type Op struct {
	Start, Dur time.Duration
	Bytes      int64 // of copies and memsets
	Corr       uint32
	Name       uint32 // index into Workload.Names
	Stream     int32  // index into Workload.Streams
	Call       int32  // index into Workload.Calls of the call that launched it, or None
	Kind       OpKind
	Pageable   bool   // a copy to or from memory of the host that is known to be pageable
	Group      uint32 // index into Workload.Names of a collective's group of processes, 0 if unknown
}

// End returns Start + Dur.
func (o *Op) End() time.Duration { return o.Start + o.Dur }

// Call is a call of CUDA on a host thread, whose calls neither overlap nor nest.
type Call struct {
	Start, Dur time.Duration
	Corr       uint32
	Name       uint32
	Thread     int32 // index into Workload.Threads
	Stream     int32 // index into Workload.Streams of the stream that a StreamSync waits for, or None
	Event      int32 // index into Workload.Ops of the last operation before the event that a StreamSync waits for, Nothing, or None if the trace does not tell
	// Latest is for a cudaEventSynchronize of which the trace does not tell the event: the last
	// operation before the latest event that the thread recorded, or None.
	Latest int32
	Record int32 // index into Workload.Events of the event that a StreamSync waits for, or None
	Kind   CallKind
}

// End returns Start + Dur.
func (c *Call) End() time.Duration { return c.Start + c.Dur }

// Wait is a wait of one stream for another (cudaStreamWaitEvent): operation Op
// starts after operation On of another stream has ended. Both are indices into
// Workload.Ops. In the recording, On ended before Op started.
type Wait struct{ Op, On int32 }

// Await is an operation that a synchronisation waits for: indices into Workload.Calls and
// Workload.Ops.
type Await struct{ Call, On int32 }

// Stream is a queue of operations on one device. Process is the trace's number of
// the process, and Device is the number of the device in that process.
type Stream struct {
	Process uint64
	Device  int64
	ID      uint64
}

// Thread is a host thread. Its calls are joined with operations of streams of the
// same Process. Owner is the thread's process as named by a trace whose
// operations do not name theirs; Process is then zero.
type Thread struct {
	Process uint64
	Owner   uint64
	ID      uint64
}

// Step is a training step that the program marked on a host thread.
type Step struct {
	Name       string
	Thread     int32 // index into Workload.Threads, or None when it made no calls
	Start, Dur time.Duration
}

// End returns Start + Dur.
func (s Step) End() time.Duration { return s.Start + s.Dur }

// Overhead is time of a host thread that the profiler recorded as its own.
type Overhead struct {
	Thread     int32 // index into Workload.Threads
	Start, Dur time.Duration
}

// End returns Start + Dur.
func (o *Overhead) End() time.Duration { return o.Start + o.Dur }

// Range is a part of the run that the program named on a host thread: an annotation, a
// layer, or an NVTX range.
type Range struct {
	Name       uint32 // index into Workload.Names
	Thread     int32  // index into Workload.Threads
	Start, Dur time.Duration
}

// End returns Start + Dur.
func (r *Range) End() time.Duration { return r.Start + r.Dur }

// Workload is a recorded run. Ops and Calls are stably sorted by Start.
type Workload struct {
	Format  string   // "kineto", "nsys", "rocpd" or "chakra"
	Devices []string // names of the GPUs in the trace
	Names   []string // of kernels and calls; Names[0] is ""
	Streams []Stream
	Threads []Thread
	Ops     []Op
	Calls   []Call
	Steps   []Step
	Waits   []Wait // sorted by Op, without duplicates
	// Awaits is what synchronisations wait for besides the operation that their Event or
	// Stream names, sorted by Call.
	Awaits []Await
	// Behind has for each stream the others for whose earlier work its commands wait without a
	// call; nil if there are none. Waits has what that work was in the recording.
	Behind [][]int32
	// Events and EventWaits are the calls of which the trace tells which event they record or
	// wait for, in order of time; nil if one thread made all calls. Waits has what these waits
	// were for in the recording.
	Events     []Event
	EventWaits []EventWait
	// Least and Most are the waits that there are at least, and may be at most, where the
	// trace does not tell all; nil if they are those of Waits.
	Least, Most []Wait
	MostAwaits  []Await // instead of Awaits, nil if they are the same
	// Handovers are the links between threads that the recorded waits tell, sorted by Call.
	Handovers []Handover
	// Overheads is the time that the profiler spent on a thread, sorted by thread and
	// start, without overlaps.
	Overheads []Overhead
	Ranges    []Range // sorted by thread and start, the longer one first
	// Scheduled is set if the times are those of a schedule of the operations, because the
	// trace has none.
	Scheduled bool
	Rank      int32 // of the process in its distributed job, or None
	World     int32 // number of ranks of that job; 0: unknown
	Report    Report

	beside      []bool // by thread: its work belongs to no step; nil if there is none
	stepProcess uint64 // the process of the steps
}

// Span returns the time from the first recorded start to the last recorded end.
func (w *Workload) Span() time.Duration {
	var end time.Duration
	for i := range w.Ops {
		end = max(end, w.Ops[i].End())
	}
	for i := range w.Calls {
		end = max(end, w.Calls[i].End())
	}
	return end
}

package workload

import "strings"

// Function is what a function of the CUDA or HIP runtime or driver does for the work of
// streams.
type Function struct {
	role role
	call CallKind // of an ordinary call
	mark MarkKind // of a call that orders the work of streams
}

type role uint8

const (
	calls role = iota // launches work, waits for it, or takes time beside it
	marks             // orders the work of streams
	asks              // asks whether work is done, and does not wait
)

// MarkKind is the kind of a call that orders the work of streams without launching any.
type MarkKind uint8

// Kinds of marks.
const (
	EventRecord MarkKind = iota // an event after the work that was launched on a stream so far
	StreamWait                  // makes the next work on a stream wait for an event
)

// Classify returns what a function does by its name, with or without a version
// ("cudaLaunchKernel_v7000") and a suffix for per-thread streams ("cuMemcpyAsync_ptsz"). keep
// is false for functions that do nothing for the work of streams: the time of their calls
// remains as the gap between two others.
func Classify(name string) (f Function, keep bool) {
	name = trimSuffixes(name)
	for _, p := range [...]string{"cuda", "hip", "cu"} {
		stem, ok := strings.CutPrefix(name, p)
		if !ok {
			continue
		}
		switch stem {
		case "EventRecord", "EventRecordWithFlags":
			return Function{role: marks, mark: EventRecord}, true
		case "StreamWaitEvent":
			return Function{role: marks, mark: StreamWait}, true
		case "EventQuery", "StreamQuery":
			return Function{role: asks}, true
		}
		f.call, keep = classifyStem(stem)
		return f, keep
	}
	return Function{call: Other}, true
}

func trimSuffixes(name string) string {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "_ptsz"), "_ptds")
	if i := strings.LastIndex(name, "_v"); i > 0 && i+2 < len(name) && strings.Trim(name[i+2:], "0123456789") == "" {
		name = name[:i]
	}
	return strings.TrimSuffix(strings.TrimSuffix(name, "_ptsz"), "_ptds")
}

func classifyStem(s string) (CallKind, bool) {
	switch {
	case strings.HasPrefix(s, "GraphLaunch"):
		return GraphLaunch, true
	case strings.HasPrefix(s, "LaunchHostFunc"):
		return Other, true
	case strings.HasPrefix(s, "Launch"), strings.HasPrefix(s, "ExtLaunch"), strings.HasPrefix(s, "ModuleLaunch"), strings.HasPrefix(s, "ExtModuleLaunch"):
		return Launch, true
	case strings.HasPrefix(s, "Memcpy") && !strings.Contains(s, "Async"):
		return SyncCopy, true
	case strings.HasPrefix(s, "Memcpy"), strings.HasPrefix(s, "MemPrefetch"):
		return CopyCall, true
	case strings.HasPrefix(s, "Memset"):
		return MemsetCall, true
	case s == "StreamSynchronize", s == "EventSynchronize":
		return StreamSync, true
	case s == "DeviceSynchronize", s == "CtxSynchronize", s == "ThreadSynchronize":
		return DeviceSync, true
	case strings.HasPrefix(s, "Malloc"), strings.HasPrefix(s, "Free"), strings.HasPrefix(s, "MemAlloc"),
		strings.HasPrefix(s, "MemFree"), strings.HasPrefix(s, "HostAlloc"), strings.HasPrefix(s, "HostRegister"),
		strings.HasPrefix(s, "HostUnregister"), strings.HasPrefix(s, "MemHost"), strings.HasPrefix(s, "HostFree"),
		strings.HasPrefix(s, "HostMalloc"), strings.HasPrefix(s, "MemMap"), strings.HasPrefix(s, "MemUnmap"),
		strings.HasPrefix(s, "MemCreate"), strings.HasPrefix(s, "MemRelease"):
		return Memory, true
	}
	for _, p := range [...]string{
		"Get", "Peek", "StreamIsCapturing", "StreamGet", "StreamQuery", "StreamWait", "StreamCreate", "Event",
		"DeviceGet", "CtxGet", "CtxSet", "CtxPush", "CtxPop", "Occupancy", "Func", "Pointer", "Set", "Driver",
		"Device", "StreamBegin", "StreamEnd", "StreamUpdate", "GraphAdd", "GraphNode", "GraphGet", "Push", "Pop", "Kernel",
	} {
		if strings.HasPrefix(s, p) {
			return Other, false
		}
	}
	return Other, true
}

// ClassifyCopy returns the direction of a copy by the profiler's name for it, such
// as "Memcpy HtoD (Pageable -> Device)" or "CopyHostToDevice".
func ClassifyCopy(name string) OpKind {
	switch {
	case strings.Contains(name, "HtoD"), strings.Contains(name, "HtoA"), strings.Contains(name, "HostToDevice"):
		return CopyHtoD
	case strings.Contains(name, "DtoH"), strings.Contains(name, "AtoH"), strings.Contains(name, "DeviceToHost"):
		return CopyDtoH
	case strings.Contains(name, "DtoD"), strings.Contains(name, "DeviceToDevice"):
		return CopyDtoD
	case strings.Contains(name, "PtoP"), strings.Contains(name, "PeerToPeer"):
		return CopyPtoP
	}
	return CopyOther
}

// Collective is the kind of a kernel in which several processes (ranks) take part.
type Collective uint8

// Kinds of collectives.
const (
	NoCollective Collective = iota
	AllReduce
	AllGather
	ReduceScatter
	Broadcast
	Reduce
	SendRecv // also an exchange of all with all
	AnyCollective
)

// JoinsAll reports whether no rank can end before all have come, because each needs data
// of all.
func (c Collective) JoinsAll() bool { return c == AllReduce || c == AllGather || c == ReduceScatter }

// ClassifyCollective returns the kind of a kernel of NCCL or RCCL by its name, such
// as "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)".
func ClassifyCollective(name string) Collective {
	_, rest, ok := strings.Cut(name, "nccl")
	if !ok {
		return NoCollective
	}
	for _, k := range [...]struct {
		name string
		kind Collective
	}{
		{"AllReduce", AllReduce},
		{"AllGather", AllGather},
		{"ReduceScatter", ReduceScatter},
		{"Broadcast", Broadcast},
		{"SendRecv", SendRecv},
		{"AllToAll", SendRecv},
		{"Reduce", Reduce},
	} {
		if strings.Contains(rest, k.name) {
			return k.kind
		}
	}
	return AnyCollective
}

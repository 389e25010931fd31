package predict

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// linker finds the dependencies of each event in one walk over the trace.
type linker struct {
	p *Plan
	w *workload.Workload

	lastCall    []int32      // by thread: the call that ended last
	lastOp      []int32      // by stream: the operation that started last
	threadOp    []int32      // by thread: the operation that it launched last
	threadOps   [][]int32    // by thread: the same for each stream, the latest last
	nextCall    []int32      // by call: the next one of its thread, or none
	made        []int32      // by call: the operation that it launched, the last of several, or none
	usedStreams [][]int32    // by process: the streams that are set in used
	used        []bool       // by stream: a sync of its device may wait for it
	awaitedBy   []deviceWait // by stream
	process     map[uint64]int
	switches    map[[2]int32]switches // by pair of threads
	threadProc  []int
	streamProc  []int
	endedCall   []int32 // by process: the call that ended last
	endedOp     []int32 // by process: the operation that ended last
	byEnd       []int32 // operations by recorded end
	nextEnd     int
	looks       int              // see mostLooks
	done        []bool           // by operation: already evaluated
	graphEnds   []int32          // see workload.Workload.GraphEnds
	crossLags   []time.Duration  // of operations that waited for those of other streams
	median      [9]time.Duration // by kind of call: its duration
}

// deviceWait tells that a device sync waited for an operation. A later one of its thread
// need not, one of another thread does, if the two overlap or may in a replay.
type deviceWait struct {
	op, call int32
	times    int
}

// mostWaits bounds for how many syncs of other threads this is followed.
const mostWaits = 8

func newLinker(p *Plan) *linker {
	w := p.w
	l := &linker{
		p: p, w: w, process: map[uint64]int{}, switches: map[[2]int32]switches{},
		lastCall: nones(len(w.Threads)), threadOp: nones(len(w.Threads)), threadOps: make([][]int32, len(w.Threads)), lastOp: nones(len(w.Streams)),
		made: nones(len(w.Calls)), nextCall: nones(len(w.Calls)),
		used: make([]bool, len(w.Streams)), awaitedBy: make([]deviceWait, len(w.Streams)), byEnd: indices(len(w.Ops)), done: make([]bool, len(w.Ops)), graphEnds: w.GraphEnds(),
	}
	number := func(process uint64) int {
		n, ok := l.process[process]
		if !ok {
			n = len(l.process)
			l.process[process] = n
			l.endedCall = append(l.endedCall, none)
			l.endedOp = append(l.endedOp, none)
			l.usedStreams = append(l.usedStreams, nil)
		}
		return n
	}
	for _, t := range w.Threads {
		l.threadProc = append(l.threadProc, number(t.Process))
	}
	for _, s := range w.Streams {
		l.streamProc = append(l.streamProc, number(s.Process))
	}
	for _, i := range p.order {
		if call := w.Ops[i].Call; call != none {
			l.made[call] = i
		}
	}
	last := nones(len(w.Threads))
	for i := range w.Calls {
		t := w.Calls[i].Thread
		if last[t] != none {
			l.nextCall[last[t]] = int32(i)
		}
		last[t] = int32(i)
	}
	slices.SortFunc(l.byEnd, func(a, b int32) int {
		return cmp.Or(cmp.Compare(w.Ops[a].End(), w.Ops[b].End()), cmp.Compare(a, b))
	})
	l.medianDurations()
	l.countSwitches()
	return l
}

// medianDurations computes the median duration of each kind of call.
func (l *linker) medianDurations() {
	var durs [len(l.median)][]time.Duration
	for _, c := range l.w.Calls {
		durs[c.Kind] = append(durs[c.Kind], c.Dur)
	}
	for k, d := range durs {
		l.median[k] = quantile.Of(d, 0.5)
	}
	l.p.enqueue = l.median[workload.Launch]
}

func (l *linker) link() {
	l.p.walk(func(e event, i int32) {
		switch e {
		case callStart:
			l.callStart(i)
		case opStart:
			l.op(i)
		case callEnd:
			l.callEnd(i)
		}
	})
	l.p.crossLag = l.p.streamLag
	if len(l.crossLags) >= enoughLags {
		l.p.crossLag = quantile.Of(l.crossLags, 0.5)
	}
}

// ended advances over the operations that had ended by t.
func (l *linker) ended(t time.Duration) {
	for ; l.nextEnd < len(l.byEnd); l.nextEnd++ {
		i := l.byEnd[l.nextEnd]
		if l.w.Ops[i].End() > t {
			return
		}
		l.endedOp[l.streamProc[l.w.Ops[i].Stream]] = i
	}
}

// callStart links the start of a call to the previous call on its thread. After a
// long gap it also links it to the call of another thread that ended last: autograd's
// thread waits for the forward pass, and the main thread for autograd. A thread that goes
// on with calls of its own handed nothing over, and neither did one that works beside this one.
func (l *linker) callStart(i int32) {
	c := &l.w.Calls[i]
	cp := &l.p.calls[i]
	cp.prev, cp.cross, cp.block = l.lastCall[c.Thread], none, none
	if l.made[i] != none {
		l.noteLaunch(c.Thread, l.made[i])
	}
	from := time.Duration(0)
	if cp.prev != none {
		from = l.w.Calls[cp.prev].End()
	}
	if by := l.handover(i); by != none && l.w.Calls[by].End() > from {
		cp.cross, cp.awaited = by, c.Start-l.w.Calls[by].End() <= threadGap
		return
	}
	other := l.endedCall[l.threadProc[c.Thread]]
	if other != none && l.w.Calls[other].Thread != c.Thread && c.Start-from > threadGap && l.w.Calls[other].End() > from && l.quietAfter(other) && !l.besideEachOther(l.w.Calls[other].Thread, c.Thread) {
		cp.cross = other
	}
}

// handover returns the call of another thread after which call i came, as the recorded waits
// tell, or none.
func (l *linker) handover(i int32) int32 {
	all := l.w.Handovers
	n := sort.Search(len(all), func(k int) bool { return all[k].Call > i })
	if n == 0 || all[n-1].Call != i || l.w.Calls[all[n-1].After].End() > l.w.Calls[i].Start {
		return none
	}
	return all[n-1].After
}

// quietAfter reports whether the thread of call i made no call for a while after it.
func (l *linker) quietAfter(i int32) bool {
	next := l.nextCall[i]
	return next == none || l.w.Calls[next].Start-l.w.Calls[i].End() > threadGap
}

// op links an operation to the previous one on its stream and to its launch. If
// neither explains its start, it also links it to the operation of another stream
// that ended just before.
func (l *linker) op(i int32) {
	l.done[i] = true
	op := &l.w.Ops[i]
	l.ended(op.Start)
	o := &l.p.ops[i]
	*o = opPlan{prev: l.lastOp[op.Stream], cross: none, waits: none}
	proc := l.streamProc[op.Stream]
	l.follows(i)
	if !l.used[op.Stream] {
		l.used[op.Stream] = true
		l.usedStreams[proc] = append(l.usedStreams[proc], op.Stream)
	}
	told, seen := l.waitsOf(i, l.branchBefore(i, o.prev)), l.endedOp[proc]
	if l.p.certain {
		seen = none
	}
	if l.node(i) {
		return
	}
	o.constraint, o.cross = l.constraintOf(op, o.prev, [...]int32{told, seen})
	switch {
	case o.constraint != crossConstraint:
	case o.cross != told:
		l.p.guessed++
	default:
		l.crossLags = append(l.crossLags, op.Start-l.w.Ops[told].End())
	}
}

// waitsOf links an operation to those that the recorded waits of its stream name, and to the
// branch of a graph that it follows. It returns the one that ended last.
func (l *linker) waitsOf(i, branch int32) int32 {
	all, last := l.w.Waits, none
	add := func(on int32) {
		o := &l.p.ops[i]
		if o.waits == none {
			o.waits = int32(len(l.p.extra))
			l.p.extra = append(l.p.extra, 0)
		}
		l.p.extra[o.waits]++
		l.p.extra = append(l.p.extra, on)
		if last == none || l.w.Ops[on].End() > l.w.Ops[last].End() {
			last = on
		}
	}
	if branch != none {
		add(branch)
	}
	n := sort.Search(len(all), func(k int) bool { return all[k].Op >= i })
	for _, wait := range all[n:] {
		if wait.Op != i {
			break
		}
		if l.done[wait.On] { // else the clocks of host and GPU disagree
			add(wait.On)
		}
	}
	return last
}

// constraintOf finds what explains the start of an operation, and the operation of
// another stream if it is that: the first of cands that ended just before. The first of
// them is the one that a wait of the stream names.
func (l *linker) constraintOf(op *workload.Op, prev int32, cands [2]int32) (c constraint, cross int32) {
	switch {
	case op.Call == none && prev == none:
		return noConstraint, none
	case op.Call == none:
		return streamConstraint, none
	}
	call := l.w.Calls[op.Call].Start
	latency := op.Start - call
	free := call // time at which the stream was free and the launch was made
	if prev != none {
		end := l.w.Ops[prev].End()
		known := cands[0] != none && l.w.Ops[cands[0]].End() > end // by a recorded wait, later than prev
		gap := op.Start - end
		behind := gap <= l.p.streamLag*3/2 && latency > l.p.launchLag || latency > l.p.slowLaunch()
		if behind && !known && end > call && gap <= tightGap {
			return streamConstraint, none
		}
		free = max(free, end)
	}
	if latency <= l.p.slowLaunch() {
		return launchConstraint, none
	}
	for _, cand := range cands {
		if cand != none && l.done[cand] && l.w.Ops[cand].Stream != op.Stream {
			if end := l.w.Ops[cand].End(); end > free && op.Start-end <= crossGap {
				return crossConstraint, cand
			}
		}
	}
	if free > call {
		return streamConstraint, none
	}
	return launchConstraint, none
}

// callEnd links the end of a call to the operation that it waited for.
func (l *linker) callEnd(i int32) {
	c := &l.w.Calls[i]
	cp := &l.p.calls[i]
	l.ended(c.End())
	proc := l.threadProc[c.Thread]
	l.lastCall[c.Thread] = i
	l.endedCall[proc] = i
	cp.least = c.Dur
	if c.Kind == workload.StreamSync && c.Event == workload.Nothing {
		return
	}
	cand := l.last(l.awaited(i, proc), i)
	if own := l.copied(i); own != none {
		cp.block, cp.waited, cp.least = own, true, min(c.Dur, l.p.enqueue)
		return
	}
	inside := cand != none && l.w.Ops[cand].End() > c.Start
	switch {
	case c.Kind.IsSync() && inside:
		cp.block, cp.waited, cp.least = cand, true, min(c.Dur, syncReturn)
	case c.Kind.IsSync():
		l.idleSync(i, cand)
	case inside && l.blocked(c, cand):
		cp.block, cp.waited, cp.least = cand, true, min(c.Dur, l.median[c.Kind])
	}
	switch c.Kind {
	case workload.DeviceSync:
		l.deviceSync(i, proc)
	case workload.StreamSync:
		l.otherAwaits(i)
	}
}

// awaits returns the operations of other streams that the trace names for a synchronisation.
func (l *linker) awaits(i int32) []workload.Await {
	all := l.w.Awaits
	n := sort.Search(len(all), func(k int) bool { return all[k].Call >= i })
	all = all[n:]
	return all[:sort.Search(len(all), func(k int) bool { return all[k].Call > i })]
}

// last returns the operation that ended last of one and those that the trace names for call i.
func (l *linker) last(op, i int32) int32 {
	end := l.w.Calls[i].End()
	for _, a := range l.awaits(i) {
		if o := &l.w.Ops[a.On]; l.done[a.On] && o.End() <= end && (op == none || o.End() > l.w.Ops[op].End()) {
			op = a.On
		}
	}
	return op
}

// otherAwaits links the end of a synchronisation to all operations that the trace names.
func (l *linker) otherAwaits(i int32) {
	cp, c := &l.p.calls[i], &l.w.Calls[i]
	all := l.awaits(i)
	if cp.block == none || len(all) == 0 {
		return
	}
	from := int32(len(l.p.extra))
	named := c.Event
	if named < 0 && c.Stream != none {
		named = l.graphEnd(l.launchedBefore(l.lastOp[c.Stream], c.Start), c.End())
	}
	add := func(op int32) {
		if op >= 0 && op != cp.block && l.done[op] && l.w.Ops[op].End() <= c.End() {
			l.p.extra = append(l.p.extra, op)
		}
	}
	add(named)
	for _, a := range all {
		add(a.On)
	}
	l.p.devices[i] = extraOps{from, int32(len(l.p.extra))}
}

// awaited returns the operation for which call i may have waited: the one that the trace
// names, or the one that ended last before the call's end. None if there is none.
func (l *linker) awaited(i int32, proc int) int32 {
	c := &l.w.Calls[i]
	cand := l.endedOp[proc]
	switch {
	case c.Kind == workload.StreamSync && c.Event != none:
		cand = c.Event
	case c.Kind == workload.StreamSync && c.Stream != none:
		cand = l.graphEnd(l.launchedBefore(l.lastOp[c.Stream], c.Start), c.End())
	case c.Kind == workload.DeviceSync:
		cand = none
		for _, s := range l.usedStreams[proc] {
			op := l.launchedBefore(l.lastOp[s], c.Start)
			if op != none && l.w.Ops[op].End() <= c.End() && (cand == none || l.w.Ops[op].End() > l.w.Ops[cand].End()) {
				cand = op
			}
		}
	case c.Kind.IsSync() && cand != none && l.launchedBefore(cand, c.Start) != cand:
		cand = l.threadOp[c.Thread]
	case c.Kind.IsSync() && cand != none:
		cand = l.ownOf(i, cand)
	}
	if cand != none && (!l.done[cand] || l.w.Ops[cand].End() > c.End()) {
		return none
	}
	return cand
}

// Bounds of what a damaged trace can make the linker look at: the operations that other
// threads launched on a stream while one waited for it, and all of these and the streams of
// synchronisations of devices together.
const (
	mostLater = 4096
	mostLooks = 100_000_000
)

// launchedBefore returns the last operation of a stream, from op back, that was launched
// before t. A call does not wait for what other threads launch while it waits.
func (l *linker) launchedBefore(op int32, t time.Duration) int32 {
	for range mostLater {
		if l.looks++; op == none || l.looks > mostLooks || l.w.Ops[op].Call == none || l.p.launched(op) <= t {
			return op
		}
		op = l.p.ops[op].prev
	}
	return none
}

// copied returns the copy that call i made and waited for: one that a synchronous call
// made, or one to pageable memory. None if the copy had not ended when the call did.
func (l *linker) copied(i int32) int32 {
	c := &l.w.Calls[i]
	own := l.made[i]
	if !c.Kind.IsCopy() || own == none || !l.done[own] {
		return none
	}
	op := &l.w.Ops[own]
	waits := c.Kind == workload.SyncCopy && op.Kind == workload.CopyHtoD ||
		op.Kind == workload.CopyDtoH && (c.Kind == workload.SyncCopy || op.Pageable)
	if op.End() > c.End() || !waits {
		return none
	}
	return own
}

// idleSync links a synchronisation that did not wait to the work before it: it would
// wait if that work took longer. If the trace does not tell for what it waits, that is the
// work before the latest event, or the last work of the thread, or nothing.
func (l *linker) idleSync(i, cand int32) {
	c := &l.w.Calls[i]
	if c.Kind == workload.StreamSync && c.Stream == none && c.Event == none {
		if cand = c.Latest; cand == none {
			cand = l.threadOp[c.Thread]
		}
		if len(l.w.Streams) > 1 || c.Latest != none {
			if l.p.guessed++; l.p.certain {
				return
			}
		}
	}
	if cand != none && l.done[cand] && l.w.Ops[cand].End() <= c.Start {
		l.p.calls[i].block = cand
	}
}

// blocked reports whether a call that normally only enqueues work waited for the end
// of the operation cand: a copy of pageable memory, a full launch queue, an
// allocation that synchronises.
func (l *linker) blocked(c *workload.Call, cand int32) bool {
	if c.Dur < max(blockedCall, 4*l.median[c.Kind]) && !(c.Kind.IsCopy() && c.Dur >= blockedCall) {
		return false
	}
	return c.End()-l.w.Ops[cand].End() <= max(blockedCall, c.Dur/4)
}

// waitedOften reports whether device syncs have waited for the last operation of stream s, and
// one of a thread need not wait for it again.
func (l *linker) waitedOften(by *deviceWait, s, op, thread int32) bool {
	return op != none && op == l.lastOp[s] && by.times > 0 && by.op == op && (by.times > mostWaits || l.w.Calls[by.call].Thread == thread)
}

// deviceSync links a synchronisation of a device to the last operation of every
// stream that was used since the previous one.
func (l *linker) deviceSync(i int32, proc int) {
	cp := &l.p.calls[i]
	from := int32(len(l.p.extra))
	c := &l.w.Calls[i]
	left := l.usedStreams[proc][:0]
	for _, s := range l.usedStreams[proc] {
		op := l.launchedBefore(l.lastOp[s], c.Start)
		by := &l.awaitedBy[s]
		if l.waitedOften(by, s, op, c.Thread) || l.looks > mostLooks {
			l.used[s], by.times = false, 0
			continue
		}
		left = append(left, s)
		if op == none {
			continue
		}
		if by.times == 0 || by.op != op {
			*by = deviceWait{op: op, call: i}
		}
		by.times++
		if op != cp.block && l.w.Ops[op].End() <= c.End() {
			l.p.extra = append(l.p.extra, op)
		}
	}
	l.usedStreams[proc] = left
	if to := int32(len(l.p.extra)); to > from {
		l.p.devices[i] = extraOps{from, to}
	}
}

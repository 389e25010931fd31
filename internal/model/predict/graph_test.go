package predict

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// node adds a node of the graph with a correlation number.
func (r *recorder) node(corr uint32, stream int, start, end time.Duration) {
	r.op(workload.GraphKernel, corr, stream, start, end-start)
}

// A host that waits for a stream waits for the branch of a graph that ends last, not for the one
// that begins last, where both are recorded on the stream.
func TestWaitForBranches(t *testing.T) {
	r := record(t)
	g := r.launch(workload.GraphLaunch, 1, 0, 5*us)
	r.node(g, 7, 8*us, 18*us)
	r.node(g, 7, 19*us, 66*us)
	r.node(g, 7, 20*us, 30*us)
	st, _ := r.b.Stream(workload.Stream{ID: 7})
	r.b.AddAwaited(workload.Awaited{Corr: r.launch(workload.StreamSync, 1, 70*us, 2*us), Stream: st, From: workload.None})
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 75*us, 5*us), 7, 81*us, 100*us)
	exposed(t, r, 16*us)
}

// Work behind a graph on its stream comes after the branches that ran on other streams.
func TestWorkBehindBranches(t *testing.T) {
	r := record(t)
	g := r.launch(workload.GraphLaunch, 1, 0, 5*us)
	r.node(g, 7, 8*us, 18*us)
	r.node(g, 9, 19*us, 72*us)
	r.node(g, 7, 19*us, 25*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 70*us, 5*us), 7, 76*us, 100*us)
	exposed(t, r, 17*us)
}

// A node of a graph waits for nodes of its graph alone, and not for other work that ends just
// before it begins.
func TestNodesBesideOtherWork(t *testing.T) {
	for _, second := range []int{7, 9} { // the stream of the last node
		r := record(t)
		g := r.launch(workload.GraphLaunch, 1, 0, 5*us)
		r.op(workload.Kernel, r.launch(workload.Launch, 2, us, us), 8, 8*us, 5*us)
		r.op(workload.Kernel, r.launch(workload.Launch, 2, 3*us, us), 8, 14*us, 7*us)
		r.node(g, 7, 8*us, 10*us)
		r.node(g, 11, 11*us, 20*us)
		r.node(g, second, 22*us, 90*us)
		exposed(t, r, 10*us)
	}
}

// A thread that waits for an event which another thread recorded comes after that thread, also
// if that goes on with calls of its own.
func TestHandover(t *testing.T) {
	r := record(t)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 0, 5*us), 7, 6*us, 20*us)
	r.launch(workload.StreamSync, 1, 10*us, 19*us)
	one, _ := r.b.Thread(workload.Thread{ID: 1})
	two, _ := r.b.Thread(workload.Thread{ID: 2})
	own, _ := r.b.Stream(workload.Stream{ID: 7})
	other, _ := r.b.Stream(workload.Stream{ID: 8})
	event, wait := r.corr+1, r.corr+2
	r.corr += 2
	r.b.AddMark(workload.EventRecord, 30*us, event, one, here)
	r.b.AddEvent(0, event, own)
	r.b.AddMark(workload.StreamWait, 32*us, wait, two, here)
	r.b.AddAwaited(workload.Awaited{Corr: wait, Stream: other, Event: event, From: own})
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 31*us, 2*us), 7, 37*us, 5*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 34*us, 5*us), 8, 40*us, 100*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 36*us, 2*us), 7, 43*us, 5*us)
	exposed(t, r, 20*us)
}

// A thread that waited for another one, as an event that the other recorded just before tells,
// did nothing of its own meanwhile: it goes on at the same time if it is late itself.
func TestHandoverToALateThread(t *testing.T) {
	r := record(t)
	for i := range 4 { // the last one is that before the event
		at := time.Duration(14*i) * us
		r.op(workload.Kernel, r.launch(workload.Launch, 1, at, 4*us), 9, at+6*us, us)
	}
	r.op(workload.Kernel, r.launch(workload.Launch, 2, us, 4*us), 8, 7*us, 10*us)
	r.launch(workload.StreamSync, 2, 6*us, 13*us)
	one, _ := r.b.Thread(workload.Thread{ID: 1})
	two, _ := r.b.Thread(workload.Thread{ID: 2})
	own, _ := r.b.Stream(workload.Stream{ID: 9})
	other, _ := r.b.Stream(workload.Stream{ID: 8})
	event, wait := r.corr+1, r.corr+2
	r.corr += 2
	r.b.AddMark(workload.EventRecord, 47*us, event, one, here)
	r.b.AddEvent(0, event, own)
	r.b.AddMark(workload.StreamWait, 49*us, wait, two, here)
	r.b.AddAwaited(workload.Awaited{Corr: wait, Stream: other, Event: event, From: own})
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 51*us, 4*us), 8, 57*us, 10*us)
	// The synchronisation ends at 29 instead of 19 us, and the thread goes on at 51 us. The
	// last kernel waits 1 us for the one before the event, from 48 to 59 us, and takes 20 us.
	exposed(t, r, 13*us)
}

// Launches that take longer than others leave gaps between kernels that are not those of a
// busy stream: these disappear when kernels take longer.
func TestSlowLaunches(t *testing.T) {
	r := record(t)
	for i := range 40 {
		at := time.Duration(i) * 10 * us
		r.op(workload.Kernel, r.launch(workload.Launch, 1, at, 5*us), 7, at+6*us+time.Duration(i%2)*2*us, 7*us)
	}
	exposed(t, r, (6+40*17+39)*us-405*us)
}

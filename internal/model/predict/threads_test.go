package predict

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// exposed checks by how much a run becomes longer when each kernel takes 10 us more.
func exposed(t *testing.T, r *recorder, want time.Duration) {
	t.Helper()
	if got := run(t, r.plan(), at(delta10)); got.Exposed != want {
		t.Errorf("longer by %v, want %v", got.Exposed, want)
	}
}

// A synchronous copy ends its call, also if work that was launched before it on another
// stream starts in between.
func TestSynchronousCopyBesideOtherWork(t *testing.T) {
	r := record(t)
	r.op(workload.CopyDtoD, r.launch(workload.Launch, 1, 0, 5*us), 8, 6*us, 52*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 10*us, 5*us), 8, 59*us, 16*us)
	r.op(workload.CopyHtoD, r.launch(workload.SyncCopy, 1, 20*us, 40*us), 7, 27*us, 30*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 70*us, 5*us), 7, 76*us, 100*us)
	exposed(t, r, 20*us)
}

// A call that waits for an event before which there is no work does not wait for work that
// was launched on that stream later.
func TestEventBeforeAnyWork(t *testing.T) {
	r := record(t)
	th, _ := r.b.Thread(workload.Thread{ID: 1})
	st, _ := r.b.Stream(workload.Stream{ID: 8})
	r.corr++
	event := r.corr
	r.b.AddMark(workload.EventRecord, 0, event, th, here)
	r.b.AddEvent(0, event, st)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 5*us, 5*us), 8, 11*us, 5*us)
	r.b.AddAwaited(workload.Awaited{Corr: r.launch(workload.StreamSync, 1, 20*us, 2*us), Stream: workload.None, Event: event, From: workload.None})
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 30*us, 5*us), 7, 36*us, 100*us)
	exposed(t, r, 10*us)
}

// Streams whose work nearly overlaps, but starts when its launch lets it, do not wait for
// each other.
func TestStreamsThatDoNotOverlapByChance(t *testing.T) {
	r := record(t)
	for i := range 20 {
		from := time.Duration(i) * 100 * us
		r.op(workload.Kernel, r.launch(workload.Launch, 1, from, 4*us), 7, from+6*us, 6500*time.Nanosecond)
		r.op(workload.Kernel, r.launch(workload.Launch, 1, from+6*us, 4*us), 8, from+12*us, 5*us)
	}
	if p := r.plan(); len(p.w.Waits) != 0 {
		t.Errorf("%d waits: %v", len(p.w.Waits), p.w.Waits)
	}
}

// A device synchronisation waits for what was launched before it, not for what another
// thread launches in the meantime.
func TestDeviceSyncBesideAnotherThread(t *testing.T) {
	r := record(t)
	r.op(workload.CopyDtoD, r.launch(workload.Launch, 1, 0, 5*us), 7, 6*us, 94*us)
	r.launch(workload.DeviceSync, 1, 10*us, 93*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 50*us, 5*us), 8, 56*us, 46*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 110*us, 5*us), 7, 116*us, 100*us)
	exposed(t, r, 10*us)
}

// Two threads that wait for a device at the same time both wait for all of its work.
func TestDeviceSyncsOfTwoThreads(t *testing.T) {
	r := record(t)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 0, 5*us), 7, 6*us, 994*us)
	r.launch(workload.DeviceSync, 1, 10*us, 993*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 20*us, 5*us), 8, 26*us, 24*us)
	r.launch(workload.DeviceSync, 2, 60*us, 943*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 1010*us, 5*us), 8, 1016*us, 100*us)
	exposed(t, r, 20*us)
}

// A thread that goes on with calls of its own handed nothing over to one that pauses.
func TestThreadsThatDoNotWaitForEachOther(t *testing.T) {
	r := record(t)
	r.launch(workload.StreamSync, 1, 0, us)
	for i := range 4 {
		from := time.Duration(i) * 15 * us
		r.op(workload.Kernel, r.launch(workload.Launch, 2, from, 5*us), 8, from+6*us, us)
	}
	r.launch(workload.StreamSync, 2, 60*us, us)
	r.launch(workload.StreamSync, 2, 65*us, us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 63*us, 5*us), 7, 69*us, 100*us)
	exposed(t, r, 10*us)
}

// Threads that work at the same time hand nothing over, where one pauses by chance after the
// other, too.
func TestThreadsBesideEachOther(t *testing.T) {
	r := record(t)
	for i := range 4 {
		from := time.Duration(i) * 100 * us
		r.op(workload.Kernel, r.launch(workload.Launch, 1, from, 5*us), 7, from+6*us, 20*us)
		r.op(workload.Kernel, r.launch(workload.Launch, 2, from+2*us, 5*us), 8, from+8*us, 2*us)
	}
	// The second thread waits 10 us longer for its kernel, and then the first one pauses.
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 400*us, 5*us), 8, 406*us, 20*us)
	r.launch(workload.StreamSync, 2, 406*us, 23*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 450*us, 5*us), 7, 456*us, 10*us)
	exposed(t, r, 10*us)
}

// A thread waits for its own work, also if work of another thread ends just before it returns.
func TestSyncBesideWorkOfAnotherThread(t *testing.T) {
	r := record(t)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 0, 4*us), 7, 6*us, 50*us)
	for i := range 3 {
		r.op(workload.Kernel, r.launch(workload.Launch, 2, time.Duration(2+5*i)*us, 4*us), 8, time.Duration(8+16*i)*us, 15*us)
	}
	r.launch(workload.StreamSync, 1, 10*us, 48*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 70*us, 4*us), 7, 76*us, 100*us)
	exposed(t, r, 20*us)
}

// Where the trace does not tell for which event a stream waits, a wrong guess is within the
// range of the prediction.
func TestRangeOfWaits(t *testing.T) {
	simulate := func(delta time.Duration) *program {
		p := &program{delta: delta, streams: map[int]*simStream{}, out: record(t), tell: calls}
		for range 40 {
			p.mislead()
			p.launch(compute, 15*us)
			p.sync(compute)
		}
		return p
	}
	native, remote := simulate(0), simulate(18*us)
	truth := float64(native.host) / float64(remote.host)
	p, s := native.out.plan(), at(perf.NativeRTT+18*us)
	s.HostScale = 1 // no profiler widens the range
	r := run(t, p, s)
	st := p.Stats(0)
	g, err := p.Range(s, &r, &st)
	if err != nil || truth > r.Relative-0.03 || truth < g.Low-negligible || truth > g.High+negligible || len(g.Why) != 1 {
		t.Errorf("%v: %.3f in %+v, the simulation %.3f", err, r.Relative, g, truth)
	}
}

// A host that waits for the default stream waits for the work of blocking streams, too, also
// if that was over in the recording.
func TestSyncOfTheDefaultStream(t *testing.T) {
	r := record(t)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 0, 5*us), 7, 6*us, 10*us)
	for i := range 9 {
		r.op(workload.Kernel, r.launch(workload.Launch, 1, time.Duration(10+10*i)*us, 5*us), 13, time.Duration(17+10*i)*us, 9*us)
	}
	corr := r.launch(workload.StreamSync, 1, 150*us, 2*us)
	main, _ := r.b.Stream(workload.Stream{ID: 7})
	r.b.AddAwaited(workload.Awaited{Corr: corr, Stream: main, From: workload.None})
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 160*us, 5*us), 14, 166*us, 10*us)
	for id, typ := range map[uint64]workload.StreamType{7: workload.DefaultStream, 13: workload.BlockingStream, 14: workload.NonBlockingStream} {
		r.b.SetStreamType(workload.Stream{ID: id}, typ)
	}
	// Stream 13 works from 27 us, after the kernel of stream 7, to 206 us, with 1 us between two
	// kernels, and the host returns 2 us later instead of at 152 us. The last kernel adds 10 us.
	exposed(t, r, 66*us)
}

// mislead makes the next command of the compute stream wait for an event before the latest one.
func (p *program) mislead() {
	for range 9 {
		p.launch(13, 3*us)
	}
	p.mark(workload.EventRecord)
	first := p.stream(13).end
	p.launch(14, 2*us)
	p.mark(workload.EventRecord) // the wait seems to be for this one
	p.mark(workload.StreamWait)
	p.stream(compute).wait = first + simWait
}

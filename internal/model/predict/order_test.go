package predict

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// delayed is a thread that launches a kernel and waits for it until 18 us, or 28 us if a kernel
// takes 10 us more, and one that launches a kernel and does not wait.
func (r *recorder) delayed() {
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 0, 5*us), 5, 6*us, 10*us)
	st, _ := r.b.Stream(workload.Stream{ID: 5})
	r.b.AddAwaited(workload.Awaited{Corr: r.launch(workload.StreamSync, 1, 7*us, 11*us), Stream: st, From: workload.None})
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 8*us, 4*us), 6, 14*us, 4*us)
}

// inBoth checks by how much a run becomes longer when each kernel takes 10 us more, by arrival
// and in the recorded order, and that the range has both.
func inBoth(t *testing.T, r *recorder, arrival, recorded time.Duration) {
	t.Helper()
	p, s := r.plan(), at(delta10)
	s.HostScale = 1 // no profiler widens the range
	by := run(t, p, s)
	s.RecordedOrder = true
	in := run(t, p, s)
	if by.Exposed != arrival || in.Exposed != recorded {
		t.Errorf("longer by %v, want %v; in the recorded order by %v, want %v", by.Exposed, arrival, in.Exposed, recorded)
	}
	s.RecordedOrder = false
	st := p.Stats(0)
	g, err := p.Range(s, &by, &st)
	if err != nil || g.Low > min(by.Relative, in.Relative) || g.High < max(by.Relative, in.Relative) || len(g.Why) != 1 {
		t.Errorf("%v: the range is %+v, by arrival %.3f, in the recorded order %.3f", err, g, by.Relative, in.Relative)
	}
}

// Of two threads that launch work on one stream, one is late over the longer round trip, and
// its kernel comes behind that of the other.
func TestStreamOfTwoThreads(t *testing.T) {
	r := record(t)
	r.delayed()
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 20*us, 4*us), 9, 26*us, 10*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 25*us, 4*us), 9, 37*us, 100*us)
	// The long kernel runs from 31 to 141 us and the short one, launched at 30 us, from 142 to
	// 162 us. In the recorded order the short one runs from 36 to 56 us, the long one from 57
	// to 167 us.
	inBoth(t, r, 25*us, 30*us)
}

// A thread that is late waits for the device when another thread has launched work there.
func TestDeviceSyncBehindAnotherThread(t *testing.T) {
	r := record(t)
	r.delayed()
	r.launch(workload.DeviceSync, 1, 30*us, 2*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 35*us, 4*us), 8, 41*us, 100*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 40*us, 4*us), 9, 46*us, 10*us)
	// The long kernel runs from 41 to 151 us, the thread waits for it from 40 to 153 us and
	// launches the last one at 161 us, which runs from 167 to 187 us.
	inBoth(t, r, 46*us, 10*us)
}

// An event that a late thread records is behind what another thread launched on its stream.
func TestEventOfAnotherThreadsStream(t *testing.T) {
	r := record(t)
	r.delayed()
	one, _ := r.b.Thread(workload.Thread{ID: 1})
	own, _ := r.b.Stream(workload.Stream{ID: 8})
	other, _ := r.b.Stream(workload.Stream{ID: 9})
	event, wait := r.corr+1, r.corr+2
	r.corr += 2
	r.b.AddMark(workload.EventRecord, 21*us, event, one, here)
	r.b.AddEvent(0, event, other)
	r.b.AddMark(workload.StreamWait, 22*us, wait, one, here)
	r.b.AddAwaited(workload.Awaited{Corr: wait, Stream: own, Event: event, From: other})
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 13*us, 2*us), 9, 19*us, us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 23*us, 4*us), 8, 29*us, 10*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 25*us, 4*us), 9, 31*us, 100*us)
	for _, id := range []uint64{5, 6, 8, 9} {
		r.b.SetStreamType(workload.Stream{ID: id}, workload.NonBlockingStream)
	}
	// The event is recorded at 31 us, behind the long kernel from 31 to 141 us, so the kernel of
	// the late thread runs from 142 to 162 us.
	inBoth(t, r, 31*us, 10*us)
}

// Work of a late thread on the default stream comes behind that of another one on a blocking
// stream.
func TestDefaultStreamOfTwoThreads(t *testing.T) {
	r := record(t)
	r.delayed()
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 20*us, 4*us), 7, 26*us, 10*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 25*us, 4*us), 8, 38*us, 100*us)
	for id, typ := range map[uint64]workload.StreamType{5: workload.NonBlockingStream, 7: workload.DefaultStream, 8: workload.BlockingStream} {
		r.b.SetStreamType(workload.Stream{ID: id}, typ)
	}
	// The long kernel runs from 31 to 141 us, the short one from 142 to 162 us. In the recorded
	// order the short one runs from 36 to 56 us, the long one from 58 to 168 us.
	inBoth(t, r, 24*us, 30*us)
}

// A synchronisation does not wait for the work of another device that its thread does not use.
func TestDeviceSyncOfOneOfTwoDevices(t *testing.T) {
	r := record(t)
	r.delayed()
	st, _ := r.b.Stream(workload.Stream{ID: 8, Device: 1})
	kernel := func(at, dur time.Duration) {
		corr := r.launch(workload.Launch, 2, at, 4*us)
		r.b.AddOp(workload.Op{Kind: workload.Kernel, Corr: corr, Stream: st, Start: at + 6*us, Dur: dur}, here)
	}
	kernel(14*us, 50*us)
	r.launch(workload.DeviceSync, 1, 20*us, 2*us) // the other device is busy until 70 us
	r.launch(workload.DeviceSync, 1, 90*us, 2*us)
	kernel(92*us, 100*us) // comes before the synchronisation if that is 10 us later
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 102*us, 4*us), 9, 108*us, 10*us)
	exposed(t, r, 10*us)
}

// The critical path of a replay by arrival is without gaps and covers the run.
func TestCriticalPathByArrival(t *testing.T) {
	r := record(t)
	r.delayed()
	r.launch(workload.DeviceSync, 1, 30*us, 2*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 2, 35*us, 4*us), 8, 41*us, 100*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 40*us, 4*us), 9, 46*us, 10*us)
	c, err := r.plan().Critical(at(delta10))
	if err != nil {
		t.Fatal(err)
	}
	now, added := 8*us, time.Duration(0) // the thread that launches the long kernel begins
	for _, part := range c.Parts() {
		if part.From != now {
			t.Errorf("%+v follows %v", part, now)
		}
		now, added = part.To, added+part.Added
	}
	if now != 187*us || added != 20*us {
		t.Errorf("the path ends at %v with %v added, want 187us and two kernels' 20us", now, added)
	}
}

// A performance that grows at times is reached at all round trips that are tried up to the
// longest one.
func TestLongestRTTOfADip(t *testing.T) {
	rtt, ok, err := LongestRTT(perf.NativeRTT, 0.9, func(rtt time.Duration) (float64, error) {
		if delta := rtt - perf.NativeRTT; delta > 10*us && delta < 40*us || delta > time.Millisecond {
			return 0.8, nil
		}
		return 0.95, nil
	})
	if want := perf.NativeRTT + 10*us; err != nil || !ok || rtt != want {
		t.Errorf("%v, %v, %v; want %v", rtt, ok, err, want)
	}
}

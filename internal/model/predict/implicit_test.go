package predict

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// against compares predictions from the trace of a program with its simulation, with
// several added latencies. within is in points.
func against(t *testing.T, within float64, prepare func(p *program), simulate func(p *program)) {
	t.Helper()
	simulated := func(delta time.Duration) *program {
		p := &program{delta: delta, streams: map[int]*simStream{}, out: record(t), tell: calls}
		if simulate(p); prepare != nil {
			prepare(p)
		}
		return p
	}
	for _, delta := range []time.Duration{5 * us, 18 * us} {
		native := simulated(0)
		truth := 100 * float64(native.host) / float64(simulated(delta).host)
		got := 100 * run(t, native.out.plan(), at(perf.NativeRTT+delta)).Relative
		t.Logf("%v more: %.2f %%, the simulation %.2f %%", delta, got, truth)
		if math.Abs(got-truth) > within {
			t.Errorf("%v more: %.2f %%, the simulation %.2f %%", delta, got, truth)
		}
	}
}

// waitFor makes the next operation of a stream wait for all that others have, without a
// call.
func (p *program) waitFor(stream int, others ...int) {
	for _, o := range others {
		if end := p.stream(o).end; end > 0 {
			p.stream(stream).wait = max(p.stream(stream).wait, end+simWait)
		}
	}
}

// The legacy default stream and blocking streams wait for each other without a call. The
// stream that ends last without latency is not the one that does with it, so the prediction
// needs the waits that cost nothing in the recording.
func TestLegacyDefaultStream(t *testing.T) {
	const main, long, short = 7, 13, 14
	rounds := func(p *program) {
		for range 40 {
			for range 2 {
				p.waitFor(long, main)
				p.launch(long, 90*us)
			}
			for range 9 {
				p.waitFor(short, main)
				p.launch(short, 14*us)
			}
			p.waitFor(main, long, short)
			p.launch(main, 15*us)
		}
		p.sync(main)
	}
	t.Run("from the times", func(t *testing.T) { against(t, 0.5, nil, rounds) })
	t.Run("recorded", func(t *testing.T) {
		against(t, 0.5, func(p *program) {
			p.out.b.SetStreamType(workload.Stream{ID: main}, workload.DefaultStream)
			for _, id := range []uint64{long, short} {
				p.out.b.SetStreamType(workload.Stream{ID: id}, workload.BlockingStream)
			}
		}, rounds)
	})
}

// Streams that do not block each other keep their independence, also where the trace says
// so and the times leave it open.
func TestNonBlockingStreams(t *testing.T) {
	r := record(t)
	for i := range 20 {
		for _, stream := range []int{7, 13} {
			at := time.Duration(i) * 100 * us
			c := r.launch(workload.Launch, 1, at+time.Duration(stream)*us, 3*us)
			r.op(workload.Kernel, c, stream, at+time.Duration(10*(stream-7)+20)*us, 40*us)
		}
	}
	r.b.SetStreamType(workload.Stream{ID: 13}, workload.NonBlockingStream)
	if p := r.plan(); len(p.w.Waits) != 0 {
		t.Errorf("%d waits of streams that do not block each other", len(p.w.Waits))
	}
}

// A synchronous copy, and one to pageable memory, ends its call, however short both are.
func TestSynchronousCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		call     workload.CallKind
		pageable bool
	}{"synchronous": {workload.SyncCopy, false}, "pageable": {workload.CopyCall, true}} {
		t.Run(name, func(t *testing.T) {
			against(t, 0.3, nil, func(p *program) {
				for range 100 {
					p.launch(compute, 3*us)
					p.host += 30 * us
					p.copyBack(tc.call, tc.pageable)
				}
			})
		})
	}
}

// copyBack copies to the host and waits for it.
func (p *program) copyBack(kind workload.CallKind, pageable bool) {
	s, dur := p.stream(compute), 2*us+p.delta/2
	start := max(p.host+simLaunch, s.end+simNext)
	s.end = start + dur
	corr := p.out.launch(kind, 1, p.host, s.end+simReturn-p.host)
	st, _ := p.out.b.Stream(workload.Stream{ID: compute})
	p.out.b.AddOp(workload.Op{Kind: workload.CopyDtoH, Corr: corr, Stream: st, Start: start, Dur: dur, Bytes: 4, Pageable: pageable}, here)
	p.host = s.end + simReturn + simCompute
}

// A host that asks for the end of its work until it is told so waits for it.
func TestSpinningHost(t *testing.T) {
	against(t, 0.5, nil, func(p *program) {
		th, _ := p.out.b.Thread(workload.Thread{ID: 1})
		for range 100 {
			for range 4 {
				p.launch(compute, 15*us)
			}
			for done := false; !done; {
				done = p.host >= p.stream(compute).end
				p.out.b.AddQuery(workload.Call{Start: p.host, Dur: us, Thread: th}, here)
				p.host += us
			}
			p.host += simCompute
		}
	})
}

// Rows of queries for work of long ago, as an allocator makes them, are not waits.
func TestQueriesOfAnAllocator(t *testing.T) {
	r := record(t)
	th, _ := r.b.Thread(workload.Thread{ID: 1})
	for i := range 50 {
		at := time.Duration(i) * 20 * us
		c := r.launch(workload.Launch, 1, at, 4*us)
		r.op(workload.Kernel, c, 7, 6*us+time.Duration(i)*30*us, 30*us)
		for q := range 12 {
			r.b.AddQuery(workload.Call{Start: at + 5*us + time.Duration(q)*us, Dur: us, Thread: th}, here)
		}
	}
	if p := r.plan(); len(p.w.Calls) != 50 {
		t.Errorf("%d calls, want the launches alone", len(p.w.Calls))
	}
}

// Of the events that a thread recorded, the latest one on another stream is the one for
// which a wait can be. A program that copies ahead records one behind its kernels in
// between.
func TestWaitForAnEarlierEvent(t *testing.T) {
	const copies = 13
	against(t, 0.5, nil, func(p *program) {
		for range 20 {
			p.launch(copies, 100*us)
			p.mark(workload.EventRecord)
			copied := p.stream(copies).end
			for range 8 {
				p.launch(compute, 10*us)
			}
			p.mark(workload.EventRecord)
			p.mark(workload.StreamWait) // the next copy overwrites what these kernels read
			p.stream(copies).wait = p.stream(compute).end + simWait
			p.mark(workload.StreamWait)
			p.stream(compute).wait = copied + simWait
			p.launch(compute, 10*us)
		}
		p.sync(compute)
	})
}

// Kernels that the host launches as fast as the GPU ends them follow their launches, not
// each other.
func TestKernelsThatFollowTheirLaunches(t *testing.T) {
	against(t, 1, nil, func(p *program) {
		for range 100 {
			for range 4 {
				p.launch(compute, 6*us)
			}
			p.sync(compute)
		}
	})
}

package predict

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// program is a data-parallel training step, simulated independently of the
// predictor: one host thread, a stream for kernels and one for collectives, events
// between them, and a synchronisation at the end of each step.
type program struct {
	delta time.Duration // added to every operation

	host    time.Duration
	streams map[int]*simStream
	out     *recorder
	tell    telling
}

// telling is what the trace tells of events.
type telling int

const (
	nothing telling = iota // not even the calls
	calls                  // the calls, not their streams
	all
)

type simStream struct {
	end, wait time.Duration // end of the last operation; least start of the next by a wait
}

// Times of the simulated machine.
const (
	simCall    = 5 * us
	simLaunch  = 6 * us // launch until start
	simNext    = 1 * us // one operation to the next
	simWait    = 2 * us // an event until the start of what waits for it
	simReturn  = 3 * us
	simCompute = 3 * us // the host between two calls
)

func (p *program) stream(n int) *simStream {
	if p.streams[n] == nil {
		p.streams[n] = &simStream{}
	}
	return p.streams[n]
}

func (p *program) launch(stream int, dur time.Duration) {
	corr := p.out.launch(workload.Launch, 1, p.host, simCall)
	s := p.stream(stream)
	start := max(p.host+simLaunch, s.wait)
	if s.end > 0 {
		start = max(start, s.end+simNext)
	}
	s.end, s.wait = start+dur+p.delta, 0
	p.out.op(workload.Kernel, corr, stream, start, dur+p.delta)
	p.host += simCall + simCompute
}

func (p *program) mark(kind workload.MarkKind) uint32 {
	p.out.corr++
	th, _ := p.out.b.Thread(workload.Thread{ID: 1})
	if p.tell >= calls {
		p.out.b.AddMark(kind, p.host, p.out.corr, th, here)
	}
	p.host += us
	return p.out.corr
}

// order makes the next operation of one stream wait for all that another has.
func (p *program) order(stream, from int) {
	record := p.mark(workload.EventRecord)
	at := p.stream(from).end
	wait := p.mark(workload.StreamWait)
	p.stream(stream).wait = max(p.stream(stream).wait, at+simWait)
	if p.tell == all {
		st, _ := p.out.b.Stream(workload.Stream{ID: uint64(stream)})
		src, _ := p.out.b.Stream(workload.Stream{ID: uint64(from)})
		p.out.b.AddEvent(0, record, src)
		p.out.b.AddAwaited(workload.Awaited{Corr: wait, Stream: st, Event: record, From: workload.None})
	}
}

func (p *program) sync(stream int) {
	from, end := p.host, max(p.host+2*us, p.stream(stream).end+simReturn)
	p.out.launch(workload.StreamSync, 1, from, end-from)
	p.host = end + 10*us
}

const (
	compute, collectives = 7, 20
	buckets, bucket      = 10, 6
)

// run simulates training steps whose collectives, of length comm each, take a little
// longer than the kernels beside them without added latency, and less with it.
func (p *program) run(steps int, comm time.Duration) time.Duration {
	for range steps {
		for range 60 {
			p.launch(compute, 20*us)
		}
		for range buckets {
			for range bucket {
				p.launch(compute, 40*us)
			}
			p.order(collectives, compute)
			p.launch(collectives, comm)
		}
		p.order(compute, collectives)
		for range 20 {
			p.launch(compute, 10*us)
		}
		p.sync(compute)
	}
	return p.host
}

func simulate(t *testing.T, delta, comm time.Duration, tell telling) (*program, time.Duration) {
	p := &program{delta: delta, streams: map[int]*simStream{}, out: record(t), tell: tell}
	return p, p.run(5, comm)
}

// A wait of one stream for another that cost nothing in the recording costs when the
// work that it waits for takes longer. The calls alone suffice to find it.
func TestDataParallel(t *testing.T) {
	for _, comm := range []time.Duration{100 * us, 250 * us, 270 * us, 300 * us, 400 * us} {
		for _, more := range []time.Duration{5 * us, 18 * us} {
			_, native := simulate(t, 0, comm, nothing)
			_, longer := simulate(t, more, comm, nothing)
			truth := 100 * float64(native) / float64(longer)
			for _, tell := range []telling{calls, all} {
				p, _ := simulate(t, 0, comm, tell)
				s := at(perf.NativeRTT + more)
				got := 100 * run(t, p.out.plan(), s).Relative
				if math.Abs(got-truth) > 0.2 {
					t.Errorf("collectives of %v, %v more, %d: %.2f %%, the simulation %.2f %%", comm, more, tell, got, truth)
				}
			}
		}
	}
}

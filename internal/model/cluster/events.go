package cluster

import (
	"container/heap"
	"math"
	"slices"
)

// Queueing says what becomes of a job that fits nowhere when it arrives.
type Queueing uint8

// Ways of queueing.
const (
	Refuse   Queueing = iota // it is lost
	FIFO                     // it waits, and so do all behind it
	Backfill                 // it waits, and jobs behind it may start first
)

// stay is a job with the time of its arrival and the time that it needs, in hours. life
// is +Inf for a job that stays.
type stay struct {
	pod      *Pod
	at, life float64
	number   int // in the order of arrival
}

// running is a job that has its resources.
type running struct {
	stay
	until, start float64
	speed        float64 // relative to a server of its own
	where        []placed
}

// timeline runs jobs that come and go.
type timeline struct {
	pl    placer
	queue Queueing
	// speed of a job, 1 for that of a server of its own; nil: 1.
	speed func(p *Pod) float64
	// The figures are those of the time from..to, in hours.
	from, to float64

	now     float64
	arrived int
	leaving departures
	waiting waitingJobs
	held    struct{ gpu, cpu, work float64 } // now: thousandths of GPU and of cores; GPU times speed
	r       timelineResult
	sizes   sizeShares
}

// timelineResult has the sums of a timeline over its time.
type timelineResult struct {
	Hours          float64
	GPU, CPU, Work float64 // thousandths of GPU and of cores times hours; GPU times speed
	Asked, Given   float64 // GPUs of jobs that arrived, and of those that started
	PeakGPU        float64 // thousandths
	Jobs, Started  int
	Unstarted      int       // still waiting at the end
	Waits          []float64 // hours, of jobs that started
	WaitsMulti     []float64 // of those with several GPUs
	BySize         []SizeShare
}

// run takes jobs in the order of their arrival until next returns false.
func (t *timeline) run(next func() (stay, bool)) timelineResult {
	t.sizes = sizeShares{}
	for {
		s, ok := next()
		if !ok {
			break
		}
		t.leaveUntil(s.at)
		t.pass(s.at)
		if s.at > t.to {
			break
		}
		t.arrive(s)
	}
	t.leaveUntil(t.to)
	t.pass(t.to)
	t.r.Hours = t.to - t.from
	t.r.Unstarted = t.waiting.n
	for _, l := range t.waiting.order {
		for _, w := range l.jobs {
			t.count(w, false)
		}
	}
	t.r.BySize = t.sizes.list()
	return t.r
}

func (t *timeline) arrive(s stay) {
	t.arrived++
	s.number = t.arrived
	if s.at >= t.from {
		t.r.Jobs++
		t.r.Asked += float64(s.pod.total()) / Milli
	}
	if t.queue == FIFO && t.waiting.n > 0 {
		t.waiting.add(s)
		return
	}
	if t.start(s) {
		return
	}
	if t.queue == Refuse {
		t.count(s, false)
		return
	}
	t.waiting.add(s)
}

func (t *timeline) count(s stay, accepted bool) {
	if s.at >= t.from {
		t.sizes.count(s.pod, accepted)
	}
}

// start gives a job its resources.
func (t *timeline) start(s stay) bool {
	where, ok := placeJob(t.pl, s.pod, nil)
	if !ok {
		return false
	}
	j := running{stay: s, start: t.now, speed: 1, where: where}
	if t.speed != nil && s.pod.GPUs > 0 {
		j.speed = t.speed(s.pod)
	}
	j.until = t.now + s.life/j.speed
	heap.Push(&t.leaving, j)
	t.hold(&j, 1)
	if t.now >= t.from {
		t.r.PeakGPU = max(t.r.PeakGPU, t.held.gpu)
	}
	t.count(s, true)
	if s.at >= t.from {
		t.r.Started++
		t.r.Given += float64(s.pod.total()) / Milli
		t.r.Waits = append(t.r.Waits, t.now-s.at)
		if s.pod.GPUs*s.pod.copies() > 1 {
			t.r.WaitsMulti = append(t.r.WaitsMulti, t.now-s.at)
		}
	}
	return true
}

func (t *timeline) hold(j *running, sign float64) {
	gpu := sign * float64(j.pod.total())
	t.held.gpu += gpu
	t.held.work += gpu * j.speed
	t.held.cpu += sign * float64(int64(j.pod.copies())*j.pod.MilliCPU)
}

// pass adds what is held until then.
func (t *timeline) pass(until float64) {
	until = min(until, t.to)
	if d := until - max(t.now, t.from); d > 0 {
		t.r.PeakGPU = max(t.r.PeakGPU, t.held.gpu) // perhaps since before from
		t.r.GPU += d * t.held.gpu
		t.r.CPU += d * t.held.cpu
		t.r.Work += d * t.held.work
	}
	t.now = max(t.now, until)
}

// leaveUntil ends the jobs whose time is over, and starts those that wait for them.
func (t *timeline) leaveUntil(until float64) {
	for len(t.leaving) > 0 && t.leaving[0].until <= min(until, t.to) {
		at := t.leaving[0].until
		t.pass(at)
		for len(t.leaving) > 0 && t.leaving[0].until == at {
			j := heap.Pop(&t.leaving).(running)
			removeJob(t.pl, j.pod, j.where)
			t.hold(&j, -1)
		}
		if t.queue == FIFO {
			t.startFIFO()
		} else {
			t.startWaiting()
		}
	}
}

// maxBackfill bounds the shapes of waiting jobs that are considered when jobs end, as the
// schedulers of clusters do (Slurm's bf_max_job_test): a queue that grows without end would
// take a time in proportion to its square.
const maxBackfill = 1000

// startWaiting starts jobs that fit now, in the order of their arrival. Of each shape
// only the first is tried: if it does not fit, neither do the others, nor jobs that ask for
// more.
func (t *timeline) startWaiting() {
	var failed []*Pod
	for i, passed := 0, 0; i < len(t.waiting.order) && passed < maxBackfill; {
		s := t.waiting.order[i].jobs[0]
		if !slices.ContainsFunc(failed, s.pod.asksMore) {
			if t.start(s) {
				t.waiting.drop(i)
				continue
			}
			failed = append(failed, s.pod)
		}
		i, passed = i+1, passed+1
	}
}

// asksMore reports whether the pod cannot start where and when a smaller one could not.
func (p *Pod) asksMore(small *Pod) bool {
	return p.Models == small.Models && p.copies() == small.copies() && p.shared() == small.shared() &&
		p.MilliCPU >= small.MilliCPU && p.MemoryMiB >= small.MemoryMiB && p.GPUs >= small.GPUs && p.MilliGPU >= small.MilliGPU
}

// startFIFO starts jobs until the oldest does not fit.
func (t *timeline) startFIFO() {
	for len(t.waiting.order) > 0 && t.start(t.waiting.order[0].jobs[0]) {
		t.waiting.drop(0)
	}
}

// departures is a heap by the time of the end.
type departures []running

func (d departures) Len() int           { return len(d) }
func (d departures) Less(i, k int) bool { return d[i].until < d[k].until }
func (d departures) Swap(i, k int)      { d[i], d[k] = d[k], d[i] }

// Push implements heap.Interface.
func (d *departures) Push(x any) { *d = append(*d, x.(running)) }

// Pop implements heap.Interface.
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}

// quantile returns the value below which a share of the values lies; it sorts them.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return none
	}
	slices.Sort(values)
	return values[min(int(math.Ceil(q*float64(len(values))))-1, len(values)-1)]
}

func meanOf(values []float64) float64 {
	if len(values) == 0 {
		return none
	}
	var sum float64
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

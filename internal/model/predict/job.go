package predict

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Job is a distributed run: one plan for each rank, and the collectives that join
// them. A collective cannot proceed before all of its ranks have come to it, so a
// rank that is late makes the others wait. The recorded duration of a collective is
// therefore divided: until the last rank came it is waiting, which depends on the
// other ranks, and from then on it is work.
type Job struct {
	plans       []*Plan
	shift       []time.Duration // by rank: from its times to common ones
	collectives []collective
	place       []map[int32]place // by rank: of an operation in collectives
	ends        []end

	Matched, Unmatched int           // operations of collectives with and without their other members
	Spread             time.Duration // median distance of a collective's ends on two ranks
	// Guessed is set if the traces do not name the groups of processes and there are
	// several ways to divide the ranks into groups.
	Guessed bool
	// Doubts are why predictions may not hold for the run.
	Doubts []string

	apart int // collectives that cannot be ones, because a rank left before another came
}

// place is the place of an operation in Job.collectives.
type place struct{ collective, member int32 }

// end is the end of a member's operation, at a recorded common time.
type end struct {
	at time.Duration
	place
}

// NewJob joins the plans of the ranks of one run. It fails unless they share
// collectives. The predictions of the job are monotone in every cost, like a plan's.
func NewJob(plans []*Plan) (*Job, error) {
	j := &Job{plans: plans, place: make([]map[int32]place, len(plans))}
	j.collectives, j.Unmatched = match(plans)
	var err error
	if j.shift, j.Spread, err = align(plans, j.collectives); err != nil {
		return nil, err
	}
	for r := range plans {
		j.place[r] = map[int32]place{}
	}
	for n := range j.collectives {
		j.divide(int32(n))
	}
	slices.SortFunc(j.ends, func(a, b end) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.collective, b.collective), cmp.Compare(a.member, b.member))
	})
	j.Guessed = len(plans) > 2 && !namedGroups(plans)
	j.doubt()
	return j, nil
}

// divide tells waiting from work in collective n.
func (j *Job) divide(n int32) {
	ms := j.collectives[n].members
	came := func(m member) time.Duration { return j.plans[m.rank].opKey(m.op) + j.shift[m.rank] }
	slices.SortFunc(ms, func(a, b member) int { return cmp.Or(cmp.Compare(came(a), came(b)), cmp.Compare(a.rank, b.rank)) })
	if j.collectives[n].kind.JoinsAll() && j.leavesEarly(ms, came(ms[len(ms)-1])) {
		j.apart++
	}
	for i := range ms {
		m := &ms[i]
		op := &j.plans[m.rank].w.Ops[m.op]
		finish := op.End() + j.shift[m.rank]
		m.waits = i + 1
		for m.waits < len(ms) && came(ms[m.waits]) < finish {
			m.waits++
		}
		last := op.Start + j.shift[m.rank]
		for _, o := range ms[:m.waits] {
			last = max(last, j.plans[o.rank].w.Ops[o.op].Start+j.shift[o.rank])
		}
		m.work = finish - last
		p := place{n, int32(i)}
		j.place[m.rank][m.op] = p
		j.ends = append(j.ends, end{max(finish, came(*m)), p})
		j.Matched++
	}
}

// JobSetting holds the parameters of a replay of a job.
type JobSetting struct {
	Setting
	// Remote tells which ranks have a longer round trip; nil means all.
	Remote []bool
	// PeerRate is the rate between GPUs with disaggregation, relative to the recorded
	// one: 0.74 between two proxies (Figure 7). It holds for collectives with a remote
	// rank. 0 means 1.
	PeerRate float64
}

// remote reports whether a rank has a longer round trip.
func (s *JobSetting) remote(rank int32) bool { return s.Remote == nil || s.Remote[rank] }

// JobResult is the outcome of a replay of a job.
type JobResult struct {
	// Relative is the performance of the job: that of the slowest rank's training
	// steps, recorded and replayed.
	Relative float64
	Covered  Span
	Ranks    []RankResult
}

// RankResult is the outcome of one rank.
type RankResult struct {
	Result
	Remote      bool
	Collectives int
	// Work and Waiting are the parts of the time in collectives.
	Work, Waiting Span
}

// Run replays the job. If s.HostScale is less than 1, the recorded times of the result are
// those of a replay with that scale and no added latency.
func (j *Job) Run(s JobSetting) (JobResult, error) {
	if err := s.Validate(); err != nil {
		return JobResult{}, err
	}
	if s.Change != (Change{}) || s.WithoutOverhead {
		return JobResult{}, errors.New("predict: a job is replayed as it was recorded: no change")
	}
	if s.PeerRate < 0 || s.PeerRate > 1 {
		return JobResult{}, fmt.Errorf("predict: rate between GPUs %v: want above 0 and at most 1", s.PeerRate)
	}
	if s.Remote != nil && len(s.Remote) != len(j.plans) {
		return JobResult{}, fmt.Errorf("predict: %d ranks are remote or not, of %d", len(s.Remote), len(j.plans))
	}
	out := j.measure(s)
	if s.HostScale != 0 && s.HostScale != 1 {
		native := s
		native.RTT, native.PeerRate = s.NativeRTT, 0
		out.replaceRecorded(j.measure(native))
	}
	out.conclude()
	return out, nil
}

// measure replays the job and measures all durations.
func (j *Job) measure(s JobSetting) JobResult {
	run := j.start(s)
	run.replay()
	for r, p := range j.plans {
		run.ranks[r].Result = p.measureTimes(run.each[r], &run.costs[r], &run.times[r])
	}
	return JobResult{Ranks: run.ranks}
}

// replaceRecorded replaces the recorded times by those of the replay of native.
func (r *JobResult) replaceRecorded(native JobResult) {
	for i := range r.Ranks {
		own, by := &r.Ranks[i], &native.Ranks[i]
		own.replaceRecorded(by.Result)
		own.Work.Recorded, own.Waiting.Recorded = by.Work.Replayed, by.Waiting.Replayed
	}
}

// conclude computes the performance of the ranks and of the job.
func (r *JobResult) conclude() {
	for i := range r.Ranks {
		own := &r.Ranks[i]
		own.conclude()
		r.Covered.Recorded = max(r.Covered.Recorded, own.Covered.Recorded)
		r.Covered.Replayed = max(r.Covered.Replayed, own.Covered.Replayed)
	}
	r.Relative = r.Covered.Relative()
}

// jobRun is one replay.
type jobRun struct {
	j     *Job
	s     JobSetting
	each  []Setting
	costs []rttCosts
	times []times
	came  [][]time.Duration // by collective and member: when it came, with its cost, in common time
	ranks []RankResult
}

func (j *Job) start(s JobSetting) *jobRun {
	run := &jobRun{j: j, s: s, ranks: make([]RankResult, len(j.plans)), came: make([][]time.Duration, len(j.collectives))}
	for r, p := range j.plans {
		own := s.Setting
		if run.ranks[r].Remote = s.remote(int32(r)); !run.ranks[r].Remote {
			own.RTT = own.NativeRTT
		}
		run.each = append(run.each, own)
		run.costs = append(run.costs, p.costsAt(own))
		run.times = append(run.times, p.newTimes())
	}
	for n := range j.collectives {
		run.came[n] = slices.Repeat([]time.Duration{notYet}, len(j.collectives[n].members))
	}
	return run
}

// cursor is the next event of a rank.
type cursor struct {
	walker
	rank int32
	kind event
	i    int32
	at   time.Duration // common
}

// advance moves to the next event; false means that there is none.
func (c *cursor) advance(shift time.Duration) (ok bool) {
	c.kind, c.i, c.at, ok = c.next()
	c.at += shift
	return ok
}

// cursors is a heap of the ranks with events left, the earliest first.
type cursors []*cursor

func (c cursors) Len() int { return len(c) }
func (c cursors) Less(a, b int) bool {
	return c[a].at < c[b].at || c[a].at == c[b].at && c[a].rank < c[b].rank
}
func (c cursors) Swap(a, b int) { c[a], c[b] = c[b], c[a] }
func (c *cursors) Push(v any)   { *c = append(*c, v.(*cursor)) }
func (c *cursors) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// replay computes the times of all events of all ranks, in the order of their common
// recorded times. The end of a collective comes before all other events of its time.
func (run *jobRun) replay() {
	var ranks cursors
	for r, p := range run.j.plans {
		c := &cursor{walker: walker{p: p}, rank: int32(r)}
		if c.advance(run.j.shift[r]) {
			ranks = append(ranks, c)
		}
	}
	heap.Init(&ranks)
	ends := run.j.ends
	for len(ranks) > 0 || len(ends) > 0 {
		// An end at the time of its own start comes after it.
		if len(ends) > 0 && (len(ranks) == 0 || ends[0].at < ranks[0].at || ends[0].at == ranks[0].at && run.arrived(ends[0].place)) {
			run.finish(ends[0].place)
			ends = ends[1:]
			continue
		}
		c := ranks[0]
		run.j.plans[c.rank].step(&run.times[c.rank], &run.costs[c.rank], c.kind, c.i)
		if c.kind == opStart {
			run.arrive(c.rank, c.i)
		}
		if c.advance(run.j.shift[c.rank]) {
			heap.Fix(&ranks, 0)
		} else {
			heap.Pop(&ranks)
		}
	}
}

// arrived reports whether a member has come in this replay.
func (run *jobRun) arrived(p place) bool { return run.came[p.collective][p.member] != notYet }

// notYet is before all times.
const notYet time.Duration = math.MinInt64

// arrive notes when a member of a collective came. Its own added cost counts before
// the collective begins: its GPU is that much later.
func (run *jobRun) arrive(rank, i int32) {
	p, ok := run.j.place[rank][i]
	if ok {
		run.came[p.collective][p.member] = run.times[rank].opEnd[i] - run.costs[rank].duration(&run.j.plans[rank].w.Ops[i]) + run.j.shift[rank]
	}
}

// finish computes the end of a member: when all for which it waited have come and the
// work is done.
func (run *jobRun) finish(p place) {
	ms, came := run.j.collectives[p.collective].members, run.came[p.collective]
	m := &ms[p.member]
	last := slices.Max(came[:m.waits])
	work := m.work
	if run.s.PeerRate > 0 && slices.ContainsFunc(ms, func(o member) bool { return run.s.remote(o.rank) }) {
		work = time.Duration(float64(work) / run.s.PeerRate)
	}
	shift := run.j.shift[m.rank]
	run.times[m.rank].opEnd[m.op] = last + work - shift

	r := &run.ranks[m.rank]
	r.Collectives++
	r.Work.Recorded += m.work
	r.Work.Replayed += work
	r.Waiting.Recorded += max(run.j.plans[m.rank].w.Ops[m.op].Dur-m.work, 0)
	r.Waiting.Replayed += last - came[p.member]
}

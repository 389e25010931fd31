package cli

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// percentFlag is a part of a whole, given as 95% or 0.95. Zero means absent.
type percentFlag float64

func (p *percentFlag) String() string {
	if *p == 0 {
		return ""
	}
	return strconv.FormatFloat(100*float64(*p), 'g', -1, 64) + "%"
}

func (p *percentFlag) Type() string { return "percent" }

func (p *percentFlag) Set(s string) error {
	number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v > 0 && v <= 1) {
		return fmt.Errorf("want a performance above 0 and at most that of the recorded run, such as 95%% or 0.95")
	}
	*p = percentFlag(v)
	return nil
}

// limitJSON is the answer to --at-least.
type limitJSON struct {
	AtLeast float64 `json:"at_least"`
	RTT     int64   `json:"longest_rtt_ns"` // 0: not even the native one
	// Low is that of the lower end of the range; nil: the same.
	Low *int64 `json:"longest_rtt_low_ns,omitempty"`
}

// limit finds the longest round trip for --at-least, by the replay and by the lower end of
// its range.
func (o *predictOptions) limit(relative, lowest func(predict.Setting) (float64, error)) (*limitJSON, error) {
	if o.least == 0 {
		return nil, nil //nolint:nilnil // not asked for
	}
	rtt, err := o.longest(relative)
	if err != nil {
		return nil, err
	}
	out := &limitJSON{AtLeast: float64(o.least), RTT: rtt}
	low, err := o.longest(lowest)
	if low < rtt {
		out.Low = &low
	}
	return out, err
}

// longest returns the longest round trip in nanoseconds with the performance of --at-least.
func (o *predictOptions) longest(relative func(predict.Setting) (float64, error)) (int64, error) {
	rtt, _, err := predict.LongestRTT(o.setting.NativeRTT, float64(o.least), func(rtt time.Duration) (float64, error) {
		s := o.setting
		s.RTT = rtt
		return relative(s)
	})
	return rtt.Nanoseconds(), err
}

func (l *limitJSON) print(out io.Writer) {
	switch {
	case l == nil:
	case l.RTT == 0:
		fmt.Fprintf(out, "\n%.4g %% of native is not reached at any round trip.\n", 100*l.AtLeast)
	default:
		fmt.Fprintf(out, "\n%.4g %% of native or more, by the replay, up to a round trip of %v", 100*l.AtLeast, time.Duration(l.RTT))
		if l.Low != nil {
			fmt.Fprintf(out, "; at the lower end of the range up to %v", time.Duration(*l.Low))
		}
		fmt.Fprintln(out, ".")
	}
}

// predictMany prints a line for each of several traces of different runs.
func (o *predictOptions) predictMany(out, errOut io.Writer, files []string, rtts []time.Duration) error {
	all := make([]analysisJSON, 0, len(files))
	for _, file := range files {
		a, err := o.analyse(errOut, file, rtts)
		if err != nil {
			return ofFile(file, err)
		}
		all = append(all, a.json(o.top))
	}
	if o.form.structured() {
		return writeJSON(out, all)
	}
	return printText(out, false, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
		fmt.Fprintf(t, "TRACE\tGPU\tBUSY\tMEAN KERNEL\tAT %v\tLOW\tADDITIVE\tLONGEST RTT\tDOUBT\n", o.setting.RTT)
		for _, a := range all {
			device, longest := "-", "-"
			if len(a.Devices) > 0 {
				device = printable(a.Devices[0])
			}
			if a.Limit != nil {
				longest = time.Duration(a.Limit.RTT).String()
			}
			fmt.Fprintf(t, "%s\t%s\t%.0f %%\t%v\t%.2f %%\t%.2f %%\t%.2f %%\t%s\t%s\n", filepath.Base(a.File), device, 100*a.Utilisation,
				time.Duration(a.MeanKernel), 100*a.Prediction.Relative, 100*a.Range.Low, 100*a.Prediction.Additive, longest, cmp.Or(short(a.Doubt), "-"))
		}
		t.Flush()
	})
}

// rankJSON is one rank of a job.
type rankJSON struct {
	Name        string     `json:"name"`
	File        string     `json:"file"`
	Remote      bool       `json:"remote"`
	Prediction  resultJSON `json:"prediction"` // in the job
	Alone       float64    `json:"alone"`      // relative performance from its trace alone
	AloneLow    float64    `json:"alone_low"`
	High        float64    `json:"high"` // the upper ends of the ranges
	AloneHigh   float64    `json:"alone_high"`
	Collectives int        `json:"collectives"`
	Work        int64      `json:"collective_work_ns"`
	WorkLater   int64      `json:"collective_work_replayed_ns"`
	Waiting     int64      `json:"collective_waiting_ns"`
	WaitLater   int64      `json:"collective_waiting_replayed_ns"`
}

// jobJSON is the prediction of a distributed run.
type jobJSON struct {
	RTT       int64   `json:"rtt_ns"`
	NativeRTT int64   `json:"native_rtt_ns"`
	Costs     string  `json:"costs"`
	PeerRate  float64 `json:"peer_rate"`
	Relative  float64 `json:"relative"`
	Recorded  int64   `json:"recorded_ns"`
	Replayed  int64   `json:"replayed_ns"`
	Matched   int     `json:"matched_operations"`
	Unmatched int     `json:"unmatched_operations"`
	Spread    int64   `json:"spread_of_ends_ns"`
	Guessed   bool    `json:"guessed_groups,omitempty"`
	Doubt     string  `json:"doubt,omitempty"` // why the prediction may not hold
	// Range is that of Relative.
	Range   predict.Range  `json:"range"`
	Verdict string         `json:"verdict"`
	Ranks   []rankJSON     `json:"ranks"`
	Sweep   []jobPointJSON `json:"sweep"`
	Limit   *limitJSON     `json:"limit,omitempty"`
}

// jobPointJSON is a prediction of a job over one round trip.
type jobPointJSON struct {
	RTT      int64   `json:"rtt_ns"`
	Relative float64 `json:"relative"`
	Low      float64 `json:"low"` // the lower end of the range
}

// rankTrace is the trace of one rank.
type rankTrace struct {
	file, name string
	number     int32 // that the trace tells, or workload.None
	plan       *predict.Plan
}

// openRanks reads the traces and sorts them by the rank that they tell. If one does not
// tell it, all are numbered in the order given.
func (o *predictOptions) openRanks(errOut io.Writer, files []string) ([]rankTrace, error) {
	all := make([]rankTrace, 0, len(files))
	for _, file := range files {
		plan, err := o.open(errOut, file)
		if err != nil {
			return nil, ofFile(file, err)
		}
		if plan.Workload().Scheduled {
			return nil, usagef("%s has no times of the run, by which the ranks' collectives are matched: give the traces of the profiler", file)
		}
		all = append(all, rankTrace{file: file, number: plan.Workload().Rank, plan: plan})
	}
	unknown := slices.ContainsFunc(all, func(r rankTrace) bool { return r.number == workload.None })
	if !unknown {
		slices.SortStableFunc(all, func(a, b rankTrace) int { return cmp.Compare(a.number, b.number) })
		for i := range all[1:] {
			if all[i].number == all[i+1].number {
				return nil, fmt.Errorf("%s and %s are both of rank %d: give one trace for each rank of one run", all[i].file, all[i+1].file, all[i].number)
			}
		}
	}
	for i := range all {
		if unknown { // ranks that some tell could be the places of others
			all[i].number = int32(i)
		}
		all[i].name = strconv.Itoa(int(all[i].number))
	}
	return all, nil
}

// remotes parses --remote. nil means all ranks.
func (o *predictOptions) remotes(all []rankTrace) ([]bool, error) {
	if o.remote == "" {
		return nil, nil
	}
	out := make([]bool, len(all))
	for _, part := range strings.Split(o.remote, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.ParseInt(from, 10, 32)
		b, err2 := strconv.ParseInt(to, 10, 32)
		if err1 != nil || err2 != nil || a > b {
			return nil, usagef("--remote %q: want ranks such as 0,4-7", o.remote)
		}
		found := false
		for i, r := range all {
			if int64(r.number) >= a && int64(r.number) <= b {
				out[i], found = true, true
			}
		}
		if !found {
			return nil, usagef("--remote %q: no trace is of rank %s", o.remote, part)
		}
	}
	return out, nil
}

// predictRanks predicts a distributed run.
func (o *predictOptions) predictRanks(out, errOut io.Writer, files []string, rtts []time.Duration) error {
	all, err := o.openRanks(errOut, files)
	if err != nil {
		return err
	}
	s := predict.JobSetting{Setting: o.setting, PeerRate: o.peerRate}
	if s.Remote, err = o.remotes(all); err != nil {
		return err
	}
	plans := make([]*predict.Plan, len(all))
	for i := range all {
		plans[i] = all[i].plan
	}
	job, err := predict.NewJob(plans)
	if err != nil {
		return err
	}
	report, err := o.reportJob(job, all, s, rtts)
	if err != nil {
		return err
	}
	if o.form.structured() {
		return writeJSON(out, report)
	}
	return printText(out, false, report.print)
}

func (o *predictOptions) reportJob(job *predict.Job, all []rankTrace, s predict.JobSetting, rtts []time.Duration) (*jobJSON, error) {
	r, err := job.Run(s)
	if err != nil {
		return nil, err
	}
	span, err := job.Range(s, &r)
	if err != nil {
		return nil, err
	}
	out := &jobJSON{
		RTT: s.RTT.Nanoseconds(), NativeRTT: s.NativeRTT.Nanoseconds(), Costs: s.Costs.Name, PeerRate: s.PeerRate,
		Relative: r.Relative, Recorded: r.Covered.Recorded.Nanoseconds(), Replayed: r.Covered.Replayed.Nanoseconds(), Range: span.Range,
		Matched: job.Matched, Unmatched: job.Unmatched, Spread: job.Spread.Nanoseconds(), Guessed: job.Guessed, Doubt: strings.Join(job.Doubts, "; "),
	}
	if out.Verdict = "no verdict, because " + out.Doubt; out.Doubt == "" {
		out.Verdict, out.Doubt = span.Suitability()
	}
	for i := range r.Ranks {
		rank, err := reportRank(&all[i], s.Setting, &r.Ranks[i])
		if err != nil {
			return nil, err
		}
		rank.Prediction.Low, rank.High = span.Ranks[i].Low, span.Ranks[i].High
		out.Ranks = append(out.Ranks, rank)
	}
	return out, o.sweepJob(out, job, s, rtts)
}

// reportRank reports a rank of a job, beside the prediction from its trace alone.
func reportRank(of *rankTrace, s predict.Setting, r *predict.RankResult) (rankJSON, error) {
	if !r.Remote {
		s.RTT = s.NativeRTT
	}
	alone, err := of.plan.Run(s)
	if err != nil {
		return rankJSON{}, err
	}
	stats := of.plan.Stats(of.plan.InFlight(s))
	span, err := of.plan.Range(s, &alone, &stats)
	return rankJSON{
		Name: of.name, File: of.file, Remote: r.Remote, Prediction: resultOf(&r.Result), Alone: alone.Relative, AloneLow: span.Low, AloneHigh: span.High, Collectives: r.Collectives,
		Work: r.Work.Recorded.Nanoseconds(), WorkLater: r.Work.Replayed.Nanoseconds(), Waiting: r.Waiting.Recorded.Nanoseconds(), WaitLater: r.Waiting.Replayed.Nanoseconds(),
	}, err
}

// sweepJob predicts a job over other round trips, and finds the longest for --at-least.
func (o *predictOptions) sweepJob(out *jobJSON, job *predict.Job, s predict.JobSetting, rtts []time.Duration) error {
	for _, rtt := range rtts {
		s := s
		s.RTT = rtt
		r, err := job.Run(s)
		if err != nil {
			return err
		}
		span, err := job.Range(s, &r)
		if err != nil {
			return err
		}
		out.Sweep = append(out.Sweep, jobPointJSON{rtt.Nanoseconds(), r.Relative, span.Low})
	}
	at := func(own predict.Setting) (predict.JobSetting, predict.JobResult, error) {
		s := s
		s.RTT = own.RTT
		r, err := job.Run(s)
		return s, r, err
	}
	var err error
	out.Limit, err = o.limit(func(own predict.Setting) (float64, error) {
		_, r, err := at(own)
		return r.Relative, err
	}, func(own predict.Setting) (float64, error) {
		s, r, err := at(own)
		if err != nil {
			return 0, err
		}
		span, err := job.Range(s, &r)
		return span.Low, err
	})
	return err
}

func (j *jobJSON) print(out io.Writer) {
	fmt.Fprintf(out, "%d ranks, %d operations in collectives that they share; the ends of a collective differ by %v in the median\n", len(j.Ranks), j.Matched, time.Duration(j.Spread))
	if j.Unmatched > 0 {
		fmt.Fprintf(out, "note: %d operations in collectives whose other members were not found keep their recorded lengths\n", j.Unmatched)
	}
	if j.Guessed {
		fmt.Fprintln(out, "note: the traces do not name the groups of processes: the n-th stream with collectives of each rank is taken for one group of all ranks")
	}
	fmt.Fprintf(out, "\n%s of native at a round trip of %v: %s; as fast as its slowest rank, %v -> %v by the replay.\n",
		figure(j.Range.Low, j.Range.High, 1), time.Duration(j.RTT), j.Verdict, ms(time.Duration(j.Recorded)), ms(time.Duration(j.Replayed)))
	for _, why := range j.Range.Why {
		fmt.Fprintf(out, "range: %s.\n", why)
	}
	j.Limit.print(out)
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "\nRANK\tTRACE\tGPU\tIN THE JOB\tITS TRACE ALONE\tCOLLECTIVES\tWORK\tWAITING FOR OTHERS\n")
	for _, r := range j.Ranks {
		where := "local"
		if r.Remote {
			where = "remote"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\t%v -> %v\t%v -> %v\n", r.Name, short(filepath.Base(r.File)), where,
			figure(r.Prediction.Low, r.High, 2), figure(r.AloneLow, r.AloneHigh, 2), r.Collectives,
			ms(time.Duration(r.Work)), ms(time.Duration(r.WorkLater)), ms(time.Duration(r.Waiting)), ms(time.Duration(r.WaitLater)))
	}
	t.Flush()
	t = tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nround trip\tjob\tlower end\t\n")
	for _, p := range j.Sweep {
		fmt.Fprintf(t, "%v\t%.2f %%\t%.2f %%\t\n", time.Duration(p.RTT), 100*p.Relative, 100*p.Low)
	}
	t.Flush()
}

// ofFile names the file of an error that does not name it.
func ofFile(file string, err error) error {
	if strings.Contains(" "+err.Error(), " "+file+":") {
		return err
	}
	return fmt.Errorf("%s: %w", file, err)
}

package manager

import "slices"

const (
	// maxRetiredRuns bounds the earlier runs of a node that the manager remembers.
	maxRetiredRuns = 16
	// provenAlive is the number of reports in a row that prove that a run goes on.
	// One report may have been under way for long; a node sends the next one only
	// after the answer.
	provenAlive = 2
)

// runs tells the reports of a node's present run from late ones of earlier runs. A
// manager that has just begun may receive a late report first, or after the first
// report of the present run, and cannot tell which of the two is late. So it believes
// the run that came last, until one that it took for ended goes on reporting.
type runs struct {
	known    bool // false: there was no report
	instance string
	sequence uint64 // of the newest report
	retired  []retiredRun
}

type retiredRun struct {
	instance string
	sequence uint64
	// again counts its reports since the present run last reported.
	again int
}

// accepts records a report and reports whether it is the newest of the present run.
func (r *runs) accepts(instance string, sequence uint64) bool {
	if r.known && r.instance == instance {
		for i := range r.retired {
			r.retired[i].again = 0
		}
		if sequence <= r.sequence {
			return false
		}
		r.sequence = sequence
		return true
	}
	if at := slices.IndexFunc(r.retired, func(o retiredRun) bool { return o.instance == instance }); at >= 0 {
		o := &r.retired[at]
		if sequence <= o.sequence {
			return false
		}
		o.sequence = sequence
		if o.again++; o.again < provenAlive {
			return false
		}
		r.retired = slices.Delete(r.retired, at, at+1)
	}
	if r.known {
		r.retired = append(r.retired, retiredRun{instance: r.instance, sequence: r.sequence})
		r.retired = r.retired[max(0, len(r.retired)-maxRetiredRuns):]
	}
	r.known, r.instance, r.sequence = true, instance, sequence
	return true
}

package manager

import (
	"context"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	// maxRetiredRuns bounds the earlier runs of a node that the manager remembers.
	maxRetiredRuns = 16
	// provenAlive is the number of reports in a row that prove that a run goes on.
	// One report may have been under way for long; a node sends the next one only
	// after the answer.
	provenAlive = 2
	// twoProcesses reports of runs that had ended, none of them a late one, show that a second
	// process has the node's identity; oneProcess reports of the present run in a row, that it is
	// gone. toldOfTwoFor is the pause between two events about it.
	twoProcesses = 8
	oneProcess   = 64
	toldOfTwoFor = 10 * time.Minute
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
	// others counts new reports of retired runs, mine those of the present one since.
	others, mine int
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
		if r.mine++; r.mine >= oneProcess {
			r.others = 0
		}
		return true
	}
	if at := slices.IndexFunc(r.retired, func(o retiredRun) bool { return o.instance == instance }); at >= 0 {
		o := &r.retired[at]
		if sequence <= o.sequence {
			return false
		}
		o.sequence = sequence
		r.others, r.mine = r.others+1, 0
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

// tellOfTwoLocked makes an event if two processes report as one node, and returns the commit for
// which the answer to a report waits that does not count.
func (m *Manager) tellOfTwoLocked(ctx context.Context, node string) *commit {
	l, now := m.live[node], m.cfg.Now()
	if l.runs.others < twoProcesses || !l.told.two.IsZero() && now.Sub(l.told.two).Abs() < toldOfTwoFor {
		return m.last
	}
	c, err := m.updateLocked(ctx, func(t *tx) error {
		n := t.nodes.get(node)
		t.tell(l).two = now
		t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_NODE_CONNECTED),
			"two processes report as %s %s: stop the one that does not belong to it, and enrol it with a name and a state directory of its own; its reports do not count meanwhile",
			kindWord(n.Kind), node)
		return nil
	})
	if err != nil {
		return m.last // the next report tries again
	}
	return c
}

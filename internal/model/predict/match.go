package predict

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// collective is one call of a collective with all ranks that took part in it. The
// members are sorted by the time at which they came to it.
type collective struct {
	members []member
	kind    workload.Collective
}

// member is the operation by which one rank took part in a collective.
type member struct {
	rank, op int32
	// waits is the number of members, from the first, that had come before this
	// one's operation ended: it may have waited for them, and not for the others.
	waits int
	// work is the time from the latest start among those to the end.
	work time.Duration
}

// sequence identifies collectives that each rank makes in the same order: those of
// one group of processes in one training step. Without the names of groups, the
// n-th stream with collectives of each rank stands for one group.
type sequence struct {
	group  string
	stream int
	step   string
}

// sequences returns a rank's collectives in the order of their launches.
func sequences(p *Plan, named bool) map[sequence][]int32 {
	out := map[sequence][]int32{}
	streams := map[int32]int{}
	for _, i := range p.order {
		op := &p.w.Ops[i]
		if workload.ClassifyCollective(p.w.Names[op.Name]) == workload.NoCollective || !op.Kind.IsKernel() {
			continue
		}
		n, ok := streams[op.Stream]
		if !ok {
			n = len(streams)
			streams[op.Stream] = n
		}
		key := sequence{stream: n}
		if named {
			key = sequence{group: p.w.Names[op.Group]}
		}
		if s := p.StepOf(i); s >= 0 {
			key.step = p.w.Steps[s].Name
		}
		out[key] = append(out[key], i)
	}
	for _, ops := range out {
		slices.SortStableFunc(ops, func(a, b int32) int { return cmp.Compare(p.launched(a), p.launched(b)) })
	}
	return out
}

// launched returns the time of an operation's launch, or of its start if the launch
// is unknown.
func (p *Plan) launched(i int32) time.Duration {
	op := &p.w.Ops[i]
	if op.Call == none {
		return op.Start
	}
	return p.w.Calls[op.Call].Start
}

// namedGroups reports whether all collectives of all ranks name their groups.
func namedGroups(plans []*Plan) bool {
	for _, p := range plans {
		for i := range p.w.Ops {
			op := &p.w.Ops[i]
			if op.Group == 0 && op.Kind.IsKernel() && workload.ClassifyCollective(p.w.Names[op.Name]) != workload.NoCollective {
				return false
			}
		}
	}
	return true
}

// match finds the collectives in which several ranks took part, and counts the
// operations of those whose other members it does not find.
func match(plans []*Plan) (found []collective, unmatched int) {
	named := namedGroups(plans)
	of := make([]map[sequence][]int32, len(plans))
	keys := map[sequence]bool{}
	for r, p := range plans {
		of[r] = sequences(p, named)
		for k := range of[r] {
			keys[k] = true
		}
	}
	order := slices.SortedFunc(maps.Keys(keys), func(a, b sequence) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.stream, b.stream), cmp.Compare(a.step, b.step))
	})
	for _, k := range order {
		made, ok := matchSequence(plans, of, k, named)
		if !ok {
			for _, s := range of {
				unmatched += len(s[k])
			}
		}
		found = append(found, made...)
	}
	return found, unmatched
}

// matchSequence joins the n-th operations of the ranks that have a sequence. It fails
// if their lengths or kinds differ, because then a part was not recorded, and where
// the members of a sequence are a guess: an exchange between two ranks without the
// name of its group.
func matchSequence(plans []*Plan, of []map[sequence][]int32, k sequence, named bool) ([]collective, bool) {
	var ranks []int32
	for r := range of {
		if len(of[r][k]) > 0 {
			ranks = append(ranks, int32(r))
		}
	}
	first := of[ranks[0]][k]
	out := make([]collective, len(first))
	for _, r := range ranks {
		ops := of[r][k]
		if len(ops) != len(first) {
			return nil, false
		}
		for n, op := range ops {
			w := plans[r].w
			kind := workload.ClassifyCollective(w.Names[w.Ops[op].Name])
			if kind == workload.SendRecv && !named || out[n].kind != workload.NoCollective && kind != out[n].kind {
				return nil, false
			}
			out[n].kind = kind
			out[n].members = append(out[n].members, member{rank: r, op: op})
		}
	}
	return out, len(ranks) > 1
}

// errNoCollectives is returned for ranks that share no collective.
var errNoCollectives = errors.New("the traces share no collective that ends on all ranks at once (kernels of NCCL or RCCL, but for broadcasts and reductions to one rank; as many in each training step): are they ranks of one run, recorded in the same steps?")

// align returns what to add to the times of each rank so that collectives end at the
// same time on all of them, in the median: recordings begin at different times and
// clocks disagree, but a collective ends nowhere before all have their data. spread
// is the median distance of ends that remains.
func align(plans []*Plan, all []collective) (shift []time.Duration, spread time.Duration, err error) {
	type pair struct{ a, b int32 }
	apart := map[pair][]time.Duration{}
	for _, c := range all {
		if c.kind == workload.Broadcast || c.kind == workload.Reduce {
			continue // one side ends before the other
		}
		for i, m := range c.members {
			for _, o := range c.members[:i] {
				apart[pair{o.rank, m.rank}] = append(apart[pair{o.rank, m.rank}], plans[o.rank].w.Ops[o.op].End()-plans[m.rank].w.Ops[m.op].End())
			}
		}
	}
	shift = make([]time.Duration, len(plans))
	known := make([]bool, len(plans))
	known[0] = true
	var left []time.Duration
	for reach := []int32{0}; len(reach) > 0; reach = reach[1:] {
		a := reach[0]
		for b := range int32(len(plans)) {
			diffs, sign := apart[pair{a, b}], time.Duration(1)
			if b < a {
				diffs, sign = apart[pair{b, a}], -1
			}
			if known[b] || len(diffs) == 0 {
				continue
			}
			mid := quantile.Of(diffs, 0.5)
			shift[b], known[b] = shift[a]+sign*mid, true
			reach = append(reach, b)
			for _, d := range diffs {
				left = append(left, (d - mid).Abs())
			}
		}
	}
	if i := slices.Index(known, false); i >= 0 {
		if len(apart) == 0 {
			return nil, 0, fmt.Errorf("predict: %w", errNoCollectives)
		}
		return nil, 0, fmt.Errorf("predict: trace %d shares no collective with the others: is it a rank of the same run, recorded in the same steps?", i+1)
	}
	return shift, quantile.Of(left, 0.5), nil
}

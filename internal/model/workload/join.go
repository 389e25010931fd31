package workload

import (
	"cmp"
	"slices"
	"sort"
)

// key identifies a call by process and correlation number.
type key struct {
	process uint64
	corr    uint32
	call    int32
}

// maxNested is more than the number of driver calls that any runtime call makes.
// The first one of a process, which loads all modules, makes some hundreds.
const maxNested = 1000

// flatten makes the calls of each thread consecutive. It merges a call inside
// another (a driver call that a runtime call made) into the outer one and trims
// overlaps by rounding. It returns the keys of all calls; the key of a merged call
// leads to its outer call.
func (w *Workload) flatten() []key {
	last := slices.Repeat([]int32{None}, len(w.Threads)) // the thread's latest kept call
	keys := make([]key, 0, len(w.Calls))
	kept := w.Calls[:0]
	merged, most := 0, 0
	nested := make([]int, len(w.Threads)) // calls merged into the thread's latest kept call
	for _, c := range w.Calls {
		process := w.Threads[c.Thread].Process
		if l := last[c.Thread]; l != None {
			outer := &kept[l]
			if c.End() <= outer.End() && c.Start < outer.End() {
				if outer.Kind == Other || outer.Kind == Memory {
					outer.Kind = c.Kind
				}
				keys = append(keys, key{process, c.Corr, l})
				merged++
				nested[c.Thread]++
				most = max(most, nested[c.Thread])
				continue
			}
			outer.Dur = min(outer.Dur, c.Start-outer.Start)
		}
		i := int32(len(kept))
		last[c.Thread], nested[c.Thread] = i, 0
		keys = append(keys, key{process, c.Corr, i})
		kept = append(kept, c)
	}
	w.Calls = kept
	if merged > 0 {
		w.Report.Note("%d calls inside other calls were merged into them", merged)
	}
	if most > maxNested {
		w.Report.Doubt("one call contains %d others: its duration is wrong", most)
	}
	slices.SortStableFunc(keys, func(x, y key) int {
		return cmp.Or(cmp.Compare(x.process, y.process), cmp.Compare(x.corr, y.corr), cmp.Compare(x.call, y.call))
	})
	return keys
}

// find returns the calls with this correlation.
func find(keys []key, process uint64, corr uint32) []key {
	at := func(k key) int { return cmp.Or(cmp.Compare(k.process, process), cmp.Compare(k.corr, corr)) }
	i := sort.Search(len(keys), func(i int) bool { return at(keys[i]) >= 0 })
	keys = keys[i:]
	return keys[:sort.Search(len(keys), func(i int) bool { return at(keys[i]) > 0 })]
}

// join finds the call that launched each operation: of several calls with the
// operation's correlation number, the latest that begins before the operation.
func (w *Workload) join(keys []key) {
	shared := 0
	launched := make([]bool, len(w.Calls))
	for i := range w.Ops {
		op := &w.Ops[i]
		if op.Corr == 0 {
			w.Report.Orphans++
			w.Report.Uncorrelated++
			continue
		}
		found := find(keys, w.Streams[op.Stream].Process, op.Corr)
		if len(found) == 0 {
			w.Report.Orphans++
			continue
		}
		for _, k := range found {
			launched[k.call] = true
		}
		if w.severalOwners(found) {
			shared++
		}
		n := sort.Search(len(found), func(i int) bool { return w.Calls[found[i].call].Start > op.Start })
		if n == 0 {
			w.Report.Skewed++
			n = 1
		}
		op.Call = found[n-1].call
		c := &w.Calls[op.Call]
		if c.Kind == GraphLaunch && op.Kind == Kernel {
			op.Kind = GraphKernel
		}
	}
	if shared > 0 {
		w.Report.Doubt("%d of %d operations have a correlation number that several processes used, so their launches are guesses: use one trace for each process (rank)", shared, len(w.Ops))
	}
	w.checkLost(launched)
}

// severalOwners reports whether the calls belong to more than one process.
func (w *Workload) severalOwners(found []key) bool {
	owner := func(k key) uint64 { return w.Threads[w.Calls[k.call].Thread].Owner }
	return slices.ContainsFunc(found[1:], func(k key) bool { return owner(k) != owner(found[0]) })
}

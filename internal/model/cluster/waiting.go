package cluster

import (
	"cmp"
	"slices"
)

// waitingJobs are those of each shape in the order of their arrival.
type waitingJobs struct {
	n     int
	lines map[waitingShape]*waitingLine
	// order has the lines in the order of the arrival of their first jobs.
	order []*waitingLine
}

type waitingShape struct {
	shape
	copies int
}

type waitingLine struct {
	key  waitingShape
	jobs []stay
}

func (w *waitingJobs) add(s stay) {
	if w.lines == nil {
		w.lines = map[waitingShape]*waitingLine{}
	}
	w.n++
	k := waitingShape{s.pod.shape(), s.pod.copies()}
	if l := w.lines[k]; l != nil {
		l.jobs = append(l.jobs, s)
		return
	}
	l := &waitingLine{key: k, jobs: []stay{s}}
	w.lines[k] = l
	w.insert(l)
}

// drop removes the first job of line i of the order.
func (w *waitingJobs) drop(i int) {
	w.n--
	l := w.order[i]
	copy(w.order[1:], w.order[:i]) // most lines that start are near the front
	w.order = w.order[1:]
	if l.jobs = l.jobs[1:]; len(l.jobs) == 0 {
		delete(w.lines, l.key)
		return
	}
	w.insert(l)
}

// insert puts a line behind those whose first jobs came no later.
func (w *waitingJobs) insert(l *waitingLine) {
	i, _ := slices.BinarySearchFunc(w.order, l, func(a, b *waitingLine) int {
		return cmp.Compare(a.jobs[0].number, b.jobs[0].number)
	})
	w.order = slices.Insert(w.order, i, l)
}

package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// launches adds a launch on a thread, and its kernel on a stream, at each time.
func launches(b *Builder, th, st int32, corr uint32, at ...time.Duration) {
	for i, t := range at {
		c := corr + uint32(i)
		b.AddCall(Call{Start: t, Dur: us, Corr: c, Thread: th, Kind: Launch, Name: b.Name([]byte("cudaLaunchKernel"))}, nowhere)
		b.AddOp(Op{Start: t + 2*us, Dur: us, Corr: c, Stream: st}, nowhere)
	}
}

func stepNames(w *Workload) (names []string) {
	for _, s := range w.Steps {
		names = append(names, s.Name)
	}
	return names
}

// Where several threads mark steps, those of the one that launched most work count, and the
// work of the others belongs to none.
func TestStepsOfSeveralThreads(t *testing.T) {
	for _, tc := range []struct {
		name          string
		other         Thread
		marks, calls  bool // the other thread marks steps of the same names, and launches work
		beside, doubt bool
	}{
		{"another thread", Thread{Process: 1, ID: 2}, true, true, true, true},
		{"a thread that launches the backward pass", Thread{Process: 1, ID: 2}, false, true, false, false},
		{"names repeated for the GPU", Thread{Process: 1, ID: 2}, true, false, false, false},
		{"another process", Thread{Process: 2, ID: 2}, true, true, true, true},
		{"another process without steps", Thread{Process: 2, ID: 2}, false, true, true, true},
		{"another process of a trace that names it otherwise", Thread{Owner: 2, ID: 2}, true, true, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := NewBuilder("kineto")
			own, _ := b.Thread(Thread{Process: 1, ID: 1})
			other, _ := b.Thread(tc.other)
			st, _ := b.Stream(Stream{Process: 1, ID: 7})
			second, _ := b.Stream(Stream{Process: tc.other.Process, Device: 1, ID: 7})
			launches(b, own, st, 1, 10*us, 20*us, 30*us, 40*us)
			if tc.calls {
				launches(b, other, second, 100, 25*us, 35*us, 45*us)
			}
			for i, name := range []string{"step", "step"} {
				b.AddStep(Step{Name: name, Thread: own, Start: time.Duration(20*i) * us, Dur: 20 * us}, nowhere)
				if tc.marks {
					b.AddStep(Step{Name: name, Thread: other, Start: time.Duration(1+20*i) * us, Dur: 25 * us}, nowhere)
				}
			}
			w, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			if len(w.Steps) != 2 || w.Steps[1].Dur != 20*us {
				t.Errorf("steps %v", w.Steps)
			}
			for i := range w.Ops {
				op := &w.Ops[i]
				if got, want := w.Beside(op), tc.beside && op.Stream == second; got != want {
					t.Errorf("operation %d: beside %v, want %v", i, got, want)
				}
			}
			if warn := w.Report.Warning(); (warn != "") != tc.doubt {
				t.Errorf("warning %q", warn)
			}
		})
	}
}

// A process that only controls others may mark their steps.
func TestStepsOfAController(t *testing.T) {
	b := NewBuilder("nsys")
	own, _ := b.Thread(Thread{Process: 1, ID: 1})
	worker, _ := b.Thread(Thread{Process: 2, ID: 2})
	st, _ := b.Stream(Stream{Process: 2, ID: 7})
	launches(b, worker, st, 1, 10*us, 20*us)
	b.AddStep(Step{Name: "step", Thread: own, Start: 0, Dur: 20 * us}, nowhere)
	w, err := b.Build()
	if err != nil || len(w.Steps) != 1 || w.Beside(&w.Ops[0]) {
		t.Errorf("%v, steps %v", err, stepNames(w))
	}
}

// A mark that a profiler writes twice is one step, another of the same name is not.
func TestStepsWithOneName(t *testing.T) {
	b, st, th := build()
	launches(b, th, st, 1, 0, 20*us)
	for _, s := range []Step{{"step", th, 0, 9 * us}, {"step", th, us, 7 * us}, {"step", th, 9 * us, 9 * us}} {
		b.AddStep(s, nowhere)
	}
	w, err := b.Build()
	if err != nil || len(w.Steps) != 2 || w.Steps[1].Start != 9*us {
		t.Errorf("%v, steps %+v", err, w.Steps)
	}
}

// Operations that a trace has twice are dropped and counted.
func TestDoubledOperations(t *testing.T) {
	b, st, th := build()
	for range 2 {
		launches(b, th, st, 1, 0, 20*us, 40*us)
	}
	b.AddCall(Call{Start: 60 * us, Dur: us, Corr: 9, Thread: th, Kind: GraphLaunch}, nowhere)
	for range 2 { // branches of a graph
		b.AddOp(Op{Start: 70 * us, Dur: us, Corr: 9, Stream: st}, nowhere)
	}
	w, err := b.Build()
	if err != nil || len(w.Ops) != 5 || w.Report.Dropped() != 3 || !strings.Contains(w.Report.Warning(), "twice") {
		t.Errorf("%v, %d operations, %s", err, len(w.Ops), w.Report.Warning())
	}
}

// Graphs without their nodes and several processes are doubts.
func TestDoubtsOfGraphsAndProcesses(t *testing.T) {
	b, st, th := build()
	launches(b, th, st, 1, 0)
	b.AddOp(Op{Start: 70 * us, Dur: us, Corr: 1, Stream: st, Kind: WholeGraph}, nowhere)
	other, _ := b.Thread(Thread{Process: 77, ID: 1})
	far, _ := b.Stream(Stream{Process: 77, ID: 7})
	launches(b, other, far, 1, 0)
	w, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 CUDA graphs were recorded as a whole", "2 processes launched work"} {
		if !slices.ContainsFunc(w.Report.Doubts, func(d string) bool { return strings.Contains(d, want) }) {
			t.Errorf("no %q in %q", want, w.Report.Doubts)
		}
	}
}

package predict

import (
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// The parts of a critical path follow each other without a gap from the first event to
// the last, and what the round trip added to them is what the run became longer by where
// the path is the same at both round trips.
func TestCriticalPath(t *testing.T) {
	for name, plan := range map[string]*Plan{"bound by the GPU": gpuBound(t), "bound by the host": hostBound(t)} {
		c, err := plan.Critical(at(delta10))
		if err != nil {
			t.Fatal(err)
		}
		whole := run(t, plan, at(delta10)).Whole
		var added time.Duration
		parts := c.Parts()
		for i, part := range parts {
			added += part.Added
			if i > 0 && part.From != parts[i-1].To {
				t.Errorf("%s: part %d begins at %v, the one before ends at %v", name, i, part.From, parts[i-1].To)
			}
		}
		if first, last := parts[0], parts[len(parts)-1]; first.From != 0 || last.To != whole.Replayed {
			t.Errorf("%s: from %v to %v of %v", name, first.From, last.To, whole.Replayed)
		}
		if want := whole.Replayed - whole.Recorded; added != want {
			t.Errorf("%s: %v added on the path, the run is %v longer", name, added, want)
		}
	}
}

func TestCriticalPathOfDataParallelRun(t *testing.T) {
	p, _ := simulate(t, 0, 400*us, all)
	plan := p.out.plan()
	c, err := plan.Critical(at(perf.NativeRTT + 18*us))
	if err != nil {
		t.Fatal(err)
	}
	var sum time.Duration
	for _, s := range plan.Sums(c) {
		sum += s.Time
	}
	if whole := run(t, plan, at(perf.NativeRTT+18*us)).Whole.Replayed; sum != whole {
		t.Errorf("the path takes %v of %v", sum, whole)
	}
	for i, end := range c.OpEnd {
		if end <= c.OpStart(int32(i)) {
			t.Errorf("operation %d ends before it begins", i)
		}
	}
}

func TestCriticalPathEnds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sh := shape{
			steps: rapid.IntRange(1, 3).Draw(rt, "steps"), kernels: rapid.IntRange(1, 30).Draw(rt, "kernels"), batch: 1,
			length: time.Duration(rapid.IntRange(1, 60).Draw(rt, "length")) * us, copies: time.Duration(rapid.IntRange(0, 60).Draw(rt, "copies")) * us,
		}
		recorded, _ := sh.simulate(t, 0)
		plan := recorded.out.plan()
		c, err := plan.Critical(at(perf.NativeRTT + time.Duration(rapid.IntRange(0, 40).Draw(rt, "more"))*us))
		if err != nil {
			rt.Fatal(err)
		}
		parts := c.Parts()
		for i, part := range parts {
			if part.To <= part.From || part.Added < 0 || i > 0 && part.From != parts[i-1].To {
				rt.Fatalf("part %d of %d: %+v", i, len(parts), part)
			}
		}
	})
}

// The path of a trace of nothing but kernels has a part for each call and each operation, and
// keeping them took twice the memory of the trace itself.
func TestCriticalPathTakesLittleMemory(t *testing.T) {
	r := record(t)
	const kernels = 20_000
	for i := range time.Duration(kernels) {
		r.op(workload.Kernel, r.launch(workload.Launch, 1, i*10*us, 5*us), 7, i*10*us+6*us, 3*us)
	}
	p := r.plan()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := p.Critical(at(delta10))
	if err != nil {
		t.Fatal(err)
	}
	sums := p.Sums(c)
	runtime.ReadMemStats(&after)
	if len(sums) < 2 || sums[0].Count < kernels/2 {
		t.Errorf("the path has few parts: %+v", sums)
	}
	// The times of the replay take 24 bytes.
	if made := (after.TotalAlloc - before.TotalAlloc) / kernels; made > 32 {
		t.Errorf("a kernel takes %d bytes", made)
	}
}
